"""A grid at work: its cells run one after the other, as far as the time reaches."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tagspread.bench.cells import Cell, can_go_on, failed_cell, machine_name, remove_models, run_cell
from tagspread.bench.grid import WARMUP, starts_from_warmup
from tagspread.bench.records import Record
from tagspread.bench.results import Results
from tagspread.bench.threshold_choice import ThresholdChoices, Unchosen, choose_threshold, split_of
from tagspread.files import SharedLock, hold_lock
from tagspread.methods import find_method
from tagspread.progress import Watcher
from tagspread.run.folder import RunFolder
from tagspread.train.dataset import Dataset
from tagspread.train.trainer import RunOptions
from tagspread.wording import counted


@dataclass
class GridRunner:
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
        self._needed: dict[str, SharedLock] = {}  # warm-ups that this process may still start from

    def pending(self, cells: Sequence[Cell], retry_failed: bool) -> list[Cell]:
        """Return the cells that are still to be run."""
        settled = {"done"} if retry_failed else {"done", "failed"}
        return [cell for cell in cells if self.status(cell.key) not in settled]

    def status(self, key: str) -> str | None:
        """Return done or failed, or None for what was not run."""
        found: str | None = self.records.get(key, {}).get("status")
        return found

    def is_begun(self, cell: Cell) -> bool:
        """Return whether a cell was interrupted, and will go on where it was."""
        return can_go_on(RunFolder(self._folder(cell)), cell.config)

    def run(self, cells: Sequence[Cell], splits: Callable[[float, int], Dataset]) -> int:
        """Run cells until all are done or the next would not end in time; return how many are left.

        Processes that work in the same folder share the cells among them.
        """
        with ExitStack() as held:
            self._needed = {
                key: held.enter_context(closing(SharedLock(self.out / "cells" / f".{key}.needed")))
                for key in {cell.warmup.key for cell in cells}
            }
            waiting, busy = deque(cells), set[str]()
            before = {cell.key: self.records.get(cell.key) for cell in cells}
            while waiting:
                cell = waiting.popleft()
                if self._read_again(cell) != before[cell.key]:
                    continue  # settled by another process
                if not self._ends_in_time(cell, len(waiting) + 1):
                    return len(waiting) + 1
                if cell.key in busy:
                    self.watcher.note(f"{cell.key}: another process is at it; this one waits")
                with hold_lock(self._lock(cell), wait=cell.key in busy) as mine:
                    if not mine:  # see to the others first
                        busy.add(cell.key)
                        waiting.append(cell)
                        continue
                    if self._read_again(cell) != before[cell.key]:
                        continue  # meanwhile, by the other
                    record = self._run_one(cell, splits(cell.p, cell.config.seed))
                self.watcher.note(f"[{len(cells) - len(waiting)}/{len(cells)}] {cell_line(record)}")
                self._tidy(cell, waiting)
            for key in tuple(self._needed):
                self._let_go_of_warmup(key)
        return 0

    def _ends_in_time(self, cell: Cell, cells_left: int) -> bool:
        """Return whether the budget reaches for the next cell; say so if it does not."""
        left, expected = self._time_left(), self.expected_seconds(cell)
        if left is None or (left > 0 and (expected or 0) <= left):
            return True
        takes = "" if expected is None else f"the next takes about {_minutes(expected)}, "
        rest = f"{_minutes(max(0.0, left))} of the budget are left"
        self.watcher.note(f"{counted(cells_left, 'cell')} left for another time: {takes}{rest}")
        return False

    def choose(self, splits: Sequence[Unchosen], opened: Callable[[], Callable[[float, int], Dataset]]) -> None:
        """Choose the thresholds of splits that have none yet, as far as the time reaches."""
        choices = ThresholdChoices(self.results)
        for number, (warmup, rows) in enumerate(splits):
            left, expected = self._time_left(), self.expected_seconds(warmup)
            if left is not None and (left <= 0 or (expected or 0) > left):
                self.watcher.note(f"thresholds of {counted(len(splits) - number, 'split')}: left for another time")
                return
            p, seed, name = warmup.p, warmup.config.seed, f"{warmup.key}-held-out"
            with hold_lock(self.out / "cells" / f".{name}.lock"):
                if split_of(warmup) in choices.read():
                    continue  # by another process that works in the same folder
                try:
                    choice = choose_threshold(
                        warmup,
                        opened()(p, seed),
                        self.out / "cells" / name,
                        device=self.device,
                        watcher=self.quiet,
                        options=RunOptions(cache=self._features),
                    )
                except Exception as error:  # one split's trouble is not the others'
                    for row in rows:
                        self._keep(failed_cell(row, error, self.device))
                    message = self.records[rows[0]["key"]]["message"]
                    self.watcher.note(f"{warmup.dataset} p={p:g} seed {seed}: no threshold could be chosen: {message}")
                    continue
                self._free_memory()
                choices.add(choice)
            self.watcher.note(choice.describe())

    def expected_seconds(self, cell: Cell) -> float | None:
        """Return how long a cell will take, from those like it that this machine has done; None if there are none."""
        setup, machine = cell.setup["id"], machine_name(self.device)
        alike = [
            record
            for record in self.records.values()
            if record["status"] == "done" and record["setup"]["id"] == setup and record["machine"] == machine
        ]
        uses_unlabeled = find_method(cell.config.method).uses_unlabeled
        same = [r["wall_seconds"] for r in alike if r["method"] == cell.config.method]
        kind = (uses_unlabeled, cell.own)  # one with settings of its own may need a hundred times as long
        others = [r["wall_seconds"] for r in alike if (r["uses_unlabeled"], r.get("own", {})) == kind]
        return max(same or others, default=None)

    @property
    def _features(self) -> Path:
        """Where all runs keep the features of frozen networks: they are computed once."""
        return self.out / "features"

    def _train(self, cell: Cell, dataset: Dataset, after: Path | None = None) -> Record:
        folder = self._folder(cell)
        return run_cell(
            cell, dataset, folder, RunOptions(cache=self._features, after=after), device=self.device, watcher=self.quiet
        )

    def _time_left(self) -> float | None:
        return None if self.budget is None else self.budget - (time.monotonic() - self.began)

    def _read_again(self, cell: Cell) -> Record | None:
        """Return the cell's record as it is by now; other processes write results, too."""
        self.records = {record["key"]: record for record in self.results.read()}
        return self.records.get(cell.key)

    def _run_one(self, cell: Cell, dataset: Dataset) -> Record:
        """Run a cell and write it down."""
        try:
            record = self._train(cell, dataset, after=self._warmup(cell, dataset))
        except Exception as error:  # one cell's trouble is written down, and is not the others'
            record = failed_cell(cell.identity(), error, self.device)
        self._keep(record)
        return record

    def _keep(self, record: Record) -> None:
        self.results.append(record)
        self.records[record["key"]] = record
        self._free_memory()

    def _free_memory(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # captured graphs hold on to memory of their own

    def _warmup(self, cell: Cell, dataset: Dataset) -> Path | None:
        """Return the folder of the finished warm-up that the cell starts from; train it if its model was not kept."""
        if not starts_from_warmup(cell.config, cell.common):
            return None
        warmup = cell.warmup
        folder = self._folder(warmup)
        with hold_lock(self._lock(warmup)):  # which waits for another process that is training it
            self._read_again(warmup)
            if self.status(warmup.key) != "done":
                return None  # it failed: whoever needs it tries for itself
            if not can_go_on(RunFolder(folder), warmup.config) or not (folder / "metrics.json").exists():
                self.watcher.note(f"the warm-up {warmup.key} is trained again, as its model was not kept")
                self._train(warmup, dataset)
        return folder

    def _tidy(self, cell: Cell, later: Iterable[Cell]) -> None:
        """Delete networks that nobody needs any more, in this process or in another."""
        if not self.keep_models and self.records[cell.key]["status"] == "done" and cell.config.method != WARMUP:
            remove_models(self._folder(cell))
        key = cell.warmup.key
        if key in self._needed and not any(
            other.warmup.key == key for other in later if starts_from_warmup(other.config, other.common)
        ):
            self._let_go_of_warmup(key)

    def _let_go_of_warmup(self, key: str) -> None:
        with self._needed.pop(key).release() as last:
            if last and self.status(key) == "done" and not self.keep_models:
                remove_models(self.out / "cells" / key)

    def _folder(self, cell: Cell) -> Path:
        return self.out / "cells" / cell.key

    def _lock(self, cell: Cell) -> Path:
        return self.out / "cells" / f".{cell.key}.lock"


class QuietBar(Watcher):
    """Shows the moving line of a training, and none of its notes: a cell gets one line when it is done."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher.quiet, watcher.console)

    def note(self, text: str) -> None:
        """Say nothing."""


def cell_line(record: Record) -> str:
    """Return a finished cell in one line."""
    variant = f" ({record['variant']})" if record["variant"] else ""
    name = f"{record['dataset']} {Path(record['method']).name}{variant} p={record['p']:g} seed {record['seed']}"
    if record["status"] == "failed":
        return f"{name}: failed: {record['message'].splitlines()[0]}"
    return (
        f"{name}: mAP {100 * record['honest']:.2f} last epoch, {100 * record['parity']:.2f} best on test, "
        f"{record['wall_seconds']:.0f} s"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
