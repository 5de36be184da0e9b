"""Artifacts: damaged files of a run, of an interrupted run, and of an exported folder, read by every command."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from tests.faults.campaigns.harness import Case, Flaw, Result, command, contents
from tests.faults.campaigns.mutate import damaged, json_bytes, wrong_tensors, wrong_value
from tests.faults.campaigns.world import World, copy_of
from tests.runs import sign_again

EVIL = "import pathlib\npathlib.Path({canary!r}).write_text('executed')\n"


class Artifacts:
    """One file of a run is damaged, then a command reads the run; nothing in it is executed."""

    name = "artifacts"
    count = 1400
    quick = 24
    trains = True

    def __init__(self, world: World, number: int) -> None:
        del number
        self._world = world

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        kind = rng.choice(("finished", "finished", "finished", "interrupted", "interrupted", "hub", "head"))
        world = self._world
        source = {"finished": world.run, "interrupted": world.interrupted, "hub": world.hub, "head": world.head}[kind]
        run = copy_of(source, folder / "run")
        evil = run / "evil.py"
        evil.write_text(EVIL.format(canary=str(world.harness.canary)))
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.suffix not in (".py", ".html", ".md"))
        file = rng.choice(files)
        if rng.random() < 0.2:  # the file that most commands read
            file = next((path for path in files if path.name == rng.choice(("labels.json", "config.json"))), file)
        words = self._damage(file, rng)
        if file.exists() and file.name != "labels.json" and (run / "labels.json").is_file() and rng.random() < 0.7:
            sign_again(run)
        before = contents(world.images)
        name, job = self._command(kind, run, folder, rng)

        def check(result: Result) -> Flaw | None:
            del result
            return Flaw("lost", "an image or a table was changed") if contents(world.images) != before else None

        return Case(f"{kind} {file.relative_to(run)}: {words}; {name}", job, check, seconds=10)

    def _damage(self, file: Path, rng: random.Random) -> str:
        """Damage a file: its values where it has some, else its bytes."""
        data = file.read_bytes()
        if file.suffix == ".json" and rng.random() < 0.8:
            value, words = wrong_value(json.loads(data), rng)
            if file.name == "config.json" and rng.random() < 0.3:
                value, words = json.loads(data), "a method of a file"
                value["settings"]["method"] = rng.choice((f"{file.parent / 'evil.py'}:Rule", "evil.py:Rule"))
            data = json_bytes(value)
        elif file.suffix == ".jsonl" and rng.random() < 0.8:
            lines, words = wrong_value([json.loads(line) for line in data.splitlines()], rng)
            data = b"\n".join(map(json_bytes, lines if isinstance(lines, list) else [lines]))
        elif file.suffix == ".safetensors" and rng.random() < 0.8:
            data, words = wrong_tensors(data, rng)
        elif rng.random() < 0.05:
            file.unlink()
            return "missing"
        else:
            data, words = damaged(data, rng)
        file.write_bytes(data)
        return words

    def _command(self, kind: str, run: Path, folder: Path, rng: random.Random) -> tuple[str, Callable[[], object]]:
        world, images = self._world, self._world.images
        cpu = ("--device", "cpu")
        reading = {
            "predict": ("predict", run, images, "-o", folder / "tags.csv", *cpu),
            "fill": ("predict", run, images, "--fill", images / "gaps.csv", "-o", folder / "f.csv", *cpu),
            "evaluate": ("evaluate", run, *cpu),
            "evaluate labels": ("evaluate", run, "--labels", images / "test.csv", "--images", images, *cpu),
            "thresholds": ("thresholds", run, "--labels", images / "test.csv", "--images", images, *cpu),
            "report": ("report", run, *(() if rng.random() < 0.5 else ("--images", images))),
            "hub": ("export", run, "--hub", folder / "out"),
            "pseudo-labels": ("pseudo-labels", run, "--label-studio", folder / "tasks.json"),
            "corrected": ("pseudo-labels", run, "--corrected", images / "test.csv", "-o", folder / "all.csv"),
            "resume": ("train", "--resume", run, *cpu),
            "compare": ("compare", run, world.other, *cpu),
            "compare with": ("compare", world.other, run, "--labels", images / "test.csv", "--images", images, *cpu),
            "train and compare": (*world.training(folder / "out"), "--compare", run),
            "suggest": ("suggest", run, "-o", folder / "next.csv", *cpu),
            "audit": ("audit", run),
            "export answers": ("review", run, "--export", folder / "labels.csv"),
        }
        names = ["resume"] if kind == "interrupted" and rng.random() < 0.8 else list(reading)
        name = rng.choice(names)
        return name, command(*reading[name])
