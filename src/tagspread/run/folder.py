"""The run folder: lock, output files, overwrite without data loss, and resume checks.

The process that trains into a folder holds its lock. A run is finished when it has a ``labels.json``, which is written
last and contains the SHA-256 of the other files. When a run replaces a finished run (``--overwrite``), the folder
passes through the states below. If the process is killed in any of them, the same command can be run again:

1. The first files of the new run are in a temporary folder. The old run is complete and can be used.
2. All files of the old run are hard-linked into ``previous``, ``labels.json`` last.
3. The old ``labels.json`` is removed, then the other files of the old run except ``config.json``, which identifies this
   state (:attr:`RunFolder.is_half_replaced`).
4. The first files of the new run are moved in, ``config.json`` last, and the first checkpoint is written: the new run
   has started. If this fails, the old run is restored.
5. The new run is finished, and ``previous`` is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from tagspread.aliases import JsonObject
from tagspread.errors import Both, TagspreadError
from tagspread.files import (
    LOCK,
    PREVIOUS,
    Remedy,
    can_link,
    check_unlocked,
    check_writable,
    drop_previous,
    is_temporary,
    keep_copies,
    move_into,
    new_temporary_folder,
    refuse_others,
    remove_files,
    remove_stale,
    remove_temporary,
    write_csv,
    write_json,
    write_tensors,
    write_text,
)
from tagspread.run.schema import Schema, parse_json, read_object

CONFIG, MANIFEST, CHECKPOINT = "config.json", "labels.json", "checkpoint/state.safetensors"
RUN_FILES = (
    CONFIG,
    "split.csv",
    "log.jsonl",
    "metrics.json",
    MANIFEST,
    "model.safetensors",
    "ema.safetensors",
    "best.safetensors",
    "labeled_only.safetensors",
    "pseudo_labels.csv",
    "report.html",
    CHECKPOINT,
)
WRITE_ORDER = (CONFIG, *(name for name in RUN_FILES if name not in (CONFIG, MANIFEST)), MANIFEST)
# files whose digests are in the manifest. config.json is not: the paths in it may be updated when images move; it has
# the same run ID as the manifest instead
DIGESTED_FILES = tuple(name for name in RUN_FILES if name not in (CONFIG, MANIFEST, "report.html", CHECKPOINT))
TRAINED, CHOSEN = "is being trained", "is having its thresholds chosen"
_held: set[tuple[str, int]] = set()  # folders whose lock a thread of this process holds


class RunFolder:
    """The folder that holds the files of one run.

    Args:
        path: the folder; it need not exist yet.

    Attributes:
        checkpoint: path of the checkpoint file.
        keeps_old_run: whether the run that was to be replaced is still complete in the folder, or restored.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / CHECKPOINT
        self.keeps_old_run = False
        self._staged: Path | None = None  # temporary folder with the first files of a run that replaces another
        self._doing = TRAINED
        self._replaced = False  # whether this object moved the old run to ``previous``

    @contextlib.contextmanager
    def locked(self, doing: str = TRAINED) -> Iterator[None]:
        """Lock the run against changes by other processes; raise immediately if another process holds the lock.

        If the block raises before the first checkpoint of the new run, the run it was to replace is restored.

        Args:
            doing: this process's activity, such as "is being trained", for the error message of other processes.
        """
        self._doing = doing
        with self._locked(doing):
            try:
                yield
            except BaseException:
                self._withdraw()
                raise

    @contextlib.contextmanager
    def _locked(self, doing: str) -> Iterator[None]:
        key = (os.path.realpath(self.path), threading.get_ident())
        if key in _held:  # ts.train already holds the lock when it calls run_training
            yield
            return
        with self._created(), contextlib.ExitStack() as stack:
            try:
                stack.enter_context(refuse_others(self.path / LOCK, self.path, doing, "choose another folder"))
            except OSError as error:
                raise self._not_writable(error) from None
            _held.add(key)
            stack.callback(_held.discard, key)
            for folder in (self.path, self.path / PREVIOUS):
                remove_stale(folder)
                remove_stale((folder / CHECKPOINT).parent)
            yield

    @contextlib.contextmanager
    def _created(self) -> Iterator[None]:
        """Create the folder; after the block, remove it again if it was new and is still empty."""
        is_new = not self.path.exists()
        if self.path.exists() and not self.path.is_dir():
            raise TagspreadError(f"{self.path} is a file; choose a folder for the run.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from None
        try:
            yield
        finally:
            if is_new:
                with contextlib.suppress(OSError):  # not empty: it holds a run now
                    self.path.rmdir()

    def check_idle(self) -> None:
        """Raise if another process holds the lock of the run."""
        if (os.path.realpath(self.path), threading.get_ident()) not in _held:
            check_unlocked(self.path / LOCK, self.path, "choose another folder")

    def check_free(self, overwrite: bool) -> None:
        """Raise if the folder holds a run that has begun (unless ``overwrite``) or files that belong to no run."""
        if self.path.exists() and not self.path.is_dir():
            raise TagspreadError(f"{self.path} is a file; choose a folder for the run.")
        if self.is_run:
            if not overwrite and self._has_begun:
                raise TagspreadError(
                    f"{self.path} holds another run; resume it (@resume), replace it (@overwrite) or choose another "
                    f"folder.{self.where_previous}",
                    resume=self._resume,
                    overwrite=True,
                )
            self._check_previous()
        elif self.path.is_dir() and any(self._foreign_entries()):
            raise TagspreadError(f"{self.path} holds files that do not belong to a run; choose a new or empty folder.")

    def _foreign_entries(self) -> Iterator[Path]:
        """Yield the entries of the folder that were not left by a killed start of a run."""
        for entry in self.path.iterdir():
            is_empty = entry == self.checkpoint.parent and all(is_temporary(file.name) for file in entry.iterdir())
            if entry.name != LOCK and not is_temporary(entry.name) and not is_empty:
                yield entry

    def _check_previous(self) -> None:
        """Raise if the subfolder ``previous`` holds files of the user under the names of run files."""
        previous = RunFolder(self.path / PREVIOUS)
        if not previous.is_run and any((previous.path / name).exists() for name in RUN_FILES):
            raise TagspreadError(
                f"{previous.path} holds files that do not belong to a run, but the old run would be kept there; move "
                "them elsewhere."
            )

    def create(self, overwrite: bool, bytes_needed: int) -> None:
        """Create the folder after checking that it is free, writable, and has enough disk space.

        A finished run in the folder is unchanged until :meth:`commit_start`; until then, files of the new run are
        written to a temporary folder.

        Args:
            overwrite: whether a run in the folder may be replaced.
            bytes_needed: disk space that the run needs.
        """
        self.check_free(overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            check_writable(self.path)
            free = shutil.disk_usage(self.path).free
            links = can_link(self.path)
        except OSError as error:
            raise self._not_writable(error) from None
        if self.is_finished and not links:  # the old run is copied to ``previous``
            old_files = (self.path / name for name in RUN_FILES)
            bytes_needed += sum(file.stat().st_size for file in old_files if file.is_file())
        if free < bytes_needed:
            raise TagspreadError(
                f"{self.path} has {free / 1e9:.1f} GB free but the run needs about {bytes_needed / 1e9:.1f} GB "
                f"for its checkpoints and models; free disk space or choose another folder.{self.where_previous}"
            )
        if self.is_run:
            try:
                self._staged = new_temporary_folder(self.path, "start")
            except OSError as error:
                raise self._not_writable(error) from None
            self.keeps_old_run = self.is_finished

    def commit_start(self) -> None:
        """Replace the old run by the files of the new run; call this just before writing the first checkpoint."""
        if self._staged is None:
            return
        try:
            if self.is_finished:
                self.forget_previous()
                try:
                    keep_copies(self.path, WRITE_ORDER, self.path / PREVIOUS)
                except BaseException:
                    self.forget_previous()
                    raise
                self._replaced = True
            # remove the checkpoint early, so that an incomplete old run is never resumed
            first = (MANIFEST, CHECKPOINT)
            remove_files(self.path, (*first, *(name for name in RUN_FILES if name not in (*first, CONFIG))))
            for name in (*(name for name in RUN_FILES if name != CONFIG), CONFIG):
                if (self._staged / name).exists():
                    move_into(self._staged / name, self.path / name)
        except OSError as error:
            raise self._not_writable(error) from None
        self._drop_staged()

    def _withdraw(self) -> None:
        """Undo a start that failed before the first checkpoint, and restore the old run."""
        self._drop_staged()
        if not self._replaced or self.checkpoint.exists():
            self.keeps_old_run = self.keeps_old_run and not self._replaced
            return
        previous = self.path / PREVIOUS
        with contextlib.suppress(OSError):  # if this fails too, the old run stays complete in ``previous``
            remove_files(self.path, (name for name in RUN_FILES if not (previous / name).exists()))
            try:
                keep_copies(previous, WRITE_ORDER, self.path)
            except TagspreadError:  # no hard links, and no disk space for copies
                for name in WRITE_ORDER:
                    if (previous / name).exists():
                        move_into(previous / name, self.path / name)
            self.forget_previous()
            self._replaced = False

    def _drop_staged(self) -> None:
        if self._staged is not None:
            remove_temporary(self._staged)
        self._staged = None

    def _not_writable(self, error: OSError) -> TagspreadError:
        return TagspreadError(f"{self.path} cannot be written to ({error.strerror}); choose another folder.")

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds a finished run."""
        return self.is_run and (self.path / MANIFEST).exists()

    @property
    def is_half_replaced(self) -> bool:
        """Whether a process was killed after removing the old run and before starting the new run."""
        previous = self.path / PREVIOUS
        if (self.path / MANIFEST).exists() or not (previous / MANIFEST).exists():
            return False
        with contextlib.suppress(OSError):
            return (self.path / CONFIG).read_bytes() == (previous / CONFIG).read_bytes()
        return False

    @property
    def _has_begun(self) -> bool:
        """Whether the run in the folder has results, and not only the settings written before its first checkpoint."""
        if self.is_half_replaced:
            return True
        return any((self.path / name).exists() for name in (CHECKPOINT, "log.jsonl", "metrics.json", MANIFEST))

    @property
    def where_previous(self) -> str:
        """Sentence for messages that names the folder of the replaced run, or "" if the run here is complete."""
        previous = self.path / PREVIOUS
        if (self.path / MANIFEST).exists() or not (previous / MANIFEST).exists():
            return ""
        return f" The run that it replaces is in {previous}."

    def check_resumable(self) -> None:
        """Raise if the folder holds only the remains of a run whose replacement had not started."""
        if self.is_half_replaced:
            raise TagspreadError(
                f"{self.path} cannot be resumed: its run was being replaced, and the new run had not started. Start "
                f"the new run again with @overwrite.{self.where_previous}",
                overwrite=True,
            )

    @property
    def _resume(self) -> Both:
        return Both("resume=True", f"--resume {self.path}")

    @property
    def is_run(self) -> bool:
        """Whether the folder has a config.json written by tagspread; other programs use the same file name."""
        try:
            found = parse_json((self.path / CONFIG).read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and "tagspread" in found

    def forget_previous(self) -> None:
        """Remove the files of the replaced run from ``previous``, and nothing else."""
        drop_previous(self.path, WRITE_ORDER)

    def write_json(self, name: str, values: Any) -> None:
        """Write a JSON file of the run."""
        write_json(self._place(name), values, remedy=self._remedy)

    def write_log(self, lines: list[dict[str, Any]]) -> None:
        """Write log.jsonl, one line per epoch; rewrite it completely, so that a resumed run repeats no epoch."""
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(self._place("log.jsonl"), text, remedy=self._remedy)
        with contextlib.suppress(OSError):  # it is large, and from now on the old run is not restored
            remove_files(self.path / PREVIOUS, [CHECKPOINT])

    def read_json(self, name: str, schema: Schema) -> JsonObject:
        """Read a JSON file of the run and validate it."""
        if not self.is_run:
            raise TagspreadError(f"{self.path} is not a run folder: it has no config.json written by tagspread.")
        try:
            return read_object(self._place(name), schema)
        except FileNotFoundError:
            raise TagspreadError(f"{self.path} is not a run folder: it has no {name}.") from None

    def write_model(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write the tensors of a model to a safetensors file."""
        write_tensors(self._place(name), tensors, remedy=self._remedy)

    def write_csv(self, name: str, header: Iterable[str], lines: Iterable[Iterable[object]]) -> None:
        """Write a CSV file row by row; file names that are not UTF-8 keep their bytes."""
        write_csv(self._place(name), header, lines, remedy=self._remedy)

    def _place(self, name: str) -> Path:
        """Return the path of a run file; it is in a temporary folder until the run has replaced the old run."""
        return (self._staged or self.path) / name

    @property
    def _remedy(self) -> Remedy:
        if self._staged is not None:
            return Remedy("free disk space and start again; the old run was not changed")
        if self._doing == CHOSEN:
            return Remedy("free disk space and run the command again; the run is unchanged")
        words = f"free disk space, then resume with @resume.{self.where_previous}"
        return Remedy(words.removesuffix("."), {"resume": self._resume})
