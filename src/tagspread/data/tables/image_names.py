"""Image names in label tables: recognize them, and normalize them to paths."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tagspread.data.images.formats import IMAGE_SUFFIXES
from tagspread.errors import TagspreadError

UNUSUAL = re.compile(r"(?:^|[\\/])\.\.(?:[\\/]|$)|^[\\/]|^.:[\\/]|(?:^|/)\.?(?:/|$)|\0")
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^/]")  # also "https:/", as a path is written that was one
OUTSIDE = re.compile(r"(?:^|[\\/])\.\.(?:[\\/]|$)|^[\\/]|^.:[\\/]")


def looks_like_image(cell: str) -> bool:
    """Return whether a cell is the name of an image file.

    >>> looks_like_image("Beach 1.JPG"), looks_like_image("tags")
    (True, False)
    """
    return PurePosixPath(cell.strip()).suffix.lower() in IMAGE_SUFFIXES


def refuse_address(name: str, where: str) -> None:
    """Raise if the name of an image is a web address.

    >>> refuse_address("https.jpg", "labels.csv line 2")
    """
    if ADDRESS.match(name.strip()):
        raise TagspreadError(
            f"{where} names the web address {name.strip()!r}, which is not supported; download the images first, and "
            "name the files."
        )


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
        refuse_address(name, self._source.at(number))
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
