"""The grid: which cells, in which order, and running them one after the other, as far as the time reaches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tagspread.bench.cells import (
    Cell,
    can_go_on,
    digest_of_weights,
    failed_cell,
    machine_name,
    plain_options,
    remove_models,
    run_cell,
)
from tagspread.bench.chosen import Choice, Choices, Split, choose, split_of
from tagspread.bench.results import Record, Results
from tagspread.demo import SETTINGS as DEMO_SETTINGS
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS, find_method, get_method
from tagspread.train.config import TrainConfig, make_config
from tagspread.train.console import Watcher
from tagspread.train.folder import RunFolder
from tagspread.train.problem import Problem
from tagspread.wording import counted

SHARES = (0.05, 0.1, 0.15, 0.2)  # labelled shares of the paper
PAPER_METHODS = (
    "bce", "asl", "llr", "llct", "llcp", "plc", "top1", "topk", "iat", "adsh", "freematch", "drml", "cap",
)  # in the order of its tables  # fmt: skip
WARMUP = "asl"

# what the paper's code does differently from one data set to another; its schedule is made for 40 epochs, 28 are run
_RELEASED = {"schedule_epochs": 40}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "voc": {"paper": {"batch": 32, **_RELEASED}},
    "coco": {"paper": {"batch": 64, **_RELEASED}},
    "nus": {"paper": {"batch": 64, "warm_start_from": "ema", **_RELEASED}},
    "demo": {
        preset: {**DEMO_SETTINGS, "epochs": 10, "warmup_batch": 32, **more}
        for preset, more in (("paper", {"warmup_epochs": 40}), ("default", {}))
    },
}
SHORTENED = {("demo", "drml"): {"epochs": 10}}  # with its 150 it would take longer than all others together


@dataclass(frozen=True)
class Grid:
    """What is asked for: every method on every share with every seed, all under one recipe."""

    dataset: str
    methods: tuple[str, ...]
    shares: tuple[float, ...] = SHARES
    seeds: tuple[int, ...] = (1, 2, 3)
    preset: str = "paper"
    settings: dict[str, Any] = field(default_factory=dict)
    variants: tuple[tuple[str, dict[str, Any]], ...] = ()  # methods with options of their own
    tuned: tuple[str, ...] = ()  # methods whose threshold is chosen for each split
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for share in self.shares:
            if not 0 < share < 1:
                raise TagspreadError(f"--p {share:g}: give the labelled share of the data, between 0 and 1.")
        for name in self.methods:
            get_method(name)
        if (self.variants or self.tuned) and "method_options" in self.settings:
            raise TagspreadError("--set method_options goes with --methods, not with a study, which sets its own.")

    def config(self, method: str, seed: int, options: dict[str, Any] | None = None) -> TrainConfig:
        """Return a run's settings: preset, the data set's recipe, the method's own, and on top what was asked for."""
        # a table's rows are of one kind, whatever the machine
        recipe = {"mode": "full"} | RECIPES[self.dataset].get(self.preset, {})
        on_top = find_method(method).recipe | SHORTENED.get((self.dataset, method), {}) | self.settings
        if "epochs" in on_top:
            recipe.pop("schedule_epochs", None)  # it belongs to the recipe's number of epochs
        chosen = recipe | on_top | {"method": method, "seed": seed}
        if method not in self.methods:
            chosen.pop("method_options", None)  # the warm-up that nobody named has none
        if options is not None:
            chosen["method_options"] = plain_options(method, options)
        return make_config(self.preset, **chosen)

    def cells(self, choices: dict[Split, Choice] | None = None) -> list[Cell]:
        """Return the cells in the order they are run: by share, by seed, the common warm-up first.

        Args:
            choices: thresholds of the ``tuned`` methods; a split without one has no cells of theirs yet.
        """
        wanted: list[tuple[str, dict[str, Any] | None]] = [(name, None) for name in self.methods]
        wanted += list(self.variants)
        begun = [*wanted, *((name, None) for name in self.tuned)]
        if WARMUP not in self.methods and any(starts_from_warmup(self.config(name, 1, opts)) for name, opts in begun):
            wanted.insert(0, (WARMUP, None))
        wanted.sort(key=lambda one: one[0] != WARMUP)
        cells: dict[str, Cell] = {}
        for warmup in self.warmups():
            choice = (choices or {}).get(split_of(warmup))
            tuned = [(name, {"threshold": choice.threshold(name)}) for name in self.tuned] if choice else []
            for method, options in (*wanted, *tuned):
                cell = replace(warmup, config=self.config(method, warmup.config.seed, options))
                cells.setdefault(cell.key, cell)
        return list(cells.values())

    def warmups(self) -> list[Cell]:
        """Return the labelled-only cell of every share and seed, whether or not the grid runs it."""
        common = self.config(WARMUP, 1)
        digest = digest_of_weights(common.weights)
        named = ("backbone", "weights", "image_size", "method_options")  # shown in places of their own
        asked = {name: value for name, value in self.settings.items() if name not in named}
        return [
            Cell(self.dataset, share, self.preset, self.config(WARMUP, seed), common, digest, self.facts, asked)
            for share in sorted(set(self.shares))
            for seed in dict.fromkeys(self.seeds)
        ]


def starts_from_warmup(config: TrainConfig) -> bool:
    """Whether a run begins with the same warm-up as all others, and can therefore take it from another run."""
    method = find_method(config.method)
    begins = config.start == "warmup" and config.warmup_epochs > 0
    return begins and method.uses_pile and method.shares_warmup and method.labelled_loss in (None, WARMUP)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return methods in the order of the paper's tables, others after them; ``all`` stands for every one."""
    chosen = list(names)
    if "all" in chosen:
        chosen = list(METHODS)
    known = dict.fromkeys((*PAPER_METHODS, *METHODS))
    return (*(name for name in known if name in chosen), *dict.fromkeys(name for name in chosen if name not in known))


@dataclass
class GridRun:
    """A grid at work in a folder.

    Attributes:
        out: the folder: ``results.jsonl``, and the cells' runs below ``cells``.
        device: where the cells are trained.
        watcher: is told of each finished cell.
        budget: seconds after ``began`` at which no cell may be running any more; None for as long as it takes.
        keep_models: leave the networks of finished cells on the disk.
        began: when the time began to count.
    """

    out: Path
    device: torch.device
    watcher: Watcher
    budget: float | None = None
    keep_models: bool = False
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.results = Results(self.out)
        self.records = {record["key"]: record for record in self.results.read()}
        self.quiet = QuietBar(self.watcher)

    def pending(self, cells: Sequence[Cell], retry_failed: bool) -> list[Cell]:
        """Return the cells that are still to be run."""
        settled = {"done"} if retry_failed else {"done", "failed"}
        return [cell for cell in cells if self.records.get(cell.key, {}).get("status") not in settled]

    def run(self, cells: Sequence[Cell], problems: Callable[[float, int], Problem]) -> int:
        """Run cells until all are done or the next would not end in time; return how many are left."""
        for number, cell in enumerate(cells):
            self.records = {record["key"]: record for record in self.results.read()}
            if self.records.get(cell.key, {}).get("status") == "done":
                continue  # by another process that works in the same folder
            left, expected = self._time_left(), self.expected_seconds(cell)
            if left is not None and (left <= 0 or (expected or 0) > left):
                takes = "" if expected is None else f"the next takes about {_minutes(expected)}, "
                rest = f"{_minutes(max(0.0, left))} of the budget are left"
                self.watcher.note(f"{len(cells) - number} cells are left for another time: {takes}{rest}")
                return len(cells) - number
            record = self._run_one(cell, problems(cell.p, cell.config.seed))
            self.watcher.note(f"[{number + 1}/{len(cells)}] {cell_line(record)}")
            self._tidy(cell, cells[number + 1 :])
        return 0

    def choose(self, warmups: Sequence[Cell], opened: Callable[[], Callable[[float, int], Problem]]) -> None:
        """Choose the thresholds of splits that have none yet, as far as the time reaches."""
        for number, warmup in enumerate(warmups):
            left = self._time_left()
            if left is not None and left <= 0:
                self.watcher.note(f"thresholds of {counted(len(warmups) - number, 'split')}: left for another time")
                return
            try:
                choice = choose(warmup, opened()(warmup.p, warmup.config.seed), self.device, self.quiet)
            except TagspreadError as error:  # too few labelled pictures, say: the others are not to suffer
                split = f"{warmup.dataset} p={warmup.p:g} seed {warmup.config.seed}"
                self.watcher.note(f"{split}: no threshold could be chosen: {error}")
                continue
            Choices(self.results).add(choice)
            self.watcher.note(choice.describe())

    def expected_seconds(self, cell: Cell) -> float | None:
        """Return how long a cell will take, from those like it that this machine has done; None if there are none."""
        setup, machine = cell.setup["id"], machine_name(self.device)
        alike = [
            record
            for record in self.records.values()
            if record["status"] == "done" and record["setup"]["id"] == setup and record["machine"] == machine
        ]
        uses_pile = find_method(cell.config.method).uses_pile
        same = [r["wall_seconds"] for r in alike if r["method"] == cell.config.method]
        others = [r["wall_seconds"] for r in alike if r["uses_pile"] == uses_pile]
        return max(same or others, default=None)

    def _time_left(self) -> float | None:
        return None if self.budget is None else self.budget - (time.monotonic() - self.began)

    def _run_one(self, cell: Cell, problem: Problem) -> Record:
        try:
            after = self._warmup(cell, problem)
            record = run_cell(cell, problem, self._folder(cell), device=self.device, after=after, watcher=self.quiet)
        except Exception as error:  # one cell's trouble is written down, and is not the others'
            record = failed_cell(cell, error, self.device)
        self.results.append(record)
        self.records[cell.key] = record
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # captured graphs hold on to memory of their own
        return record

    def _warmup(self, cell: Cell, problem: Problem) -> Path | None:
        """Return the folder of the finished warm-up that the cell starts from; train it if its model was not kept."""
        if not starts_from_warmup(cell.config):
            return None
        warmup = cell.warmup
        if self.records.get(warmup.key, {}).get("status") != "done":
            return None  # it failed: whoever needs it tries for itself
        folder = self._folder(warmup)
        if not can_go_on(RunFolder(folder), warmup.config) or not (folder / "metrics.json").exists():
            self.watcher.note(f"the warm-up {warmup.key} is trained again, as its model was not kept")
            run_cell(warmup, problem, folder, device=self.device, after=None, watcher=self.quiet)
        return folder

    def _tidy(self, cell: Cell, later: Sequence[Cell]) -> None:
        """Delete networks that nobody needs any more."""
        if self.keep_models:
            return
        if self.records[cell.key]["status"] == "done" and cell.config.method != WARMUP:
            remove_models(self._folder(cell))
        warmup = cell.warmup
        needed = {other.warmup.key for other in later if starts_from_warmup(other.config)}
        if warmup.key not in needed and self.records.get(warmup.key, {}).get("status") == "done":
            remove_models(self._folder(warmup))

    def _folder(self, cell: Cell) -> Path:
        return self.out / "cells" / cell.key


class QuietBar(Watcher):
    """Shows the moving line of a training, and none of its notes: a cell gets one line when it is done."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher.quiet, watcher.console)

    def note(self, text: str) -> None:
        """Say nothing."""


def cell_line(record: Record) -> str:
    """Return a finished cell in one line."""
    variant = f" ({record['variant']})" if record["variant"] else ""
    name = f"{record['dataset']} {record['method']}{variant} p={record['p']:g} seed {record['seed']}"
    if record["status"] == "failed":
        return f"{name}: failed: {record['message'].splitlines()[0]}"
    return (
        f"{name}: mAP {100 * record['honest']:.2f} last epoch, {100 * record['parity']:.2f} best on test, "
        f"{record['wall_seconds']:.0f} s"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
