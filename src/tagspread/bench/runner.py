"""Run the cells of a benchmark grid one after the other, within a time budget and shared between processes."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tagspread.bench.cells import Cell, can_resume, failed_cell, machine_name, remove_models, run_cell
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
    """Runs the cells of a grid in an output folder.

    Attributes:
        out: the output folder, with ``results.jsonl`` and the runs of the cells in ``cells``.
        device: device to train on.
        watcher: shows each finished cell.
        budget: time budget in seconds, counted from ``began``, after which no cell may be running; None for no limit.
        keep_models: keep the networks of finished cells on disk.
        began: start of the time budget, by ``time.monotonic``.
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
        self._needed: dict[str, SharedLock] = {}  # locks of warm-up networks that this process still needs

    def pending(self, cells: Sequence[Cell], retry_failed: bool) -> list[Cell]:
        """Return the cells that still have to be run."""
        finished = {"done"} if retry_failed else {"done", "failed"}
        return [cell for cell in cells if self.status(cell.key) not in finished]

    def status(self, key: str) -> str | None:
        """Return ``"done"`` or ``"failed"``, or None for a cell that was not run."""
        status: str | None = self.records.get(key, {}).get("status")
        return status

    def is_interrupted(self, cell: Cell) -> bool:
        """Return whether a cell was interrupted and can be resumed."""
        return can_resume(RunFolder(self._folder(cell)), cell.config)

    def run(self, cells: Sequence[Cell], splits: Callable[[float, int], Dataset]) -> int:
        """Run cells until all are finished or the next one would exceed the budget; return the number of cells left.

        Several processes can work in the same folder and share the cells.
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
                    continue  # finished by another process
                if not self._ends_in_time(cell, len(waiting) + 1):
                    return len(waiting) + 1
                if cell.key in busy:
                    self.watcher.note(f"{cell.key}: waiting for another process that is running it")
                with hold_lock(self._lock(cell), wait=cell.key in busy) as acquired:
                    if not acquired:  # run other cells first
                        busy.add(cell.key)
                        waiting.append(cell)
                        continue
                    if self._read_again(cell) != before[cell.key]:
                        continue  # finished by another process meanwhile
                    record = self._run_one(cell, splits(cell.p, cell.config.seed))
                self.watcher.note(f"[{len(cells) - len(waiting)}/{len(cells)}] {cell_line(record)}")
                self._remove_unneeded(cell, waiting)
            for key in tuple(self._needed):
                self._release_warmup(key)
        return 0

    def _ends_in_time(self, cell: Cell, cells_left: int) -> bool:
        """Return whether the next cell fits into the time budget; print a note if it does not."""
        left, expected = self._time_left(), self.expected_seconds(cell)
        if left is None or (left > 0 and (expected or 0) <= left):
            return True
        estimate = "" if expected is None else f"the next cell takes about {_minutes(expected)}, but "
        rest = f"{_minutes(max(0.0, left))} of the time budget remain"
        self.watcher.note(f"{counted(cells_left, 'cell')} not run: {estimate}{rest}; run again to continue")
        return False

    def choose(self, splits: Sequence[Unchosen], opened: Callable[[], Callable[[float, int], Dataset]]) -> None:
        """Choose the thresholds of splits that have none yet, within the time budget."""
        choices = ThresholdChoices(self.results)
        for number, (warmup, rows) in enumerate(splits):
            left, expected = self._time_left(), self.expected_seconds(warmup)
            if left is not None and (left <= 0 or (expected or 0) > left):
                splits_left = counted(len(splits) - number, "split")
                self.watcher.note(
                    f"thresholds of {splits_left} not chosen: the time budget is spent; run again to continue"
                )
                return
            p, seed, name = warmup.p, warmup.config.seed, f"{warmup.key}-held-out"
            with hold_lock(self.out / "cells" / f".{name}.lock"):
                if split_of(warmup) in choices.read():
                    continue  # chosen by another process in the same folder
                try:
                    choice = choose_threshold(
                        warmup,
                        opened()(p, seed),
                        self.out / "cells" / name,
                        device=self.device,
                        watcher=self.quiet,
                        options=RunOptions(cache=self._features),
                    )
                except Exception as error:  # an error in one split must not stop the others
                    for row in rows:
                        self._keep(failed_cell(row, error, self.device))
                    message = self.records[rows[0]["key"]]["message"]
                    self.watcher.note(f"{warmup.dataset} p={p:g} seed {seed}: choosing the threshold failed: {message}")
                    continue
                self._free_memory()
                choices.add(choice)
            self.watcher.note(choice.describe())

    def expected_seconds(self, cell: Cell) -> float | None:
        """Estimate the time of a cell from similar cells that ran on this machine; return None if there are none."""
        setup, machine = cell.setup["id"], machine_name(self.device)
        similar = [
            record
            for record in self.records.values()
            if record["status"] == "done" and record["setup"]["id"] == setup and record["machine"] == machine
        ]
        uses_unlabeled = find_method(cell.config.method).uses_unlabeled
        same = [r["wall_seconds"] for r in similar if r["method"] == cell.config.method]
        kind = (uses_unlabeled, cell.own)  # the method's own settings may change the time a hundredfold
        others = [r["wall_seconds"] for r in similar if (r["uses_unlabeled"], r.get("own", {})) == kind]
        return max(same or others, default=None)

    @property
    def _features(self) -> Path:
        """Folder of cached features of frozen networks, shared by all runs."""
        return self.out / "features"

    def _train(self, cell: Cell, dataset: Dataset, after: Path | None = None) -> Record:
        folder = self._folder(cell)
        return run_cell(
            cell, dataset, folder, RunOptions(cache=self._features, after=after), device=self.device, watcher=self.quiet
        )

    def _time_left(self) -> float | None:
        return None if self.budget is None else self.budget - (time.monotonic() - self.began)

    def _read_again(self, cell: Cell) -> Record | None:
        """Read the results again, which other processes may have changed; return the cell's record."""
        self.records = {record["key"]: record for record in self.results.read()}
        return self.records.get(cell.key)

    def _run_one(self, cell: Cell, dataset: Dataset) -> Record:
        """Run a cell and append its record to the results."""
        try:
            record = self._train(cell, dataset, after=self._warmup(cell, dataset))
        except Exception as error:  # record the failure and continue with the other cells
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
            torch.cuda.empty_cache()  # CUDA graphs keep their own memory

    def _warmup(self, cell: Cell, dataset: Dataset) -> Path | None:
        """Return the folder of the finished warm-up that a cell starts from; train a deleted one again."""
        if not starts_from_warmup(cell.config, cell.common):
            return None
        warmup = cell.warmup
        folder = self._folder(warmup)
        with hold_lock(self._lock(warmup)):  # waits for another process that is training it
            self._read_again(warmup)
            if self.status(warmup.key) != "done":
                return None  # it failed, so each cell trains its own warm-up
            if not can_resume(RunFolder(folder), warmup.config) or not (folder / "metrics.json").exists():
                self.watcher.note(f"the warm-up {warmup.key} is trained again, because its model was deleted")
                self._train(warmup, dataset)
        return folder

    def _remove_unneeded(self, cell: Cell, later: Iterable[Cell]) -> None:
        """Delete networks that no later cell needs, in this process or in another."""
        if not self.keep_models and self.records[cell.key]["status"] == "done" and cell.config.method != WARMUP:
            remove_models(self._folder(cell))
        key = cell.warmup.key
        if key in self._needed and not any(
            other.warmup.key == key for other in later if starts_from_warmup(other.config, other.common)
        ):
            self._release_warmup(key)

    def _release_warmup(self, key: str) -> None:
        """Release the warm-up's lock; delete its network if no other process holds the lock."""
        with self._needed.pop(key).release() as is_last:
            if is_last and self.status(key) == "done" and not self.keep_models:
                remove_models(self.out / "cells" / key)

    def _folder(self, cell: Cell) -> Path:
        return self.out / "cells" / cell.key

    def _lock(self, cell: Cell) -> Path:
        return self.out / "cells" / f".{cell.key}.lock"


class QuietBar(Watcher):
    """Shows the progress bar of a training without its notes; each finished cell gets one line instead."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher.quiet, watcher.console)

    def note(self, text: str) -> None:
        """Discard a note."""


def cell_line(record: Record) -> str:
    """Describe a finished cell in one line."""
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
