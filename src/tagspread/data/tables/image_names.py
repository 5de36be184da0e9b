"""Image names in label tables: recognize them, normalize them to paths, and keep millions of paths in one buffer."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, overload

import numpy as np

from tagspread.data.images.find import SUFFIXES
from tagspread.errors import TagspreadError

UNUSUAL = re.compile(r"(?:^|[\\/])\.\.(?:[\\/]|$)|^[\\/]|^.:[\\/]|(?:^|/)\.?(?:/|$)|\0")
OUTSIDE = re.compile(r"(?:^|[\\/])\.\.(?:[\\/]|$)|^[\\/]|^.:[\\/]")


def looks_like_image(cell: str) -> bool:
    """Return whether a cell is the name of an image file.

    >>> looks_like_image("Beach 1.JPG"), looks_like_image("tags")
    (True, False)
    """
    return PurePosixPath(cell.strip()).suffix.lower() in SUFFIXES


class Source(NamedTuple):
    """The origin of rows, for messages: a name such as ``labels.csv`` and a unit such as ``line``."""

    name: str
    unit: str

    def at(self, number: int) -> str:
        """Return the place of one row, for messages.

        >>> Source("labels.csv", "line").at(7)
        'labels.csv line 7'
        """
        return f"{self.name} {self.unit} {number}"


class NameRule:
    """Normalizes image names to paths relative to the folder."""

    def __init__(self, folder: Path, source: Source, allow_outside: bool) -> None:
        self._source, self._allow_outside = source, allow_outside
        self._top = os.path.join(os.path.abspath(folder), "")  # noqa: PTH100, PTH118  # not resolved: keep symbolic links

    def __call__(self, cell: str, number: int) -> str:
        """Return the normalized name; raise if it is empty or outside the folder."""
        name = cell.strip()
        if name and not UNUSUAL.search(name):
            return name  # the usual case, fast: no Path object per name
        if name.startswith(self._top):
            name = name[len(self._top) :]
        if "\0" in name:
            raise TagspreadError(
                f"{self._source.at(number)} names {name!r}, which is not a valid file name; correct it."
            )
        if OUTSIDE.search(name) and not self._allow_outside:
            raise TagspreadError(
                f"{self._source.at(number)} names {name!r}, which is outside the image folder {self._top}; "
                "write paths relative to that folder, or allow others with @allow_outside.",
                allow_outside=True,
            )
        name = str(Path(name)) if name else ""
        if name in ("", "."):
            raise TagspreadError(f"{self._source.at(number)} names no image; write its path there.")
        return name


class Paths(Sequence[Path]):
    """Immutable sequence of paths below one folder, without one object per path."""

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
        rows = range(len(self))[at]  # a range handles negative indices, steps and out-of-range errors
        return self._path(rows) if isinstance(rows, int) else tuple(map(self._path, rows))

    def __iter__(self) -> Iterator[Path]:
        return map(self._path, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Paths | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a hash would need every path

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
    """Collects names and finds repeated ones, without one string per name."""

    def __init__(self) -> None:
        self._names, self._ends, self._hashes = bytearray(), array("I"), array("q")

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, name: str) -> None:
        """Append one normalized name."""
        self.add_bytes(name.encode("utf-8", "surrogatepass"))

    def add_bytes(self, name: bytes | bytearray) -> None:
        """Append one encoded name."""
        self._names += name
        self._ends.append(len(self._names))
        self._hashes.append(hash(bytes(name)))

    def firsts(self) -> np.ndarray | None:
        """Return the index of the first occurrence of each name, or None if all names are unique."""
        hashes = np.frombuffer(self._hashes, np.int64)
        ordered = np.sort(hashes)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(twice):
            return None
        first, places = np.arange(len(hashes)), dict[bytes, int]()
        for row in np.flatnonzero(np.isin(hashes, twice)).tolist():  # compare names: different ones may share a hash
            name = bytes(self._names[self._ends[row - 1] if row else 0 : self._ends[row]])
            first[row] = places.setdefault(name, row)
        return first if (first != np.arange(len(first))).any() else None

    def paths(self, folder: Path) -> Paths:
        """Return the collected paths below ``folder``; no names can be added afterwards."""
        self._hashes = array("q")  # no longer needed; frees eight bytes per name
        return Paths(folder, self._names, np.frombuffer(self._ends, np.uint32))
