"""The run folder: what a run leaves behind, and the care not to lose anything that was there."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tagspread.errors import Both, TagspreadError

PREVIOUS = "previous"
OURS = (
    "config.json",
    "split.csv",
    "log.jsonl",
    "metrics.json",
    "labels.json",
    "model.safetensors",
    "ema.safetensors",
    "best.safetensors",
    "labeled_only.safetensors",
    "pseudo_labels.csv",
    "report.html",
    "checkpoint/state.safetensors",
    "checkpoint/state.writing",
)


class _Lines:
    """Ends the lines of a ``csv.writer`` with a line feed alone."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, line: str) -> None:
        self._file.write(line.removesuffix("\r\n") + "\n")


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint" / "state.safetensors"

    def check_free(self, overwrite: bool) -> None:
        """Raise if there is anything that a new run would disturb."""
        if self.path.exists() and not self.path.is_dir():
            raise TagspreadError(f"{self.path} is a file; give a folder for the run.")
        if self.path.is_dir() and any(self.path.iterdir()):
            if not self.is_run:
                raise TagspreadError(f"{self.path} holds files that are not of a run; give a new or empty folder.")
            if not overwrite:
                raise TagspreadError(
                    f"{self.path} holds another run; resume it (@resume), replace it (@overwrite) or give another "
                    "folder.",
                    resume=self._resume,
                    overwrite=True,
                )

    def create(self, overwrite: bool, bytes_needed: int) -> None:
        """Make the folder, found good before any work is done: ours alone, writable, with room enough."""
        self.check_free(overwrite)
        if self.is_run:
            self._set_aside()
        try:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_bytes(b"yes")
            probe.unlink()
        except OSError as error:
            raise TagspreadError(f"{self.path} cannot be written to ({error.strerror}); give another folder.") from None
        free = shutil.disk_usage(self.path).free
        if free < bytes_needed:
            raise TagspreadError(
                f"{self.path} has {free / 1e9:.1f} GB free but the run needs about {bytes_needed / 1e9:.1f} GB "
                "for its checkpoints and models; make room or give another folder."
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

    def _set_aside(self) -> None:
        """Move a finished run's files to ``previous`` until the new run is finished; remove an unfinished one's."""
        finished = (self.path / "labels.json").exists()
        if finished:
            self.forget_previous()
            (self.path / PREVIOUS).mkdir(exist_ok=True)
        for name in OURS:
            file = self.path / name
            if (
                finished and file.exists() and "/" not in name
            ):  # a checkpoint is large, and a finished run is not resumed
                file.replace(self.path / PREVIOUS / name)
            file.unlink(missing_ok=True)

    def forget_previous(self) -> None:
        """Remove the run that was there before, and nothing else."""
        for name in OURS:
            (self.path / PREVIOUS / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not there, or it holds something of the user's
            (self.path / PREVIOUS).rmdir()

    def write_json(self, name: str, values: Any) -> None:
        """Write a JSON file in one motion."""
        self._write(name, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def write_log(self, lines: list[dict[str, Any]]) -> None:
        """Write the log, one line per epoch; whole each time, so that a resumed run repeats no epoch."""
        self._write("log.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the run."""
        if not self.is_run:
            raise TagspreadError(f"{self.path} is not the folder of a run: it has no config.json of one.")
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TagspreadError(f"{self.path} is not the folder of a run: it has no {name}.") from None
        except json.JSONDecodeError as error:
            raise TagspreadError(f"{self.path / name} is damaged (line {error.lineno}: {error.msg}).") from None

    def write_model(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write a network's tensors."""
        fresh = self.path / (name + ".writing")
        try:
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, fresh)
            fresh.chmod(0o644)  # or nobody else could read it
            fresh.replace(self.path / name)
        except (OSError, SafetensorError) as error:
            fresh.unlink(missing_ok=True)
            raise self._not_written(name, error) from None

    def write_csv(self, name: str, header: Iterable[str], lines: Iterable[Iterable[object]]) -> None:
        """Write a table line by line, and put it in its place when it is whole; file names stay the bytes they are."""
        fresh = self.path / (name + ".writing")
        try:
            with fresh.open("w", newline="", encoding="utf-8", errors="surrogateescape") as opened:
                writer = csv.writer(_Lines(opened), lineterminator="\r\n")  # which quotes cells that hold either
                writer.writerow(header)
                writer.writerows(lines)
            fresh.replace(self.path / name)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise self._not_written(name, error) from None

    def _write(self, name: str, text: str) -> None:
        fresh = self.path / (name + ".writing")
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self.path / name)
        except OSError as error:
            raise self._not_written(name, error) from None

    def _not_written(self, name: str, error: Exception) -> TagspreadError:
        return TagspreadError(
            f"{self.path / name} could not be written ({error}); make room, then continue with @resume.",
            resume=self._resume,
        )
