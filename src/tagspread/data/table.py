"""Labels from a table: which picture carries which tags, and what nobody has looked at.

Two shapes are read. Long: one column with the picture, one with its tags (``beach.jpg,sea|sand``); a tag that is not
listed is absent. Wide: one column with the picture, one per tag, 1, 0 or blank for unknown.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tagspread.errors import TagspreadError, did_you_mean

TAG_COLUMNS = ("tags", "labels", "tag", "label")
VALUES = {"1": 1, "0": 0, "": -1, "-1": -1, "1.0": 1, "0.0": 0}


@dataclass(frozen=True)
class LabelTable:
    """Pictures, classes and a matrix of 1, 0 and -1 (unknown)."""

    paths: tuple[Path, ...]
    classes: tuple[str, ...]
    y: np.ndarray

    def aligned(self, classes: tuple[str, ...], source: str) -> np.ndarray:
        """Return the matrix with the columns of another table; a class it does not have is unknown."""
        if foreign := [name for name in self.classes if name not in classes]:
            close = did_you_mean(foreign[0], classes)
            raise TagspreadError(f"{source} has the tag {foreign[0]!r}, which the training labels do not.{close}")
        columns = [self.y[:, self.classes.index(c)] if c in self.classes else np.full(len(self.y), -1) for c in classes]
        return np.stack(columns, axis=1).astype(np.int8)


def read_table(file: str | Path, images: str | Path, delimiter: str = "|") -> LabelTable:
    """Read a CSV file of labels; paths in it are relative to ``images``.

    Args:
        file: the table, with a header line.
        images: the folder the paths start from.
        delimiter: what separates tags in the long shape.
    """
    source = Path(file)
    try:
        with source.open(newline="", encoding="utf-8-sig") as opened:
            lines = [row for row in csv.reader(opened) if row]
    except FileNotFoundError:
        raise TagspreadError(f"--labels: there is no file {source}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TagspreadError(f"--labels: {source} is not a CSV file in UTF-8 ({error}).") from None
    if len(lines) < 2:
        raise TagspreadError(f"--labels: {source} has no rows below its header line.")
    header, rows = [cell.strip() for cell in lines[0]], lines[1:]
    if len(header) < 2:
        raise TagspreadError(f"--labels: {source} has one column; give the picture and its tags, separated by commas.")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise TagspreadError(f"--labels: {source} line {number} has {len(row)} cells, its header {len(header)}.")
    paths = tuple(Path(images) / row[0].strip() for row in rows)
    if len(header) == 2 and header[1].lower() in TAG_COLUMNS:
        tags = [[tag.strip() for tag in row[1].split(delimiter) if tag.strip()] for row in rows]
        classes = tuple(sorted({tag for some in tags for tag in some}))
        y = np.array([[name in some for name in classes] for some in tags], dtype=np.int8).reshape(len(rows), -1)
    else:
        classes = tuple(header[1:])
        y = np.array([_wide_row(row, number, source, classes) for number, row in enumerate(rows, start=2)], np.int8)
    if not classes:
        raise TagspreadError(f"--labels: {source} names no tag at all.")
    return LabelTable(paths, classes, y)


def _wide_row(row: list[str], number: int, source: Path, classes: tuple[str, ...]) -> list[int]:
    for name, cell in zip(classes, row[1:], strict=True):
        if cell.strip() not in VALUES:
            raise TagspreadError(
                f"--labels: {source} line {number}, column {name!r} holds {cell!r}; write 1, 0 or nothing (unknown). "
                f"For a list of tags per picture, call the column one of {', '.join(TAG_COLUMNS)}."
            )
    return [VALUES[cell.strip()] for cell in row[1:]]
