"""Names of images in label files: recognize them, and turn them into plain paths below the images' folder."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tagspread.data.images.find import SUFFIXES
from tagspread.errors import TagspreadError

ODD = re.compile(r"(?:^|[\\/])\.\.(?:[\\/]|$)|^[\\/]|^.:[\\/]|(?:^|/)\.?(?:/|$)|\0")
LEAVES = re.compile(r"(?:^|[\\/])\.\.(?:[\\/]|$)|^[\\/]|^.:[\\/]")


def looks_like_image(cell: str) -> bool:
    """Return whether this is the name of an image file.

    >>> looks_like_image("Beach 1.JPG"), looks_like_image("tags")
    (True, False)
    """
    return PurePosixPath(cell.strip()).suffix.lower() in SUFFIXES


class Source(NamedTuple):
    """Where rows come from, in words for messages: ``labels.csv`` and ``line``."""

    name: str
    unit: str

    def at(self, number: int) -> str:
        """Return words for one row.

        >>> Source("labels.csv", "line").at(7)
        'labels.csv line 7'
        """
        return f"{self.name} {self.unit} {number}"


class NameRule:
    """Turns what a file calls an image into its plain form, relative to the folder."""

    def __init__(self, folder: Path, source: Source, allow_outside: bool) -> None:
        self._source, self._allow_outside = source, allow_outside
        self._top = os.path.join(os.path.abspath(folder), "")  # noqa: PTH100, PTH118  # not resolved: links may be meant

    def __call__(self, cell: str, number: int) -> str:
        """Return the name; raise if there is none, or if it leads out of the folder."""
        name = cell.strip()
        if name and not ODD.search(name):
            return name  # nearly all: a million names must not become a million Path objects
        if name.startswith(self._top):
            name = name[len(self._top) :]
        if "\0" in name:
            raise TagspreadError(f"{self._source.at(number)} names {name!r}, which no file can be called.")
        if LEAVES.search(name) and not self._allow_outside:
            raise TagspreadError(
                f"{self._source.at(number)} names {name!r}, which leads out of the images' folder {self._top}; "
                "write paths relative to that folder, or allow others with @allow_outside.",
                allow_outside=True,
            )
        name = str(Path(name)) if name else ""
        if name in ("", "."):
            raise TagspreadError(f"{self._source.at(number)} names no image.")
        return name
