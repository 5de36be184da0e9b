"""A million paths in little memory: names back to back in one buffer, made into ``Path`` when somebody asks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np


class Paths(Sequence[Path]):
    """Paths below one folder, to be used like a tuple, without keeping an object for each."""

    def __init__(self, folder: Path, names: bytes | bytearray, ends: np.ndarray) -> None:
        self._folder, self._names, self._ends = folder, names, ends

    def __len__(self) -> int:
        return len(self._ends)

    def _path(self, row: int) -> Path:
        name = self._names[self._ends[row - 1] if row else 0 : self._ends[row]]
        return self._folder / name.decode("utf-8", "surrogatepass")

    @overload
    def __getitem__(self, at: int) -> Path: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Path, ...]: ...

    def __getitem__(self, at: int | slice) -> Path | tuple[Path, ...]:
        rows = range(len(self))[at]  # a range knows about negative numbers, steps and what is out of range
        return self._path(rows) if isinstance(rows, int) else tuple(map(self._path, rows))

    def __iter__(self) -> Iterator[Path]:
        return map(self._path, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Paths | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # hashing would make every path

    def __repr__(self) -> str:
        return f"Paths({len(self)} below {str(self._folder)!r})"

    def take(self, rows: np.ndarray) -> Paths:
        """Return the paths of some rows."""
        writer = PathsWriter()
        starts = np.concatenate([[0], self._ends[:-1]])
        for start, end in zip(starts[rows].tolist(), self._ends[rows].tolist(), strict=True):
            writer.add_bytes(self._names[start:end])
        return writer.paths(self._folder)


class PathsWriter:
    """Collects names and says which of them came twice, without keeping a string for each."""

    def __init__(self) -> None:
        self._names, self._ends, self._hashes = bytearray(), array("I"), array("q")

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, name: str) -> None:
        """Append one name, already in its plain form."""
        self.add_bytes(name.encode("utf-8", "surrogatepass"))

    def add_bytes(self, name: bytes | bytearray) -> None:
        """Append one name that is encoded already."""
        self._names += name
        self._ends.append(len(self._names))
        self._hashes.append(hash(bytes(name)))

    def firsts(self) -> np.ndarray | None:
        """Return for each name the place where it came first; None if none came twice."""
        hashes = np.frombuffer(self._hashes, np.int64)
        ordered = np.sort(hashes)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(twice):
            return None
        first, places = np.arange(len(hashes)), dict[bytes, int]()
        for row in np.flatnonzero(np.isin(hashes, twice)).tolist():  # equal hashes may be chance; equal names are not
            name = bytes(self._names[self._ends[row - 1] if row else 0 : self._ends[row]])
            first[row] = places.setdefault(name, row)
        return first if (first != np.arange(len(first))).any() else None

    def paths(self, folder: Path) -> Paths:
        """Return what was collected, below ``folder``; nothing can be added after that."""
        self._hashes = array("q")  # no longer needed, and eight bytes a name
        return Paths(folder, self._names, np.frombuffer(self._ends, np.uint32))
