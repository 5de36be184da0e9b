"""``make soak``: run every case of every campaign, and print a table. It continues where it was stopped.

    python -m tests.faults.campaigns.soak --out runs/soak --seed 0 --processes 2
    python -m tests.faults.campaigns.soak --seed 0 --case 'images:17'

Every case depends on the seed and its number only, so that a bad one can be run again alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from tests.faults.campaigns.artifacts import Artifacts
from tests.faults.campaigns.estimator import Estimator
from tests.faults.campaigns.harness import GOOD, KINDS, Case, Harness, Outcome, command
from tests.faults.campaigns.images import Images
from tests.faults.campaigns.large import Large
from tests.faults.campaigns.options import Options
from tests.faults.campaigns.resources import Resources
from tests.faults.campaigns.reviews import Reviews
from tests.faults.campaigns.signals import Signals
from tests.faults.campaigns.tables import Tables
from tests.faults.campaigns.world import World

HEADER = (
    "campaign",
    "tried",
    "fine",
    "refused with one message",
    "traceback",
    "over 10 s",
    "lost",
    "stuck",
    "executed",
    "over 2 GB",
    "largest memory",
)
MODULES = "modules: "


class Campaign(Protocol):
    """Makes cases.

    Attributes:
        name: name in the table.
        count: number of cases of the long form.
        quick: number of cases in ``make test``.
        trains: whether its commands train.
    """

    name: str
    count: int
    quick: int
    trains: bool

    def __init__(self, world: World, number: int) -> None: ...

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case, whose files are in a folder of its own."""


CAMPAIGNS: tuple[type[Campaign], ...] = (
    Tables,
    Images,
    Artifacts,
    Reviews,
    Options,
    Large,
    Resources,
    Signals,
    Estimator,  # last: it starts threads of libraries, and forks that use the same libraries may then wait forever
)


def prepare(world: World) -> None:
    """Import what the commands import, once for all forks; use one thread, because a fork has only one."""
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    import torch

    torch.set_num_threads(1)
    run, images, out = world.run, world.images, world.top / "warm"
    out.mkdir()
    _import(
        world,
        ("check", images, "--labels", images / "labels.csv"),
        ("predict", run, images, "-o", out / "tags.parquet", "--device", "cpu"),
        ("predict", run, images, "--fill", images / "gaps.csv", "-o", out / "filled.parquet", "--device", "cpu"),
        ("evaluate", run, "--device", "cpu"),
        ("report", run, "-o", out / "report.html"),
        ("export", run, "--hub", out / "hub"),
    )


def prepare_training(world: World) -> None:
    """Import what training imports too; it doubles the memory of this process, and with it the cost of a fork."""
    _import(
        world, world.training(world.top / "warm" / "run"), world.training(world.top / "warm" / "run", "--overwrite")
    )


def _import(world: World, *commands: tuple[object, ...]) -> None:
    """Import what some commands import."""
    for words in commands:
        result = world.harness.process(_modules_of(words), 120)
        for name in result.said.rpartition(MODULES)[2].split():
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _modules_of(words: tuple[object, ...]) -> Callable[[], object]:
    def job() -> None:
        with contextlib.suppress(SystemExit):
            command(*words)()
        sys.stdout.flush()
        os.write(1, f"{MODULES}{' '.join(list(sys.modules))}".encode())

    return job


def run_case(campaign: Campaign, harness: Harness, seed: int, number: int, keep: bool = False) -> tuple[Outcome, str]:
    """Run one case; return the verdict and what was done."""
    folder = harness.top / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    case = campaign.case(random.Random(f"{campaign.name}:{seed}:{number}"), folder)
    outcome = harness.run(case)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome, case.words


def run_all(
    top: Path, seed: int, out: Path, names: Iterable[str], scale: float, worker: int = 0, workers: int = 1
) -> None:
    """Run the cases that ``out`` does not have yet; append a line for each."""
    done = {(line["campaign"], line["number"]) for line in read(out, seed)}
    harness = Harness(top)
    world = World(top / "world", harness)
    prepare(world)
    wanted = set(names)
    with (out / f"cases-{worker}.jsonl").open("a", encoding="utf-8") as file:
        for kind in CAMPAIGNS:
            if wanted and kind.name not in wanted:
                continue
            campaign = kind(world, seed)
            if kind.trains:
                prepare_training(world)
            for number in range(worker, max(1, round(kind.count * scale)), workers):
                if (kind.name, number) in done:
                    continue
                outcome, words = run_case(campaign, harness, seed, number)
                line = {"campaign": kind.name, "seed": seed, "number": number, **outcome._asdict(), "case": words}
                file.write(json.dumps(line) + "\n")
                file.flush()
                if outcome.kind not in GOOD:
                    print(
                        f"{outcome.kind.upper()} {kind.name}:{number} {words}\n    {outcome.words[-400:]}", flush=True
                    )


def read(out: Path, seed: int) -> list[dict[str, Any]]:
    """Return the lines of all cases so far."""
    lines = [json.loads(line) for file in sorted(out.glob("cases-*.jsonl")) for line in file.read_text().splitlines()]
    return [line for line in lines if line["seed"] == seed]


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Return the table of all campaigns, in Markdown."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_name[line["campaign"]].append(line)
    rows = [_row(name, by_name[name]) for name in (kind.name for kind in CAMPAIGNS) if name in by_name]
    rows.append(_row("all", [line for group in by_name.values() for line in group]))
    texts = [HEADER, ("---",) + ("---:",) * (len(HEADER) - 1), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in texts)


def _row(name: str, lines: list[dict[str, Any]]) -> tuple[str, ...]:
    counts = Counter(line["kind"] for line in lines)
    peak = max((line["peak"] for line in lines), default=0)
    return (name, f"{len(lines):,}", *(f"{counts[kind]:,}" for kind in KINDS), f"{peak / 2**20:,.0f} MB")


def main() -> None:
    """Parse the options, run the cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="folder of the results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the cases")
    parser.add_argument("--campaign", action="append", default=[], help="name of a campaign; repeatable")
    parser.add_argument("--case", help="run only this case, and keep its files: NAME:NUMBER")
    options = parser.parse_args()
    if options.case:
        name, number = options.case.rsplit(":", 1)
        top = Path(tempfile.mkdtemp(prefix="case-"))
        harness = Harness(top)
        (kind,) = [kind for kind in CAMPAIGNS if kind.name == name]
        world = World(top / "world", harness)
        prepare(world)
        outcome, words = run_case(kind(world, options.seed), harness, options.seed, int(number), keep=True)
        print(words)
        print(f"{outcome.kind}, {outcome.seconds:.1f} s, {outcome.peak / 2**20:.0f} MB\n{outcome.words}\nfiles: {top}")
        sys.exit(outcome.kind not in GOOD)
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    children = []
    for worker in range(options.processes):
        if child := os.fork():
            children.append(child)
            continue
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            run_all(Path(folder), options.seed, options.out, options.campaign, options.scale, worker, options.processes)
        os._exit(0)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    lines = read(options.out, options.seed)
    text = table(lines)
    print(
        f"{text}\n\nseed {options.seed}, {platform.processor() or platform.machine()}, {options.processes} processes, "
        f"{time.monotonic() - started:.0f} s"
    )
    (options.out / "table.md").write_text(text + "\n")
    sys.exit(any(codes) or any(line["kind"] not in GOOD for line in lines))


if __name__ == "__main__":
    main()
