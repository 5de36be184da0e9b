"""Columns and layouts of a label table: long (an image and its list of tags per row) or wide (one column per tag)."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.data.images.paths import Paths, PathsWriter
from tagspread.data.tables.cells import MARKS, NO, VALUES
from tagspread.data.tables.delimiters import USUAL, detect_delimiter, suspected_delimiter
from tagspread.data.tables.image_names import NameRule, looks_like_image
from tagspread.data.tables.notes import Note, Source
from tagspread.data.tables.options import AUTO, TableOptions
from tagspread.errors import MOST_ERRORS, Blank, Both, NoLabelsError, RowErrors, TagspreadError, did_you_mean
from tagspread.wording import counted

SAMPLE = 200  # rows from which the columns are recognized
TAG_COLUMNS = ("tags", "labels", "tag", "label")  # names of columns that hold lists of tags
COLUMN_OPTIONS = {"tags_column": Blank("NAME"), "image_column": Blank("NAME")}  # for messages that name them
PYTHON_LIST = re.compile(r"""\[\s*(['"]).*\1\s*\]""", re.DOTALL)
MARK, WRITTEN_UNKNOWN = 2, 254  # bytes of a mark such as x, and of -1, until the whole table is known
BYTES = {cell: value % 256 for cell, value in VALUES.items()}  # -1 as an int8 is 255 as a byte
BYTES |= dict.fromkeys(MARKS, MARK) | {"-1": WRITTEN_UNKNOWN, "-1.0": WRITTEN_UNKNOWN}
AS_LABELS = bytes({MARK: 1, WRITTEN_UNKNOWN: 255}.get(byte, byte) for byte in range(256))
DELIMITER_SAMPLE = 1000  # cells from which the delimiter is found
FEW_BLANK, SMALL_SHARE = 5, 0.1  # with more rows without a tag, what they mean must be said
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
    rows = [row for row in sample if len(row) == len(header)]
    if len(rest) > 1 and not options.ignores_others and all(row[named[0]].strip() in VALUES for row in rows):
        has_marks = any(row[named[0]].strip() in MARKS | NO for row in rows)  # or tags of one letter
        if not has_marks or all(row[k].strip() in VALUES for row in rows for k in rest):
            return None  # a wide table with a tag that is called "label"
    return named[0]


class Labels(NamedTuple):
    """Labels of all rows: the arguments of a :class:`~tagspread.data.tables.label_table.LabelTable`."""

    paths: Paths
    classes: tuple[str, ...]
    y: np.ndarray
    unlisted: int
    notes: tuple[Note, ...] = ()
    delimiter: str | None = None


def collect_labels(
    rows: Iterable[tuple[int, str, str | Sequence[str]]],
    source: Source,
    header: Sequence[str],
    columns: Columns,
    options: TableOptions,
    folder: Path,
    errors: RowErrors,
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
        errors: receives the errors of rows.
    """
    image_name = NameRule(folder, source, options.allow_outside)
    names = [header[k] for k in columns.classes]
    collected: LongRows | WideRows = WideRows(source, names, options, errors)
    if columns.tags is not None:
        collected = LongRows(source, options, errors)
    for number, image, cells in rows:
        try:
            name = image_name(image, number)
        except TagspreadError as error:
            errors.add(error)
            continue
        collected.add(name, cells, number)
    return collected.labels(folder)


def blank_meaning(source: str, blank: int, images: int, options: TableOptions, errors: RowErrors) -> str:
    """Return what rows without a tag mean; raise if it must be said: both readings are plausible.

    Args:
        source: the table, for messages.
        blank: number of images without a tag.
        images: number of all images.
        options: options of the caller.
        errors: receives the error.
    """
    if options.blank is not None:
        return options.blank
    if blank < FEW_BLANK or blank < SMALL_SHARE * images:
        return "negative"
    errors.add(
        TagspreadError(
            f"{source}: {blank:,} of {counted(images, 'image')} ({100 * blank / images:.0f} %) "
            f"{'has' if blank == 1 else 'have'} no tag, which may mean two things. If nobody has tagged these "
            f"{blank:,} yet, give @unlabeled: they join the unlabeled images. If somebody has, and none of the tags "
            f"applies, give @negative: the model learns from them as images without any tag.",
            unlabeled=Both("blank='unlabeled'", "--blank unlabeled"),
            negative=Both("blank='negative'", "--blank negative"),
        )
    )
    return "unlabeled"


def _note_on_blank(source: str, blank: int, images: int, meaning: str, options: TableOptions) -> Note:
    subject = f"{blank:,} of {counted(images, 'image')} in {source} {'has' if blank == 1 else 'have'} no tag"
    if meaning == "unlabeled":
        return Note("note", "blank_rows", f"{subject}, and {'counts' if blank == 1 else 'count'} as unlabeled")
    text = f"{subject}, and {'counts as an image' if blank == 1 else 'count as images'} without any of the tags"
    if options.blank is None:
        text += "; if nobody has tagged them yet, give --blank unlabeled"
    return Note("note" if options.blank else "warning", "blank_rows", text)


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

    def __init__(self, source: Source, options: TableOptions, errors: RowErrors) -> None:
        self._source, self._options, self._errors = source, options, errors
        self._delimiter = options.delimiter  # AUTO until it is found
        self._notes: list[Note] = []
        self._waiting: list[tuple[str, str | Sequence[str], int]] = []  # rows that were added until then
        self._cells_waiting = 0  # of them that are not blank
        self._paths, self._last = PathsWriter(), ""
        self._numbers: dict[str, int] = {}  # tag -> number, in order of appearance
        self._tags, self._counts, self._lines = array("H"), array("H"), array("Q")
        self._sample: list[str] | None = []  # cells without the delimiter, until a cell contains it
        self._has_lists = False  # whether any row has several tags
        self._last_is_single = False
        self._again: list[tuple[int, int]] = []  # record and number of rows of one tag that follow each other

    def add(self, name: str, tags: str | Sequence[str], number: int) -> None:
        """Add a row: its tags, joined in one cell or as separate values."""
        if self._delimiter != AUTO:
            self._add(name, tags, number)
            return
        self._waiting.append((name, tags, number))
        self._cells_waiting += bool(tags)
        if self._cells_waiting == DELIMITER_SAMPLE or len(self._waiting) == 50 * DELIMITER_SAMPLE:
            self._find_delimiter()

    def _find_delimiter(self) -> None:
        cells = [cell.strip() for _, cell, _ in self._waiting if isinstance(cell, str) and cell.strip()]
        self._delimiter = detect_delimiter(cells) or self._options.fallback_delimiter
        if self._delimiter != USUAL:
            joined = sum(self._delimiter in cell for cell in cells)
            self._notes.append(
                Note(
                    "note",
                    "delimiter",
                    f"tags in {self._source.name} are separated by {self._delimiter!r} (in {joined:,} of the first "
                    f"{counted(len(cells), 'cell')}); to read them in another way, give --delimiter",
                )
            )
        for row in self._waiting:
            self._add(*row)
        self._waiting = []

    def _add(self, name: str, tags: str | Sequence[str], number: int) -> None:
        if isinstance(tags, str):
            try:
                tags = self._split(tags, number)
            except TagspreadError as error:
                self._errors.add(error, kind="list")
                return
        self._add_tags(name, tags, number)

    def _split(self, cell: str, number: int) -> Sequence[str]:
        if cell.startswith("[") and PYTHON_LIST.fullmatch(cell):
            raise TagspreadError(
                f"{self._source.at(number)} holds the Python list {cell!r}; write tags with a delimiter between them, "
                "such as sea|sand, or save lists in a Parquet file."
            )
        if self._delimiter is None:
            return (cell,)
        if self._options.delimiter == AUTO and self._delimiter != USUAL and USUAL in cell:
            raise TagspreadError(
                f"{self._source.at(number)} holds {cell!r}, but the tags above are separated by {self._delimiter!r}; "
                "use the same delimiter everywhere, or name it with @delimiter.",
                delimiter=self._delimiter,
            )
        if self._sample is not None:
            if self._delimiter in cell:
                self._sample = None
            elif len(self._sample) < DELIMITER_SAMPLE and cell.strip():
                self._sample.append(cell.strip())
        return cell.split(self._delimiter)

    def _add_tags(self, name: str, tags: Sequence[str], number: int) -> None:
        plain_tags = [plain for tag in tags if (plain := tag.strip())]
        is_single = len(plain_tags) == 1
        self._has_lists |= len(plain_tags) > 1
        if is_single and self._last_is_single and name == self._last:
            if len(self._again) < MOST_ERRORS:  # one row per tag: the rows of an image follow each other
                self._again.append((len(self._counts) - 1, number))
        else:
            self._begin(name, number)
        self._last_is_single = is_single
        for plain in plain_tags:
            if self._counts[-1] == MOST_TAGS - 1:  # the counter is full; rows of one image are merged later
                self._begin(name, number)
            tag_number = self._numbers.setdefault(plain, len(self._numbers))
            if tag_number >= MOST_TAGS:
                raise TagspreadError(
                    f"{self._source.at(number)}: more than {MOST_TAGS} different tags; check that the column "
                    "holds tags, not sentences."
                )
            self._tags.append(tag_number)
            self._counts[-1] += 1

    def _begin(self, name: str, number: int) -> None:
        self._paths.add(name)
        self._counts.append(0)
        self._lines.append(number)
        self._last = name

    def labels(self, folder: Path) -> Labels:
        """Return the labels of all rows: classes sorted, tags that are not listed absent."""
        if self._delimiter == AUTO:
            self._find_delimiter()
        self._check_delimiter()
        if not self._numbers:
            raise NoLabelsError(f"{self._source.name} holds no tags; give at least one image a tag.")
        classes = tuple(sorted(self._numbers))
        column = np.empty(len(classes), np.int64)
        column[[self._numbers[name] for name in classes]] = np.arange(len(classes))
        first = self._paths.firsts()
        paths, row = self._paths.paths(folder), None
        self._note_repeated(paths, first)
        if first is not None:
            new = first == np.arange(len(first))
            paths, row = paths.take(np.flatnonzero(new)), (np.cumsum(new) - 1)[first]
        check_size(len(paths), len(classes), self._source.name)
        y = np.zeros((len(paths), len(classes)), np.int8)
        counts, tags, done = np.frombuffer(self._counts, np.uint16), np.frombuffer(self._tags, np.uint16), 0
        has_tag = np.zeros(len(paths), bool)
        for start in range(0, len(counts), CHUNK):  # in chunks: the indices of all positives need more memory than y
            chunk = counts[start : start + CHUNK]
            rows = np.repeat(np.arange(start, start + len(chunk)) if row is None else row[start : start + CHUNK], chunk)
            y[rows, column[tags[done : done + len(rows)]]] = 1
            has_tag[rows] = True
            done += len(rows)
        if blank := int((~has_tag).sum()):
            meaning = blank_meaning(self._source.name, blank, len(paths), self._options, self._errors)
            self._notes.append(_note_on_blank(self._source.name, blank, len(paths), meaning, self._options))
            if meaning == "unlabeled":
                y[~has_tag] = -1
        is_found = self._options.delimiter == AUTO and self._delimiter != USUAL
        return Labels(paths, classes, y, 0, tuple(self._notes), self._delimiter if is_found else None)

    def _note_repeated(self, paths: Paths, first: np.ndarray | None) -> None:
        """Note the images whose rows list different tags, unless the table has one row per tag."""
        if not self._has_lists:
            return
        pairs = list(self._again)
        if first is not None:
            counts, ends = np.frombuffer(self._counts, np.uint16), np.cumsum(self._counts, dtype=np.int64)
            for later in np.flatnonzero(first != np.arange(len(first))).tolist():
                earlier = int(first[later])
                here, there = (set(self._tags[ends[row] - counts[row] : ends[row]]) for row in (later, earlier))
                if here != there:
                    pairs.append((earlier, self._lines[later]))
        if pairs:
            unit, images = self._source.unit, "image is" if len(pairs) == 1 else "images are"
            places = [f"{paths.names[row]} ({unit}s {self._lines[row]} and {number})" for row, number in pairs]
            text = (
                f"{len(pairs):,} {images} listed in {self._source.name} again with other tags; the tags of all rows of "
                "an image are merged"
            )
            self._notes.append(Note("warning", "different_rows", text, tuple(places)))

    def _check_delimiter(self) -> None:
        """Raise if tags seem to be joined by another delimiter: each combination would become a tag of its own."""
        sample = self._sample or ()
        if (other := suspected_delimiter(sample, self._delimiter)) is None:
            return
        cells = [cell for cell in sample if other in cell]
        self._errors.add(
            TagspreadError(
                f"{self._source.name}: no cell of tags contains the delimiter {self._delimiter!r}, but {len(cells):,} "
                f"of the first {len(sample):,} contain {other!r}, such as {cells[0]!r}; give @delimiter, or @nothing "
                "if each cell is one tag.",
                delimiter=Both(f"delimiter={other!r}", f"--delimiter {other!r}"),
                nothing=Both("delimiter=None", "--delimiter ''"),
            )
        )


class WideRows:
    """Collects rows of one image with one cell per tag."""

    def __init__(self, source: Source, names: Sequence[str], options: TableOptions, errors: RowErrors) -> None:
        self._source, self._names, self._options, self._errors = source, tuple(names), options, errors
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
        if self._options.ignores_others:
            self._dropped.update(wrong)
        elif wrong:
            others = [self._names[k] for k in wrong]
            self._errors.add(
                TagspreadError(
                    f"{self._source.at(number)}, column {others[0]!r} holds {cells[wrong[0]]!r}; write 1, 0 or nothing "
                    "(unknown). If the column holds lists of tags, name it tags, labels, tag or label, or give "
                    "@tags_column. If it holds something else, omit it with @ignore.",
                    tags_column=Blank("NAME"),
                    ignore=others,
                ),
                kind=f"column {others[0]}",
            )
        return bytes(BYTES.get(cell, 255) for cell in plain)

    def labels(self, folder: Path) -> Labels:
        """Return the labels of all rows: classes in the order of the file."""
        first, paths = self._paths.firsts(), self._paths.paths(folder)
        raw = np.frombuffer(self._y, np.uint8).reshape(len(self._numbers), len(self._names))
        kept = [k for k in range(len(self._names)) if k not in self._dropped]
        if not kept:
            raise TagspreadError(
                f"{self._source.name} has no column of 1, 0 and blanks; write one such column per tag, or name the "
                "column with lists of tags with @tags_column.",
                tags_column=Blank("NAME"),
            )
        if first is not None:
            self._report_repeated(paths, first, raw[:, kept], [self._names[k] for k in kept])
            new = np.flatnonzero(first == np.arange(len(first)))
            paths, raw = paths.take(new), raw[new]
        cells = self._y if len(kept) == len(self._names) and first is None else bytearray(raw[:, kept].tobytes())
        plain = cells.translate(AS_LABELS) if MARK in cells or WRITTEN_UNKNOWN in cells else cells
        y = np.frombuffer(plain, np.int8).reshape(len(raw), len(kept))
        y, notes = self._fill_blanks(cells, y)
        return Labels(paths, tuple(self._names[k] for k in kept), y, unlisted=-1, notes=notes)

    def _report_repeated(self, paths: Paths, first: np.ndarray, raw: np.ndarray, names: Sequence[str]) -> None:
        for again in np.flatnonzero(first != np.arange(len(first))).tolist():
            earlier, unit = int(first[again]), self._source.unit
            other = [names[k] for k in np.flatnonzero(raw[again] != raw[earlier]).tolist()]
            labels = f" with other labels of {', '.join(other[:3])}{' ...' if len(other) > 3 else ''}" if other else ""
            self._errors.add(
                TagspreadError(
                    f"{self._source.at(self._numbers[again])} repeats {paths[again]} of {unit} "
                    f"{self._numbers[earlier]}{labels}; give each image one {unit}."
                )
            )

    def _fill_blanks(self, cells: bytearray, y: np.ndarray) -> tuple[np.ndarray, tuple[Note, ...]]:
        """Interpret blank cells and blank rows of a table that never says that a tag is absent."""
        name = self._source.name
        if lists_positives(cells, self._options):
            y = y.copy()
            blank = ~(y == 1).any(axis=1)
            y[~blank] = np.maximum(y[~blank], 0)
            text = f"no cell of {name} says that a tag is absent, so blank cells of a row with a tag count as absent"
            notes = [Note("note", "marks", text)]
            if count := int(blank.sum()):
                meaning = blank_meaning(name, count, len(y), self._options, self._errors)
                notes.append(_note_on_blank(name, count, len(y), meaning, self._options))
                y[blank] = -1 if meaning == "unlabeled" else 0
            return y, tuple(notes)
        if self._options.blank == "negative" and (blank := (y < 0).all(axis=1)).any():
            y = y.copy()
            y[blank] = 0
            return y, (_note_on_blank(name, int(blank.sum()), len(y), "negative", self._options),)
        if 1 in cells and 255 in cells and 0 not in cells and WRITTEN_UNKNOWN not in cells:
            text = (
                f"no cell of {name} says that a tag is absent, and blank cells are unknown, so no tag can be learned "
                "from it; if a blank cell means absent, give --blank, which also says what a row without any tag means"
            )
            return y, (Note("warning", "no_negatives", text),)
        return y, ()


def lists_positives(cells: bytes | bytearray, options: TableOptions) -> bool:
    """Return whether a wide table only marks the tags that are present, as a list of tags does.

    Blank cells of 1 and 0 are unknown. A table of marks such as x has no mark for an absent tag; neither may a table of
    1 and blanks, if the user says what blank rows mean.

    Args:
        cells: all cells, as the bytes of ``BYTES``.
        options: options of the caller.
    """
    has_blank, says_absent = 255 in cells, 0 in cells or WRITTEN_UNKNOWN in cells
    if not has_blank or says_absent:
        return False
    return MARK in cells or (options.blank is not None and 1 in cells)
