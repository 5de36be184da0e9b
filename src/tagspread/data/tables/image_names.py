r"""Image names in label tables: recognize them, normalize them to paths, and match them with files.

People write tables on other systems and by hand: ``holiday\IMG_1.jpg``, ``IMG_1`` without its suffix, ``img_1.JPG``. A
name that does not exist is taken for the only file that it can mean; if it could mean several files, it stays as it is.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tagspread.data.images.find import list_folder
from tagspread.data.images.formats import IMAGE_SUFFIXES
from tagspread.data.tables.notes import Note, Source
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


class Resolved(NamedTuple):
    """Names of a table that mean a file with another name.

    Attributes:
        names: the name of the file, by row.
        notes: what was matched, and which names could mean several files.
    """

    names: dict[int, str]
    notes: tuple[Note, ...]


def resolve_names(names: Sequence[str], folder: Path, source: str) -> Resolved:
    """Return the files that the names mean, for those that do not exist below the folder.

    Args:
        names: image names, relative to the folder.
        folder: the folder.
        source: the table, for messages.
    """
    top = os.fspath(folder)
    missing = {row: name for row, name in enumerate(names) if not _is_file(top, name)}
    if not missing or not folder.is_dir():
        return Resolved({}, ())
    try:
        listing = list_folder(folder)
    except TagspreadError:  # whoever lists the images reports it
        return Resolved({}, ())
    wanted = {_key(name) for name in missing.values()}
    by_key: dict[str, list[str]] = defaultdict(list)
    by_stem: dict[str, list[str]] = defaultdict(list)
    for files in (listing.images, listing.undecodable):
        for file in files.names:
            if (key := _key(file)) in wanted:
                by_key[key].append(file)
            if (stem := os.path.splitext(key)[0]) in wanted:  # noqa: PTH122  # no Path object per file
                by_stem[stem].append(file)
    resolved: dict[int, str] = {}
    ambiguous: dict[str, list[str]] = {}
    for row, name in missing.items():
        files_meant = by_key.get(_key(name), [])
        if not files_meant and not looks_like_image(name):
            files_meant = by_stem.get(_key(name), [])
        exact = [file for file in files_meant if file == name.replace("\\", "/")]
        if len(files_meant) == 1 or exact:
            resolved[row] = (exact or files_meant)[0]
        elif files_meant:
            ambiguous[name] = files_meant
    return Resolved(resolved, tuple(_notes(names, resolved, ambiguous, source)))


def _is_file(top: str, name: str) -> bool:
    try:
        return os.path.isfile(os.path.join(top, name))  # noqa: PTH113, PTH118  # no Path object per row
    except ValueError:  # a name with a null character
        return False


def _key(name: str) -> str:
    r"""Return a name as it is compared: with slashes, in lower case, with composed letters (macOS splits them).

    >>> _key("Holiday\\IMG_1.JPG")
    'holiday/img_1.jpg'
    """
    return unicodedata.normalize("NFC", name.replace("\\", "/")).casefold()


def _notes(names: Sequence[str], resolved: dict[int, str], ambiguous: dict[str, list[str]], source: str) -> list[Note]:
    notes = []
    if resolved:
        are = "name of" if len(resolved) == 1 else "names in"
        text = (
            f"{len(resolved):,} {are} {source} {'differs' if len(resolved) == 1 else 'differ'} from the file in "
            "separator, case or suffix; the only file that matches is used"
        )
        places = tuple(f"{names[row]} is {file}" for row, file in resolved.items())
        notes.append(Note("note", "names", text, places))
    if ambiguous:
        text = f"{len(ambiguous):,} {'name' if len(ambiguous) == 1 else 'names'} in {source} could mean several files"
        places = tuple(f"{name} ({' or '.join(files[:3])})" for name, files in ambiguous.items())
        notes.append(Note("warning", "ambiguous_names", text, places))
    return notes
