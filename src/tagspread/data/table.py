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
    unlisted: int = -1  # what a class without a column is: unknown, or absent where rows list all their tags

    def aligned(self, classes: tuple[str, ...], source: str) -> np.ndarray:
        """Return the matrix with the columns of another table."""
        if foreign := [name for name in self.classes if name not in classes]:
            close = did_you_mean(foreign[0], classes)
            raise TagspreadError(f"{source} has the tag {foreign[0]!r}, which the training labels do not.{close}")
        y = np.full((len(self.y), len(classes)), self.unlisted, dtype=np.int8)
        y[:, [classes.index(name) for name in self.classes]] = self.y
        return y


def read_table(file: str | Path, images: str | Path, delimiter: str = "|") -> LabelTable:
    """Read a CSV file of labels; paths in it are relative to ``images``.

    Args:
        file: the table, with a header line.
        images: the folder the paths start from.
        delimiter: what separates tags in the long shape.
    """
    source = Path(file)
    lines = _read(source)
    if len(lines) < 2:
        raise TagspreadError(f"--labels: {source} has no rows below its header line.")
    header, rows = [cell.strip() for cell in lines[0][1]], lines[1:]
    if len(header) < 2:
        raise TagspreadError(f"--labels: {source} has one column; give the picture and its tags, separated by commas.")
    seen: dict[Path, int] = {}
    for number, row in rows:
        if len(row) != len(header):
            raise TagspreadError(f"--labels: {source} line {number} has {len(row)} cells, its header {len(header)}.")
        if not row[0].strip():
            raise TagspreadError(f"--labels: {source} line {number} names no picture in column {header[0]!r}.")
        first = seen.setdefault(path := Path(images) / row[0].strip(), number)
        if first != number:
            raise TagspreadError(
                f"--labels: {source} line {number} names {path} again, after line {first}; "
                f"give each picture one line, with several tags joined by {delimiter!r}."
            )
    lists_tags = len(header) == 2 and header[1].lower() in TAG_COLUMNS
    if lists_tags:
        tags = [[tag.strip() for tag in row[1].split(delimiter) if tag.strip()] for _, row in rows]
        classes = tuple(sorted({tag for some in tags for tag in some}))
        y = np.array([[name in some for name in classes] for some in tags], dtype=np.int8).reshape(len(rows), -1)
    else:
        classes = tuple(header[1:])
        for number, name in enumerate(classes, start=2):
            if not name or name in classes[: number - 2]:
                found = f"is called {name!r} as one before" if name else "has no name"
                raise TagspreadError(f"--labels: {source}: column {number} {found}; give each tag's column its own.")
        y = np.array([_wide_row(row, number, source, classes) for number, row in rows], np.int8)
    if not classes:
        raise TagspreadError(f"--labels: {source} names no tag at all.")
    return LabelTable(tuple(seen), classes, y, unlisted=0 if lists_tags else -1)


def _read(source: Path) -> list[tuple[int, list[str]]]:
    """Return the rows that hold anything, each with the number of the line that it ends on."""
    number = 0
    try:
        with source.open(newline="", encoding="utf-8-sig") as opened:
            reader, rows = csv.reader(opened, strict=True), []  # strict: a quote left open must not swallow the rest
            for row in reader:
                number = reader.line_num
                if row:
                    rows.append((number, row))
            return rows
    except FileNotFoundError:
        raise TagspreadError(f"--labels: there is no file {source}.") from None
    except OSError as error:
        raise TagspreadError(f"--labels: {source} cannot be read ({error.strerror}).") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TagspreadError(f"--labels: {source} is not a CSV file in UTF-8 ({error}; after line {number}).") from None


def _wide_row(row: list[str], number: int, source: Path, classes: tuple[str, ...]) -> list[int]:
    for name, cell in zip(classes, row[1:], strict=True):
        if cell.strip() not in VALUES:
            raise TagspreadError(
                f"--labels: {source} line {number}, column {name!r} holds {cell!r}; write 1, 0 or nothing (unknown). "
                f"For a list of tags per picture, call the column one of {', '.join(TAG_COLUMNS)}."
            )
    return [VALUES[cell.strip()] for cell in row[1:]]
