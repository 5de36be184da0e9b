"""Which images are meant: a folder, files, or a list of them in a text or CSV file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tagspread.data.images.find import find_images
from tagspread.data.tables.delimited import separator_of
from tagspread.data.tables.image_names import looks_like_image
from tagspread.errors import TagspreadError

LINES = (".txt", ".lst")  # a path per line
LISTS = (*LINES, ".csv", ".tsv")


class Sources(NamedTuple):
    """Images to tag: the files, and what to call them in a table."""

    names: list[str]
    paths: list[Path]


def find_sources(given: Sequence[Path]) -> Sources:
    """Return all images meant, in the order given.

    Images of one folder are called by their path within it, as in a table of labels; those of a list as they are
    written there; others as they are given. Paths in a list start from the folder that the list is in. What is named
    here must be there; a image of a list or a folder that cannot be read is a row with its error.
    """
    names: list[str] = []
    paths: list[Path] = []
    for one in given:
        if one.is_dir():
            found = find_images(one)
            names += [(path.relative_to(one) if len(given) == 1 else path).as_posix() for path in found]
            paths += found
        elif one.suffix.lower() in LISTS:
            listed = _listed(one)
            names += listed
            paths += [one.parent / name for name in listed]
        elif one.exists():
            names.append(str(one))
            paths.append(one)
        else:
            raise TagspreadError(f"there is no folder or file {one}; give images, a folder or a list of them.")
    if not paths:
        raise TagspreadError(f"{', '.join(map(str, given))} holds no image.")
    return Sources(names, paths)


def _listed(file: Path) -> list[str]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            if file.suffix.lower() in LINES:
                return [line.strip() for line in opened if line.strip()]
            rows = [row for row in csv.reader(opened, delimiter=separator_of(file), strict=True) if any(row)]
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {file}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TagspreadError(f"{file} cannot be read as a list of images ({error}).") from None
    width = max(map(len, rows), default=0)
    column = next((k for k in range(width) if 2 * _images(rows, k) > len(rows[1:])), None)
    if column is None:
        raise TagspreadError(f"{file} has no column that names images; write one path per line.")
    named = [row[column].strip() for row in rows if len(row) > column]
    return [name for at, name in enumerate(named) if name and (at or looks_like_image(name))]  # without the header


def _images(rows: list[list[str]], column: int) -> int:
    return sum(len(row) > column and looks_like_image(row[column]) for row in rows)
