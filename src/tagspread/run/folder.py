"""The run folder: what a run leaves behind, and the care not to lose anything that was there.

Whoever trains into a folder holds its lock. A run is finished when its ``labels.json`` is there, which is written last
and knows the SHA-256 of the other files. A run that replaces a finished one (``--overwrite``) goes through these
states; after a kill in any of them the same command works:

1. The new run's first files are in a temporary folder; the old run is whole and answers.
2. All files of the old run have second names in ``previous``, its ``labels.json`` last.
3. The old ``labels.json`` is removed, then the old run's other files; its ``config.json`` stays, by which this state is
   known (:attr:`RunFolder.is_half_replaced`).
4. The new run's first files are moved in, ``config.json`` last, and the first checkpoint is written: the new run has
   started. If that fails, the old run is put back.
5. The new run is finished: ``previous`` is removed.
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

CONFIG, MANIFEST, CHECKPOINT = "config.json", "labels.json", "checkpoint/state.safetensors"
OURS = (
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
IN_ORDER = (CONFIG, *(name for name in OURS if name not in (CONFIG, MANIFEST)), MANIFEST)  # as they are written
# whose digests the manifest has; config.json, which may be told where images are now, has an id in common with it
BELONG = tuple(name for name in OURS if name not in (CONFIG, MANIFEST, "report.html", CHECKPOINT))
TRAINED, CHOSEN = "is being trained", "is having its thresholds chosen"
_held: set[tuple[str, int]] = set()  # folders whose lock a thread of this process holds


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / CHECKPOINT
        self.keeps_old_run = False  # whether a run that was to be replaced is still there, or there again
        self._staged: Path | None = None  # where the first files of a run are that is to replace another
        self._replaced = False  # whether the old run was moved away by this object

    @contextlib.contextmanager
    def locked(self, doing: str = TRAINED) -> Iterator[None]:
        """Keep other processes from changing the run; raise at once if one is at it.

        A run that was to be replaced is put back if the block raises before the new one's first checkpoint.

        Args:
            doing: what is done to the run, for those who are refused.
        """
        with self._locked(doing):
            try:
                yield
            except BaseException:
                self._withdraw()
                raise

    @contextlib.contextmanager
    def _locked(self, doing: str) -> Iterator[None]:
        mine = (os.path.realpath(self.path), threading.get_ident())
        if mine in _held:  # ts.train holds it around all that run_training does
            yield
            return
        with self._there(), contextlib.ExitStack() as stack:
            try:
                stack.enter_context(refuse_others(self.path / LOCK, self.path, doing, "give another folder"))
            except OSError as error:
                raise self._not_writable(error) from None
            _held.add(mine)
            stack.callback(_held.discard, mine)
            for folder in (self.path, self.path / PREVIOUS):
                remove_stale(folder)
                remove_stale((folder / CHECKPOINT).parent)
            yield

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        """Make the folder; if nothing came of it, it goes again."""
        missing = not self.path.exists()
        if self.path.exists() and not self.path.is_dir():
            raise TagspreadError(f"{self.path} is a file; give a folder for the run.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from None
        try:
            yield
        finally:
            if missing:
                with contextlib.suppress(OSError):  # it holds a run by now
                    self.path.rmdir()

    def check_idle(self) -> None:
        """Raise if another process is changing the run."""
        if (os.path.realpath(self.path), threading.get_ident()) not in _held:
            check_unlocked(self.path / LOCK, self.path, "give another folder")

    def check_free(self, overwrite: bool) -> None:
        """Raise if there is anything that a new run would disturb; a run that never started is nothing of the kind."""
        if self.path.exists() and not self.path.is_dir():
            raise TagspreadError(f"{self.path} is a file; give a folder for the run.")
        if self.is_run:
            if not overwrite and self._has_begun:
                raise TagspreadError(
                    f"{self.path} holds another run; resume it (@resume), replace it (@overwrite) or give another "
                    f"folder.{self.where_previous}",
                    resume=self._resume,
                    overwrite=True,
                )
            self._check_previous()
        elif self.path.is_dir() and any(self._strangers()):
            raise TagspreadError(f"{self.path} holds files that are not of a run; give a new or empty folder.")

    def _strangers(self) -> Iterator[Path]:
        """Yield what is in the folder and was not left by a start that was killed."""
        for entry in self.path.iterdir():
            empty = entry == self.checkpoint.parent and all(is_temporary(file.name) for file in entry.iterdir())
            if entry.name != LOCK and not is_temporary(entry.name) and not empty:
                yield entry

    def _check_previous(self) -> None:
        """Raise if files of the user are where the old run is to be kept."""
        before = RunFolder(self.path / PREVIOUS)
        if not before.is_run and any((before.path / name).exists() for name in OURS):
            raise TagspreadError(
                f"{before.path} holds files that are not of a run, where the run to replace would be kept; move them."
            )

    def create(self, overwrite: bool, bytes_needed: int) -> None:
        """Make the folder, found good before any work is done: ours alone, writable, with room enough.

        A finished run in it stays as it is until :meth:`commit_start`; what is written until then is kept apart.
        """
        self.check_free(overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            check_writable(self.path)
            free = shutil.disk_usage(self.path).free
            links = can_link(self.path)
        except OSError as error:
            raise self._not_writable(error) from None
        if self.is_finished and not links:  # the old run is copied
            there = (self.path / name for name in OURS)
            bytes_needed += sum(file.stat().st_size for file in there if file.is_file())
        if free < bytes_needed:
            raise TagspreadError(
                f"{self.path} has {free / 1e9:.1f} GB free but the run needs about {bytes_needed / 1e9:.1f} GB "
                f"for its checkpoints and models; make room or give another folder.{self.where_previous}"
            )
        if self.is_run:
            try:
                self._staged = new_temporary_folder(self.path, "start")
            except OSError as error:
                raise self._not_writable(error) from None
            self.keeps_old_run = self.is_finished

    def commit_start(self) -> None:
        """Let the new run take the place of the one that was there; the next to be written is its first checkpoint."""
        if self._staged is None:
            return
        try:
            if self.is_finished:
                self.forget_previous()
                try:
                    keep_copies(self.path, IN_ORDER, self.path / PREVIOUS)
                except BaseException:
                    self.forget_previous()
                    raise
                self._replaced = True
            # the checkpoint goes early: nothing resumes from a run of which a part is missing
            first = (MANIFEST, CHECKPOINT)
            remove_files(self.path, (*first, *(name for name in OURS if name not in (*first, CONFIG))))
            for name in (*(name for name in OURS if name != CONFIG), CONFIG):
                if (self._staged / name).exists():
                    move_into(self._staged / name, self.path / name)
        except OSError as error:
            raise self._not_writable(error) from None
        self._drop_staged()

    def _withdraw(self) -> None:
        """Undo a start that failed before its first checkpoint."""
        self._drop_staged()
        if not self._replaced or self.checkpoint.exists():
            self.keeps_old_run = self.keeps_old_run and not self._replaced
            return
        previous = self.path / PREVIOUS
        with contextlib.suppress(OSError):  # if that fails, too, the old run is whole where it is
            remove_files(self.path, (name for name in OURS if not (previous / name).exists()))
            try:
                keep_copies(previous, IN_ORDER, self.path)
            except TagspreadError:  # no links, and no room for copies
                for name in IN_ORDER:
                    if (previous / name).exists():
                        move_into(previous / name, self.path / name)
            self.forget_previous()
            self._replaced = False

    def _drop_staged(self) -> None:
        if self._staged is not None:
            remove_temporary(self._staged)
        self._staged = None

    def _not_writable(self, error: OSError) -> TagspreadError:
        return TagspreadError(f"{self.path} cannot be written to ({error.strerror}); give another folder.")

    @property
    def is_finished(self) -> bool:
        """Whether a run has ended in this folder."""
        return self.is_run and (self.path / MANIFEST).exists()

    @property
    def is_half_replaced(self) -> bool:
        """Whether a process was killed between removing a run and starting the one that was to replace it."""
        before = self.path / PREVIOUS
        if (self.path / MANIFEST).exists() or not (before / MANIFEST).exists():
            return False
        with contextlib.suppress(OSError):
            return (self.path / CONFIG).read_bytes() == (before / CONFIG).read_bytes()
        return False

    @property
    def _has_begun(self) -> bool:
        """Whether there is more than the settings of a run that was stopped before its first checkpoint."""
        if self.is_half_replaced:
            return True
        return any((self.path / name).exists() for name in (CHECKPOINT, "log.jsonl", "metrics.json", MANIFEST))

    @property
    def where_previous(self) -> str:
        """A sentence that says where the run is that this one replaces; nothing if there is none, or no need."""
        before = self.path / PREVIOUS
        if (self.path / MANIFEST).exists() or not (before / MANIFEST).exists():
            return ""
        return f" The run that it replaces is in {before}."

    def check_resumable(self) -> None:
        """Raise if what is there is what remains of a run that was being replaced."""
        if self.is_half_replaced:
            raise TagspreadError(
                f"{self.path} cannot be resumed: its run was being replaced, and the new one had not started. Start "
                f"that again with @overwrite.{self.where_previous}",
                overwrite=True,
            )

    @property
    def _resume(self) -> Both:
        return Both("resume=True", f"--resume {self.path}")

    @property
    def is_run(self) -> bool:
        """Whether the folder's config.json was written by a run; other programs write files of that name, too."""
        try:
            return "tagspread" in json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError):
            return False

    def forget_previous(self) -> None:
        """Remove the run that was there before, and nothing else."""
        drop_previous(self.path, IN_ORDER)

    def write_json(self, name: str, values: Any) -> None:
        """Write a JSON file."""
        write_json(self._place(name), values, remedy=self._remedy)

    def write_log(self, lines: list[dict[str, Any]]) -> None:
        """Write the log, one line per epoch; whole each time, so that a resumed run repeats no epoch."""
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(self._place("log.jsonl"), text, remedy=self._remedy)
        with contextlib.suppress(OSError):  # large, and from here on the run that is replaced is not put back
            remove_files(self.path / PREVIOUS, [CHECKPOINT])

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the run."""
        if not self.is_run:
            raise TagspreadError(f"{self.path} is not the folder of a run: it has no config.json of one.")
        try:
            return json.loads(self._place(name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TagspreadError(f"{self.path} is not the folder of a run: it has no {name}.") from None
        except json.JSONDecodeError as error:
            raise TagspreadError(f"{self.path / name} is damaged (line {error.lineno}: {error.msg}).") from None

    def write_model(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write a network's tensors."""
        write_tensors(self._place(name), tensors, remedy=self._remedy)

    def write_csv(self, name: str, header: Iterable[str], lines: Iterable[Iterable[object]]) -> None:
        """Write a table line by line; file names stay the bytes they are."""
        write_csv(self._place(name), header, lines, remedy=self._remedy)

    def _place(self, name: str) -> Path:
        """Return where a file is read and written: apart, as long as the run has not replaced the one before it."""
        return (self._staged or self.path) / name

    @property
    def _remedy(self) -> Remedy:
        if self._staged is not None:
            return Remedy("make room and start again; the run that is there was not changed")
        return Remedy(
            f"make room, then resume with @resume.{self.where_previous}".removesuffix("."), {"resume": self._resume}
        )
