"""The two layouts of a label table: long (an image and its list of tags per row) and wide (one column per tag)."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.data.tables.cells import VALUES
from tagspread.data.tables.columns import Columns
from tagspread.data.tables.image_names import NameRule, Source
from tagspread.data.tables.options import TableOptions
from tagspread.data.tables.paths import Paths, PathsWriter
from tagspread.errors import Blank, Both, TagspreadError

PYTHON_LIST = re.compile(r"""\[\s*(['"]).*\1\s*\]""", re.DOTALL)
BYTES = {cell: value % 256 for cell, value in VALUES.items()}  # -1 as an int8 is 255 as a byte
DELIMITERS = ("|", ";", ",", " ")
MOST_TAGS = 65_536  # a column of sentences would give a class per row
CHUNK = 8192


class Labels(NamedTuple):
    """Labels of all rows: the arguments of a :class:`~tagspread.data.tables.label_table.LabelTable`."""

    paths: Paths
    classes: tuple[str, ...]
    y: np.ndarray
    unlisted: int


def collect_labels(
    rows: Iterable[tuple[int, str, str | Sequence[str]]],
    source: Source,
    header: Sequence[str],
    columns: Columns,
    options: TableOptions,
    folder: Path,
) -> Labels:
    """Collect the labels of all rows of a CSV file, a JSON lines file or a data frame.

    Args:
        rows: for each row its number (for messages), its image, and its labels: in the long layout the tags (a list,
            or one text with delimiters), in the wide layout the cells of ``columns.classes``.
        source: the table, for messages.
        header: names of the columns.
        columns: the columns of the image and of the labels.
        options: how to read them.
        folder: the folder that image paths are relative to.
    """
    image_name = NameRule(folder, source, options.allow_outside)
    if columns.tags is None:
        wide = WideRows(source, [header[k] for k in columns.classes], drop_others=options.ignores_others)
        for number, image, cells in rows:
            wide.add(image_name(image, number), cells, number)
        return wide.labels(folder)
    long = LongRows(source, options.delimiter)
    for number, image, tags in rows:
        if isinstance(tags, str):
            long.add_cell(image_name(image, number), tags, number)
        else:
            long.add(image_name(image, number), tags, number)
    return long.labels(folder)


class LongRows:
    """Collects rows of one image and its tags; rows of the same image are merged."""

    def __init__(self, source: Source, delimiter: str | None) -> None:
        self._source, self._delimiter = source, delimiter
        self._paths, self._last = PathsWriter(), ""
        self._numbers: dict[str, int] = {}  # tag -> number, in order of appearance
        self._tags, self._counts = array("H"), array("H")
        self._sample: list[str] | None = []  # cells without the delimiter, until a cell contains it

    def add_cell(self, name: str, cell: str, number: int) -> None:
        """Add a row whose tags are joined in one cell."""
        if cell.startswith("[") and PYTHON_LIST.fullmatch(cell):
            raise TagspreadError(
                f"{self._source.at(number)} holds the Python list {cell!r}; write tags with a delimiter between them, "
                "such as sea|sand, or save lists in a Parquet file."
            )
        if self._delimiter is None:
            self.add(name, (cell,), number)
            return
        if self._sample is not None:
            if self._delimiter in cell:
                self._sample = None
            elif len(self._sample) < 1000 and cell.strip():
                self._sample.append(cell.strip())
        self.add(name, cell.split(self._delimiter), number)

    def add(self, name: str, tags: Iterable[str], number: int) -> None:
        """Add a row whose tags are separate values."""
        if name != self._last or not self._counts:  # with one line per tag, the lines of an image follow each other
            self._begin(name)
        for tag in tags:
            if plain := tag.strip():
                if self._counts[-1] == MOST_TAGS - 1:  # the counter is full; rows of one image are merged later
                    self._begin(name)
                tag_number = self._numbers.setdefault(plain, len(self._numbers))
                if tag_number >= MOST_TAGS:
                    raise TagspreadError(
                        f"{self._source.at(number)}: more than {MOST_TAGS} different tags; check that the column "
                        "holds tags, not sentences."
                    )
                self._tags.append(tag_number)
                self._counts[-1] += 1

    def _begin(self, name: str) -> None:
        self._paths.add(name)
        self._counts.append(0)
        self._last = name

    def labels(self, folder: Path) -> Labels:
        """Return the labels of all rows: classes sorted, tags that are not listed absent."""
        self._check_delimiter()
        if not self._numbers:
            raise TagspreadError(f"{self._source.name} holds no tags; give at least one image a tag.")
        classes = tuple(sorted(self._numbers))
        column = np.empty(len(classes), np.int64)
        column[[self._numbers[name] for name in classes]] = np.arange(len(classes))
        first = self._paths.firsts()
        paths, row = self._paths.paths(folder), None
        if first is not None:
            new = first == np.arange(len(first))
            paths, row = paths.take(np.flatnonzero(new)), (np.cumsum(new) - 1)[first]
        y = np.zeros((len(paths), len(classes)), np.int8)
        counts, tags, done = np.frombuffer(self._counts, np.uint16), np.frombuffer(self._tags, np.uint16), 0
        for start in range(0, len(counts), CHUNK):  # in chunks: the indices of all positives need more memory than y
            chunk = counts[start : start + CHUNK]
            rows = np.repeat(np.arange(start, start + len(chunk)) if row is None else row[start : start + CHUNK], chunk)
            y[rows, column[tags[done : done + len(rows)]]] = 1
            done += len(rows)
        return Labels(paths, classes, y, unlisted=0)

    def _check_delimiter(self) -> None:
        """Raise if tags seem to be joined by another delimiter: each combination would become a tag of its own."""
        sample = self._sample or ()
        for other in DELIMITERS:
            cells = [cell for cell in sample if other in cell]
            alone = {cell for cell in sample if other not in cell}
            of_tags = [cell for cell in cells if all(part.strip() in alone for part in cell.split(other))]
            if 2 * len(cells) <= len(sample) and (other == " " or 2 * len(of_tags) <= len(cells)):
                continue
            parts = {part for cell in cells for part in cell.split(other)}
            if other == " " and len(parts) >= len(set(cells)):
                continue  # "traffic light", "teddy bear": words that occur in no other combination
            raise TagspreadError(
                f"{self._source.name}: no cell of tags contains the delimiter {self._delimiter!r}, but {len(cells):,} "
                f"of the first {len(sample):,} contain {other!r}, such as {cells[0]!r}; give @delimiter, or @nothing "
                "if each cell is one tag.",
                delimiter=other,
                nothing=Both("delimiter=None", "--delimiter ''"),
            )


class WideRows:
    """Collects rows of one image with one cell per tag."""

    def __init__(self, source: Source, names: Sequence[str], drop_others: bool) -> None:
        self._source, self._names, self._drop_others = source, tuple(names), drop_others
        self._paths, self._numbers, self._y = PathsWriter(), array("Q"), bytearray()
        self._dropped: set[int] = set()

    def add(self, name: str, cells: Sequence[str], number: int) -> None:
        """Add a row."""
        try:
            self._y += bytes(map(BYTES.__getitem__, cells))
        except KeyError:  # blanks around a value, or no label
            self._y += self._unusual(cells, number)
        self._paths.add(name)
        self._numbers.append(number)

    def _unusual(self, cells: Sequence[str], number: int) -> bytes:
        plain = [cell.strip() for cell in cells]
        wrong = [k for k, cell in enumerate(plain) if cell not in BYTES]
        if self._drop_others:
            self._dropped.update(wrong)
        elif wrong:
            others = [self._names[k] for k in wrong]
            raise TagspreadError(
                f"{self._source.at(number)}, column {others[0]!r} holds {cells[wrong[0]]!r}; write 1, 0 or nothing "
                "(unknown). If the column holds lists of tags, name it tags, labels, tag or label, or give "
                "@tags_column. If it holds something else, omit it with @ignore.",
                tags_column=Blank("NAME"),
                ignore=others,
            )
        return bytes(BYTES.get(cell, 255) for cell in plain)

    def labels(self, folder: Path) -> Labels:
        """Return the labels of all rows: classes in the order of the file."""
        if (first := self._paths.firsts()) is not None:
            again = int(np.flatnonzero(first != np.arange(len(first)))[0])
            raise TagspreadError(
                f"{self._source.at(self._numbers[again])} repeats {self._paths.paths(folder)[again]} of "
                f"{self._source.unit} {self._numbers[int(first[again])]}; give each image one {self._source.unit}."
            )
        y = np.frombuffer(self._y, np.int8).reshape(len(self._paths), len(self._names))
        kept = [k for k in range(len(self._names)) if k not in self._dropped]
        if not kept:
            raise TagspreadError(
                f"{self._source.name} has no column of 1, 0 and blanks; write one such column per tag, or name the "
                "column with lists of tags with @tags_column.",
                tags_column=Blank("NAME"),
            )
        y = y if len(kept) == len(self._names) else y[:, kept]
        return Labels(self._paths.paths(folder), tuple(self._names[k] for k in kept), y, unlisted=-1)
