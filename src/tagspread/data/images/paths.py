"""Names of files, and paths below one folder, kept in one buffer: millions of them need no object each."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

AT_ONCE = 65_536  # repeated names that are compared together: bounds the memory


def real_path(path: Path) -> str:
    """Return the path without symbolic links, as text; unlike ``Path.resolve``, a link that loops does not raise."""
    return os.path.realpath(path)


class RealPaths:
    """Computes :func:`real_path` of many paths, the part up to the file only once for each folder."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def __call__(self, path: Path) -> str:
        """Return the path without symbolic links, as text."""
        folder, name = os.path.split(path)
        if name in ("", ".", "..") or os.path.islink(path):  # noqa: PTH114  # 300,000 Path objects take seconds
            return real_path(path)
        if (real := self._folders.get(folder)) is None:
            real = self._folders[folder] = os.path.realpath(folder)
        return os.path.join(real, name)  # noqa: PTH118


class Names(Sequence[str]):
    """Immutable sequence of names, without one object per name."""

    def __init__(self, text: bytes | bytearray, ends: np.ndarray) -> None:
        self._text, self._ends = text, ends

    def __len__(self) -> int:
        return len(self._ends)

    def _name(self, row: int) -> str:
        return self._text[self._ends[row - 1] if row else 0 : self._ends[row]].decode("utf-8", "surrogatepass")

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        rows = range(len(self))[at]  # a range handles negative indices, steps and out-of-range errors
        return self._name(rows) if isinstance(rows, int) else tuple(map(self._name, rows))

    def __iter__(self) -> Iterator[str]:
        return map(self._name, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Names | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a hash would need every name

    def __repr__(self) -> str:
        return f"Names({len(self)})"

    def take(self, rows: np.ndarray) -> Names:
        """Return the names of some rows."""
        writer = PathsWriter()
        starts = np.concatenate([[0], self._ends[:-1]])
        for start, end in zip(starts[rows].tolist(), self._ends[rows].tolist(), strict=True):
            writer.add_bytes(self._text[start:end])
        return writer.names()


class Paths(Sequence[Path]):
    """Immutable sequence of paths below one folder, without one object per path.

    Attributes:
        folder: the folder.
        names: the paths relative to it, or absolute ones.
    """

    def __init__(self, folder: Path, names: Names) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, at: int) -> Path: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Path, ...]: ...

    def __getitem__(self, at: int | slice) -> Path | tuple[Path, ...]:
        if isinstance(at, slice):
            return tuple(self.folder / name for name in self.names[at])
        return self.folder / self.names[at]

    def __iter__(self) -> Iterator[Path]:
        return (self.folder / name for name in self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Paths | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a hash would need every path

    def __repr__(self) -> str:
        return f"Paths({len(self)} below {str(self.folder)!r})"

    def take(self, rows: np.ndarray) -> Paths:
        """Return the paths of some rows."""
        return Paths(self.folder, self.names.take(rows))


class PathsWriter:
    """Collects names and finds repeated ones, without one string per name."""

    def __init__(self) -> None:
        self._text, self._ends, self._hashes = bytearray(), array("Q"), array("q")

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, name: str) -> None:
        """Append one normalized name."""
        self.add_bytes(name.encode("utf-8", "surrogatepass"))

    def add_bytes(self, name: bytes | bytearray) -> None:
        """Append one encoded name."""
        self._text += name
        self._ends.append(len(self._text))
        self._hashes.append(hash(bytes(name)))

    def firsts(self) -> np.ndarray | None:
        """Return the index of the first occurrence of each name, or None if all names are unique."""
        hashes = np.frombuffer(self._hashes, np.int64)
        ordered = np.sort(hashes)
        twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if not len(twice):
            return None
        first, places = np.arange(len(hashes)), dict[bytes, int]()
        repeated = np.flatnonzero(np.isin(hashes, twice))
        for at in range(0, len(repeated), AT_ONCE):
            for row in repeated[at : at + AT_ONCE].tolist():  # compare names: different ones may share a hash
                name = bytes(self._text[self._ends[row - 1] if row else 0 : self._ends[row]])
                first[row] = places.setdefault(name, row)
        return first if (first != np.arange(len(first))).any() else None

    def names(self) -> Names:
        """Return the collected names; none can be added afterwards."""
        self._hashes = array("q")  # no longer needed; frees eight bytes per name
        return Names(self._text, np.frombuffer(self._ends, np.uint64).astype(np.int64))

    def paths(self, folder: Path) -> Paths:
        """Return the collected names as paths below ``folder``; none can be added afterwards."""
        return Paths(folder, self.names())
