"""Benchmark results: one JSON line per finished cell in ``results.jsonl``, and the planned cells in ``grid.json``."""

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
    """The results in the folder of a grid. An incomplete last line, left by a power failure, is ignored."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.file = self.folder / "results.jsonl"
        self.plan_file = self.folder / "grid.json"

    def read(self) -> list[Record]:
        """Return the newest record of each cell, in order of first occurrence; failures never replace results."""
        lines = self._bytes().split(b"\n")
        records: dict[str, Record] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record = _parsed(line)
            if record is not None:
                earlier = records.get(record["key"])
                if earlier is None or record["status"] == "done" or earlier["status"] != "done":
                    records[record["key"]] = record
            elif number < len(lines):  # only the last line can be incomplete
                raise TagspreadError(
                    f"{self.file} line {number} is not a result; delete the line, and its cell is run again."
                )
        return list(records.values())

    def append(self, record: Record) -> None:
        """Append a record and flush it to disk."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self.locked(), _writing(self.file):
            tail = self._bytes().rpartition(b"\n")[2]
            with self.file.open("ab") as file:
                if tail and _parsed(tail) is None:
                    file.truncate(file.seek(0, os.SEEK_END) - len(tail))
                elif tail:  # complete, but an editor removed the line break
                    line = b"\n" + line
                file.write(line)
                file.flush()
                os.fsync(file.fileno())

    def planned(self) -> list[Record]:
        """Return all cells requested in this folder, finished or not, in the present versions of their methods."""
        return [cell | {"key": key} for key, cell in self._plan()["cells"].items()]

    @property
    def data(self) -> str | None:
        """The digest of the grid's data, if it is recorded."""
        return self._plan().get("data")

    def plan(self, cells: Iterable[Record], data: str | None = None) -> None:
        """Record requested cells, so that tables can show missing ones, and the digest of the data."""
        requested = list(cells)
        now = versions(requested)
        with self.locked():
            earlier = [cell for cell in self.planned() if is_current(cell, now)]
            by_place = {place_of(cell): cell for cell in (*earlier, *requested)}
            plan = {"cells": {cell["key"]: cell for cell in by_place.values()}}
            digest = {} if data is None else {"data": data}
            write_file(self.plan_file, json.dumps(self._plan() | plan | digest, indent=1) + "\n")

    def _plan(self) -> JsonObject:
        try:
            plan: JsonObject = json.loads(self.plan_file.read_text(encoding="utf-8"))
            if not all(isinstance(cell, dict) for cell in plan["cells"].values()):
                raise TypeError("a cell is not a JSON object")
        except FileNotFoundError:
            return {"cells": {}}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = error if isinstance(error, OSError | ValueError) else "it was not written by tagspread bench"
            raise TagspreadError(f"{self.plan_file} cannot be read ({why}); delete it and run again.") from None
        return plan

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the results against other processes that work in the same folder."""
        with ExitStack() as held:
            with _writing(self.folder):
                held.enter_context(hold_lock(self.folder / LOCK))
            yield

    @property
    def is_truncated(self) -> bool:
        """Whether the last line is incomplete."""
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
    """Write a file atomically, and create its folder."""
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
