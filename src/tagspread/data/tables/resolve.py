r"""Match image names of a label table that do not exist with the files that they mean.

People write tables on other systems and by hand: ``holiday\IMG_1.jpg``, ``IMG_1`` without its suffix, ``img_1.JPG``.
Such a name is taken for the only file that it can mean; if it could mean several files, it stays as it is.
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.data.images.find import list_folder
from tagspread.data.images.paths import Paths, PathsWriter
from tagspread.data.tables.image_names import looks_like_image
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.notes import Note
from tagspread.errors import TagspreadError


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


def with_resolved_names(table: LabelTable, folder: Path, source: str) -> LabelTable:
    """Return the table with the names of existing files; rows of the same file are merged.

    Args:
        table: the table.
        folder: the folder that its names are relative to.
        source: the table, for messages.
    """
    if not isinstance(table.paths, Paths):
        return table
    names = table.paths.names
    resolved = resolve_names(names, folder, source)
    if not resolved.names:
        return replace(table, notes=(*table.notes, *resolved.notes))
    writer = PathsWriter()
    for row, name in enumerate(names):
        writer.add(resolved.names.get(row, name))
    first, y = writer.firsts(), table.y
    if first is not None:
        y = _merged(table, first, resolved.names, source)
    paths = writer.paths(folder)
    table = replace(table, paths=paths, y=y, notes=(*table.notes, *resolved.notes))
    return table if first is None else table.select(np.flatnonzero(first == np.arange(len(first))))


def _merged(table: LabelTable, first: np.ndarray, resolved: dict[int, str], source: str) -> np.ndarray:
    """Return the labels with those of rows that mean the same file merged into the first of them."""
    y, names = table.y.copy(), table.paths
    for later in np.flatnonzero(first != np.arange(len(first))).tolist():
        earlier = int(first[later])
        conflict = (y[later] >= 0) & (y[earlier] >= 0) & (y[later] != y[earlier])
        if table.unlisted < 0 and conflict.any():
            tags = [table.classes[k] for k in np.flatnonzero(conflict).tolist()]
            raise TagspreadError(
                f"{source} names one file twice, as {names[earlier].name!r} and {names[later].name!r} "
                f"({resolved.get(later) or resolved[earlier]}), with other labels of {', '.join(tags[:3])}; keep one "
                "row."
            )
        y[earlier] = np.maximum(y[later], y[earlier])
    return y


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
