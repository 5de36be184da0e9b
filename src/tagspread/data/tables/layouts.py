"""Columns and layouts of a label table: long (an image and its list of tags per row) or wide (one column per tag)."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.data.images.paths import Paths, PathsWriter
from tagspread.data.tables.cells import VALUES
from tagspread.data.tables.image_names import NameRule, Source, looks_like_image
from tagspread.data.tables.options import TableOptions
from tagspread.errors import Blank, Both, TagspreadError, did_you_mean

SAMPLE = 200  # rows from which the columns are recognized
TAG_COLUMNS = ("tags", "labels", "tag", "label")  # names of columns that hold lists of tags
COLUMN_OPTIONS = {"tags_column": Blank("NAME"), "image_column": Blank("NAME")}  # for messages that name them
PYTHON_LIST = re.compile(r"""\[\s*(['"]).*\1\s*\]""", re.DOTALL)
BYTES = {cell: value % 256 for cell, value in VALUES.items()}  # -1 as an int8 is 255 as a byte
DELIMITERS = ("|", ";", ",", " ")
MOST_TAGS = 65_536  # a column of sentences would give a class per row
MOST_CELLS = 2**28  # bytes of the label matrix; a larger table must have RARE images per tag
RARE = 4
CHUNK = 8192


class Columns(NamedTuple):
    """Column indices: the image, and its list of tags (long layout) or one column per tag (wide layout)."""

    image: int
    tags: int | None
    classes: list[int]


def find_columns(header: Sequence[str], sample: Sequence[Sequence[str]], options: TableOptions, source: str) -> Columns:
    """Find the columns of a table from its header, its first rows and the options.

    Args:
        header: names of the columns.
        sample: cells of the first rows.
        options: options of the caller.
        source: the file, for messages.
    """
    if options.image_column is not None:
        image = _find_column(header, options.image_column, "image_column", source)
    else:
        image = _image_column(header, sample)
    for name in options.ignored:
        _find_column(header, name, "ignore", source)
    rest = [k for k, name in enumerate(header) if k != image and name not in options.ignored]
    tags = _tags_column(header, sample, options, rest, source)
    if tags is not None:
        others = [header[k] for k in rest if k != tags]
        if others and not options.ignores_others:
            raise TagspreadError(
                f"{source} has lists of tags in column {header[tags]!r} and other columns: "
                f"{', '.join(map(repr, others))}; omit these with @ignore.",
                ignore=others,
            )
        return Columns(image, tags, [])
    if options.ignores_others:
        rest = [k for k in rest if header[k]]
    seen: set[str] = set()
    for k in rest:
        if not header[k] or header[k] in seen:
            flaw = f"repeats the name {header[k]!r} of an earlier column" if header[k] else "has no name"
            raise TagspreadError(f"{source}: column {k + 1} {flaw}; give each tag column a name of its own.")
        seen.add(header[k])
    if not rest:
        raise TagspreadError(
            f"{source} has no column besides the image column {header[image]!r}; add a column with lists of tags, or "
            "one column per tag."
        )
    return Columns(image, None, rest)


def _find_column(header: Sequence[str], name: str, option: str, source: str) -> int:
    places = [k for k, column in enumerate(header) if column == name]
    if not places:
        listed = ", ".join(map(repr, header))
        close = did_you_mean(name, header)
        raise TagspreadError(
            f"@{option}: {source} has no column {name!r}; its columns are {listed}.{close}", **{option: ...}
        )
    if len(places) > 1 and option != "ignore":
        raise TagspreadError(
            f"@{option}: {source} has {len(places)} columns {name!r}; rename all but one.", **{option: ...}
        )
    return places[0]


def _image_column(header: Sequence[str], sample: Sequence[Sequence[str]]) -> int:
    """Return ``file_name`` or the first column in which most cells are names of image files."""
    rows = [row for row in sample if len(row) == len(header)]
    counts = [sum(looks_like_image(row[k]) for row in rows) for k in range(len(header))]
    of_images = [k for k, count in enumerate(counts) if 2 * count > len(rows)]
    usual = [k for k, name in enumerate(header) if name == "file_name" and (k in of_images or not of_images)]
    return (*usual, *of_images, 0)[0]


def _tags_column(
    header: Sequence[str], sample: Sequence[Sequence[str]], options: TableOptions, rest: list[int], source: str
) -> int | None:
    """Return the column with lists of tags, or None for the wide layout."""
    if options.tags_column is not None:
        return _find_column(header, options.tags_column, "tags_column", source)
    if options.layout == "wide":
        return None
    named = [k for k in rest if header[k].lower() in TAG_COLUMNS]
    if options.layout == "long":
        if len(candidates := named or rest) != 1:
            listed = ", ".join(repr(header[k]) for k in candidates) or "there is none"
            raise TagspreadError(
                f"{source}: cannot tell which column holds the tags ({listed}); name it with @tags_column.",
                **COLUMN_OPTIONS,
            )
        return candidates[0]
    if not named:
        return None
    cells = [row[named[0]].strip() for row in sample if len(row) == len(header)]
    if len(rest) > 1 and not options.ignores_others and all(cell in VALUES for cell in cells):
        return None  # a wide table with a tag that is called "label"
    return named[0]


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


def check_size(images: int, tags: int, source: str) -> None:
    """Raise for a large table with nearly as many tags as images, which hold sentences or identifiers.

    >>> check_size(1_000_000, 5_000, "labels.csv")
    """
    if images * tags > MOST_CELLS and RARE * tags > images:
        raise TagspreadError(
            f"{source} has {tags:,} different tags for {images:,} images, so most tags have too few images to learn "
            "from. Check that the column holds tags, not sentences or identifiers, and leave out rare tags."
        )


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
        check_size(len(paths), len(classes), self._source.name)
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
