"""What a grid has found: one JSON line per cell in ``results.jsonl``, each on the disk before the next cell begins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tagspread.aliases import JsonObject
from tagspread.bench.records import Record, is_current, place_of, versions
from tagspread.errors import TagspreadError
from tagspread.files import LOCK, Remedy, hold_lock, write_text

OUT = Remedy("free disk space there or choose another --out")


class Results:
    """The results of a folder. A line that was being written when the power went out is dropped, and no other."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.file = self.folder / "results.jsonl"
        self.plan_file = self.folder / "grid.json"

    def read(self) -> list[Record]:
        """Return the newest record of each cell, in the order in which cells first came; what is done stays done."""
        lines = self._bytes().split(b"\n")
        records: dict[str, Record] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record = _parsed(line)
            if record is not None:
                before = records.get(record["key"])
                if before is None or record["status"] == "done" or before["status"] != "done":
                    records[record["key"]] = record  # the last counts, but a failure takes no figure back
            elif number < len(lines):  # only the last line can have been cut off
                raise TagspreadError(
                    f"{self.file} line {number} is not a result; take that line out, and its cell is run again."
                )
        return list(records.values())

    def append(self, record: Record) -> None:
        """Add a line in one motion, and wait until it is on the disk."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self.alone(), _writing(self.file):
            tail = self._bytes().rpartition(b"\n")[2]
            with self.file.open("ab") as file:
                if tail and _parsed(tail) is None:
                    file.truncate(file.seek(0, os.SEEK_END) - len(tail))
                elif tail:  # whole, but somebody's editor took its end
                    line = b"\n" + line
                file.write(line)
                file.flush()
                os.fsync(file.fileno())

    def planned(self) -> list[Record]:
        """Return the cells that were asked for in this folder, run or not, as their methods are by now."""
        return [cell | {"key": key} for key, cell in self._plan()["cells"].items()]

    @property
    def data(self) -> str | None:
        """The digest of the data that the cells are of, if it was written down."""
        return self._plan().get("data")

    def plan(self, cells: Iterable[Record], data: str | None = None) -> None:
        """Remember what was asked for, so that a missing cell can be shown as missing, and the digest of the data."""
        asked = list(cells)
        now = versions(asked)
        with self.alone():
            before = [cell for cell in self.planned() if is_current(cell, now)]
            known = {place_of(cell): cell for cell in (*before, *asked)}
            told = {"cells": {cell["key"]: cell for cell in known.values()}}
            digest = {} if data is None else {"data": data}
            write_file(self.plan_file, json.dumps(self._plan() | told | digest, indent=1) + "\n")

    def _plan(self) -> JsonObject:
        try:
            found = json.loads(self.plan_file.read_text(encoding="utf-8"))
            if not all(isinstance(cell, dict) for cell in found["cells"].values()):
                raise TypeError("a cell is no JSON object")
        except FileNotFoundError:
            return {"cells": {}}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = error if isinstance(error, OSError | ValueError) else "it is not what a grid writes"
            raise TagspreadError(f"{self.plan_file} cannot be read ({why}); delete it and call again.") from None
        plan: JsonObject = found
        return plan

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out that work on the same folder, where the system knows how to."""
        with ExitStack() as held:
            with _writing(self.folder):
                held.enter_context(hold_lock(self.folder / LOCK))
            yield

    @property
    def is_cut_off(self) -> bool:
        """Whether the last line was being written when the power went out."""
        tail = self._bytes().rpartition(b"\n")[2]
        return bool(tail) and _parsed(tail) is None

    def _bytes(self) -> bytes:
        try:
            return self.file.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise TagspreadError(f"{self.file} cannot be read ({error.strerror}); choose another --out.") from None


def write_file(file: Path, text: str) -> None:
    """Write a file in one motion: who looks meanwhile sees the old one or the new one."""
    with _writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text, remedy=OUT)


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TagspreadError(f"{file} cannot be written to ({error.strerror}); choose another --out.") from None


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and {"key", "status"} <= record.keys() else None
