"""Find the images to predict on: a folder, files, or a list of paths in a text or CSV file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tagspread.data.images.find import list_folder
from tagspread.data.images.paths import Names, Paths, PathsWriter
from tagspread.data.tables.image_names import looks_like_image, refuse_address
from tagspread.data.tables.read import separator_of
from tagspread.errors import TagspreadError
from tagspread.files import refuse_special

LINES = (".txt", ".lst")  # a path per line
LISTS = (*LINES, ".csv", ".tsv")


class Sources(NamedTuple):
    """Images to predict on: their files, their names in the table of predictions, and notes on what is left out."""

    names: Names
    paths: Paths
    notes: tuple[str, ...] = ()


def find_sources(given: Sequence[Path]) -> Sources:
    """Return all images of folders, files and lists, in the given order.

    Images of a single folder are named by their path relative to it, as in a label table; images of a list by their
    text in the list; others by the given path. Paths in a list are relative to the list's folder. A given path must
    exist. An image that is in a list or a folder and cannot be read becomes a row with its error.
    """
    if len(given) == 1 and given[0].is_dir():
        listing = list_folder(given[0])
        return _checked(Sources(listing.images.names, listing.images, tuple(listing.notes())), given)
    names, paths = PathsWriter(), PathsWriter()
    notes: list[str] = []
    for path in given:
        if path.is_dir():
            listing = list_folder(path)
            notes += listing.notes()
            for file in listing.images:
                names.add(file.as_posix())
                paths.add(str(file))
        elif path.suffix.lower() in LISTS:
            for name in _listed(path):
                names.add(name)
                paths.add(str(path.parent / name))
        elif path.exists():
            names.add(str(path))
            paths.add(str(path))
        else:
            refuse_address(str(path), "the command line")
            raise TagspreadError(f"there is no folder or file {path}; give images, a folder or a list of images.")
    return _checked(Sources(names.names(), paths.paths(Path()), tuple(notes)), given)


def _checked(sources: Sources, given: Sequence[Path]) -> Sources:
    if not sources.paths:
        why = f" ({'; '.join(sources.notes)})" if sources.notes else ""
        raise TagspreadError(
            f"{', '.join(map(str, given))} holds no image{why}; give a folder, files or a list with images."
        )
    return sources


def _listed(file: Path) -> list[str]:
    refuse_special(file)
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            if file.suffix.lower() in LINES:
                lines = [line.strip() for line in opened if line.strip()]
                for number, line in enumerate(lines, 1):
                    refuse_address(line, f"{file} line {number}")
                return lines
            rows = [row for row in csv.reader(opened, delimiter=separator_of(file), strict=True) if any(row)]
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {file}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TagspreadError(f"{file} cannot be read as a list of images ({error}).") from None
    width = max(map(len, rows), default=0)
    column = next((k for k in range(width) if 2 * _count_images(rows, k) > len(rows[1:])), None)
    if column is None:
        raise TagspreadError(f"{file} has no column of image paths; write one path per line.")
    names = [row[column].strip() for row in rows if len(row) > column]
    for number, name in enumerate(names, 1):
        refuse_address(name, f"{file} row {number}")
    return [name for at, name in enumerate(names) if name and (at or looks_like_image(name))]  # without the header


def _count_images(rows: list[list[str]], column: int) -> int:
    return sum(len(row) > column and looks_like_image(row[column]) for row in rows)
