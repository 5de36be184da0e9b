"""Fill the gaps of a label table with predictions: known labels stay unchanged, unknown labels are predicted.

In a wide table (one column per tag), blank cells are unknown and become 1 or 0, or the words that the table uses. In a
long table (one column with lists of tags), and in a wide one that only marks present tags, rows without a tag are
filled if they mean "unlabeled", as in training. Unlabeled images of the folder are added as rows at the end.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from tagspread.aliases import Progress
from tagspread.core.arrays import ArrayLike
from tagspread.data.images.find import list_folder
from tagspread.data.images.paths import real_path
from tagspread.data.tables.cells import VALUES
from tagspread.data.tables.delimiters import DELIMITERS, USUAL, detect_delimiter
from tagspread.data.tables.image_names import NameRule, resolve_names
from tagspread.data.tables.label_table import written_name
from tagspread.data.tables.layouts import (
    BYTES,
    DELIMITER_SAMPLE,
    SAMPLE,
    Columns,
    blank_meaning,
    find_columns,
    lists_positives,
)
from tagspread.data.tables.notes import Source
from tagspread.data.tables.options import AUTO, GivenOptions, TableOptions
from tagspread.data.tables.read import check_kind, header_of, lines_of, options_for_run, separator_of
from tagspread.data.tables.spreadsheets import plain_image, plain_tags
from tagspread.errors import Both, RowErrors, TagspreadError
from tagspread.files import atomic_file
from tagspread.predict.evaluation import own_table_options
from tagspread.predict.tables import check_delimiter, check_output, reserve_output
from tagspread.predict.tagger import Tagger
from tagspread.wording import counted

SUFFIXES = (".csv", ".tsv", ".txt")


@dataclass
class Filled:
    """Counts of what was filled."""

    cells: int = 0  # gaps that were filled
    rows: int = 0  # rows that were added
    broken: int = 0  # images that could not be read; their gaps stay
    unknown: tuple[str, ...] = ()  # tags of the table that the run does not have
    unlisted: tuple[str, ...] = ()  # tags of the run that have no column
    notes: tuple[str, ...] = ()  # what else is left out


@dataclass
class _Table:
    """A table as text; cells that are not filled are written unchanged."""

    header: list[str]
    rows: list[list[str]]
    names: list[str]
    columns: Columns
    separator: str
    delimiter: str
    notes: list[str]
    lists_positives: bool  # blank cells beside a marked one are absent, as in a list of tags
    words: tuple[str, str]  # how the table writes an absent and a present tag


def fill_table(
    tagger: Tagger,
    table: Path,
    images: Path,
    out: Path,
    *,
    overwrite: bool = False,
    options: GivenOptions | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    top: int | None = None,
    threshold: ArrayLike | None = None,
    mirror: bool = False,
    batch: int | None = None,
) -> Filled:
    """Write ``table`` to ``out`` with its gaps filled by ``tagger``.

    Args:
        tagger: predicts the missing labels.
        table: a CSV or TSV file as :func:`~tagspread.data.tables.read.read_table` reads it.
        images: image folder that the table's paths are relative to.
        out: the file to write, in the table's format.
        overwrite: replace an existing file, but never the table itself.
        options: options of ``read_table``; by default those that the run's own table was read with. With ``blank``
            ``"unlabeled"``, rows without a tag are filled; with ``"negative"``, they stay as they are.
        progress: called with (done, total).
        top: predict this many tags, as in :meth:`Tagger.stream`.
        threshold: predict tags with at least this probability.
        mirror: average over each image and its mirror image; takes twice as long.
        batch: number of images per batch.
    """
    check_output(out, overwrite, SUFFIXES)
    if out.exists() and out.samefile(table):
        raise TagspreadError(f"{out} is the table to fill, which must not be overwritten; choose another file.")
    with reserve_output(out, overwrite, SUFFIXES):
        given = GivenOptions.of(options).to_dict()
        table_options = TableOptions(**options_for_run(table, own_table_options(tagger), given))
        read = _read(table, images, table_options)
        if read.columns.tags is not None:
            _check_tags(table, read, tagger.classes)
        filled, columns = _columns(tagger, read)
        open_rows = _open_rows(read, columns, str(table), table_options)
        listing = list_folder(images)
        filled.notes = (*read.notes, *listing.notes())
        unlabeled = _unnamed(read, table, images, listing.images)
        new_names = [plain_image(written_name(path, images)) for path in unlabeled]
        todo = [*(images / read.names[row] for row in open_rows), *unlabeled]
        done = 0
        for part in tagger.stream(todo, top=top, threshold=threshold, mirror=mirror, batch=batch):
            for place, (error, tags, chosen) in enumerate(
                zip(part.errors, part.tags, part.chosen, strict=True), start=done
            ):
                if error:
                    filled.broken += 1
                elif place < len(open_rows):
                    filled.cells += _fill(read, read.rows[open_rows[place]], columns, tags, chosen)
                else:
                    row = [""] * len(read.header)
                    row[read.columns.image] = new_names[place - len(open_rows)]
                    _fill(read, row, columns, tags, chosen)
                    read.rows.append(row)
                    filled.rows += 1
            done += len(part)
            if progress is not None:
                progress(done, len(todo))
        if todo and filled.broken == len(todo):
            raise TagspreadError(
                f"none of the {len(todo):,} images to tag can be read, such as {todo[0]}; nothing was written."
            )
        _write(read, table, out)
        return filled


def _read(table: Path, images: Path, options: TableOptions) -> _Table:
    if table.suffix.lower() not in SUFFIXES:
        raise TagspreadError(f"{table} cannot be filled: its suffix must be one of {', '.join(SUFFIXES)}.")
    check_kind(table, None)
    separator = separator_of(table)
    lines = lines_of(table, separator)
    header = header_of(table, next(lines, None), separator)
    numbered = [(number, row) for number, row in lines if any(cell.strip() for cell in row)]
    for number, row in numbered:
        if len(row) != len(header):
            raise TagspreadError(
                f"{table} line {number} has {len(row)} cells, but the header line has {len(header)}; correct the line."
            )
    if not numbered:
        raise TagspreadError(f"{table} has no rows below its header line; add the images to fill.")
    rows = [row for _, row in numbered]
    columns = find_columns(header, rows[:SAMPLE], options, str(table))
    rule = NameRule(images, Source(str(table), "line"), options.allow_outside)
    names = [rule(row[columns.image], number) for number, row in numbered]
    resolved = resolve_names(names, images, str(table))
    names = [resolved.names.get(row, name) for row, name in enumerate(names)]
    notes, delimiter = list(map(str, resolved.notes)), options.delimiter or USUAL
    if columns.tags is not None and delimiter == AUTO:
        cells = [cell for row in rows if (cell := row[columns.tags].strip())][:DELIMITER_SAMPLE]
        delimiter = detect_delimiter(cells) or options.fallback_delimiter
        if delimiter != USUAL:
            notes.append(f"tags in {table} are separated by {delimiter!r}")
    cells = [row[k].strip() for row in rows for k in columns.classes]
    lists = columns.tags is None and lists_positives(bytes({BYTES.get(cell, 255) for cell in set(cells)}), options)
    words = ("" if lists else _usual(cells, 0) or "0", _usual(cells, 1) or "1")
    return _Table(header, rows, names, columns, separator, delimiter, notes, lists, words)


def _usual(cells: Sequence[str], value: int) -> str | None:
    """Return the text that most cells of a value have; None if there is no such cell."""
    texts = Counter(cell for cell in cells if VALUES.get(cell) == value)
    return texts.most_common(1)[0][0] if texts else None


def _check_tags(table: Path, read: _Table, classes: tuple[str, ...]) -> None:
    """Raise if the table joins its tags by another delimiter than the one that new rows would be written with."""
    check_delimiter(classes, read.delimiter)
    known = set(classes)
    for row in read.rows:
        for tag in row[cast(int, read.columns.tags)].split(read.delimiter):
            for other in DELIMITERS:
                if other in tag and tag.strip() not in known and known.issuperset(map(str.strip, tag.split(other))):
                    raise TagspreadError(
                        f"{table}: {tag.strip()!r} is not a tag of the run, but its parts between {other!r} are; "
                        "give @delimiter.",
                        delimiter=Both(f"delimiter={other!r}", f"--delimiter {other!r}"),
                    )


def _unnamed(read: _Table, table: Path, images: Path, present: Sequence[Path]) -> list[Path]:
    """Return the unlabeled images: those of the folder that are not in the table. At least one must be in it."""
    named = {real_path(images / name) for name in read.names}
    unlabeled = [path for path in present if real_path(path) not in named]
    if (
        named and len(unlabeled) == len(present) and not any(map(os.path.exists, named))
    ):  # images may be outside the folder
        raise TagspreadError(
            f"none of the {len(named):,} images in {table} is in {images}, such as {read.names[0]}; give the folder "
            "that its paths are relative to."
        )
    return unlabeled


def _columns(tagger: Tagger, read: _Table) -> tuple[Filled, dict[int, int]]:
    """Map the table's columns to the tagger's classes."""
    place = {name: k for k, name in enumerate(tagger.classes)}
    tags = {k: read.header[k] for k in read.columns.classes}
    columns = {k: place[name] for k, name in tags.items() if name in place}
    if read.columns.tags is not None:
        return Filled(), {}
    if not columns:
        known = ", ".join(tagger.classes[:8]) + (", ..." if len(tagger.classes) > 8 else "")
        raise TagspreadError(
            f"no column of the table is a tag of the run ({known}); if one column lists the tags, name it with "
            "@tags_column.",
            tags_column=...,
        )
    foreign = tuple(name for name in tags.values() if name not in place)
    return Filled(unknown=foreign, unlisted=tuple(c for c in tagger.classes if c not in tags.values())), columns


def _open_rows(read: _Table, columns: dict[int, int], source: str, options: TableOptions) -> list[int]:
    """Return the indices of the rows with gaps."""
    if read.columns.tags is None and not read.lists_positives:
        return [
            at
            for at, row in enumerate(read.rows)
            if any(VALUES.get(row[k].strip()) == -1 for k in columns)
            and not (options.blank == "negative" and all(not row[k].strip() for k in read.columns.classes))
        ]
    cells = read.columns.classes if read.columns.tags is None else [read.columns.tags]
    tagged = {name for name, row in zip(read.names, read.rows, strict=True) if any(row[k].strip() for k in cells)}
    blank = [at for at, name in enumerate(read.names) if name not in tagged]
    if not blank:
        return []
    images = len(set(read.names))
    if blank_meaning(source, len({read.names[at] for at in blank}), images, options, RowErrors()) == "unlabeled":
        return blank
    if options.blank is None:
        has, is_ = ("has", "is") if len(blank) == 1 else ("have", "are")
        read.notes.append(
            f"{counted(len(blank), 'row')} of {source} {has} no tag and {is_} unchanged; to fill in predictions there, "
            "give --blank unlabeled"
        )
    return []


def _fill(read: _Table, row: list[str], columns: dict[int, int], tags: list[str], chosen: np.ndarray) -> int:
    """Fill the gaps of a row and leave its other cells unchanged; return the number of gaps."""
    if read.columns.tags is not None:
        row[read.columns.tags] = plain_tags(tags, read.delimiter)
        return 1
    gaps = [k for k in columns if VALUES.get(row[k].strip()) == -1]
    for k in gaps:
        row[k] = read.words[int(chosen[columns[k]])]
    return len(gaps)


def _write(read: _Table, table: Path, out: Path) -> None:
    with table.open("rb") as opened:
        start = opened.read(4096)
    ending = "\r\n" if b"\r\n" in start else "\n"
    encoding = "utf-8-sig" if start.startswith(b"\xef\xbb\xbf") else "utf-8"
    with atomic_file(out) as opened_out:
        text = io.TextIOWrapper(opened_out, encoding=encoding, newline="", write_through=True)
        writer = csv.writer(text, delimiter=read.separator, lineterminator=ending)
        writer.writerows([read.header, *read.rows])
        text.detach()
