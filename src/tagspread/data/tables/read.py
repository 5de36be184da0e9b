"""Read a label table: CSV, TSV, Parquet, JSON lines or a Label Studio export.

The separator of CSV files is detected. Other kinds of file are recognized by their first bytes and refused by name.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from tagspread.aliases import SettingValues
from tagspread.data.images.paths import Paths, PathsWriter
from tagspread.data.tables import label_studio
from tagspread.data.tables.delimiters import USUAL
from tagspread.data.tables.frame import labels_of_frame, read_parquet
from tagspread.data.tables.image_names import looks_like_image, resolve_names
from tagspread.data.tables.json_lines import keys_of, read_json_lines
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.layouts import SAMPLE, Columns, collect_labels, find_columns
from tagspread.data.tables.notes import Source
from tagspread.data.tables.options import AUTO, TableOptions
from tagspread.errors import NoLabelsError, RowErrors, TagspreadError
from tagspread.files import refuse_special

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
MAGIC = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook; unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV",
    b"\x1f\x8b": "compressed with gzip; decompress it first",
    b"PAR1": "a Parquet file; rename it so that its name ends in .parquet",
    b"\xff\xd8\xff": "a JPEG image; give the file with the labels",
    b"\x89PNG": "a PNG image; give the file with the labels",
    b"%PDF": "a PDF document; save the table as CSV",
    b"\xff\xfe": "is not a CSV file in UTF-8 but in UTF-16; save it as UTF-8",
    b"\xfe\xff": "is not a CSV file in UTF-8 but in UTF-16; save it as UTF-8",
}

Row = tuple[int, list[str]]
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl")
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # files of Hugging Face image folders
PSEUDO_LABEL_COLUMNS = ("image", "tag", "target", "score", "rank", "flips")  # of the pseudo-label file of a run


def check_kind(source: Path, expected: bytes | None) -> None:
    """Raise if the first bytes show that a file is not text, or does not start with ``expected``."""
    refuse_special(source)
    try:
        with source.open("rb") as opened:
            start = opened.read(4096)
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {source}.") from None
    except OSError as error:
        raise TagspreadError(f"{source} cannot be read ({error.strerror}).") from None
    if not start:
        raise TagspreadError(f"{source} is empty (0 bytes); give a file with a header line and rows.")
    if expected is not None:
        if not start.startswith(expected):
            raise TagspreadError(f"{source} is not a Parquet file; rename it, or save the table as Parquet.")
        return
    for magic, words in MAGIC.items():
        if start.startswith(magic):
            raise TagspreadError(f"{source} {'' if words.startswith('is ') else 'is '}{words}.")
    if b"\0" in start:
        raise TagspreadError(f"{source} is a binary file, not a CSV file in UTF-8; save the table as CSV.")


def separator_of(source: Path) -> str:
    """Return the separator of cells: a tab for ``.tsv`` and ``.txt``, else detected from the first lines."""
    return "\t" if source.suffix.lower() in (".tsv", ".txt") else _sniff(source)


def _sniff(source: Path) -> str:
    """Return the first separator that splits the header and the first lines into the same number of cells."""
    widths: dict[str, int] = {}
    for separator in SEPARATORS:
        with source.open(newline="", encoding="utf-8-sig", errors="replace") as opened:
            try:
                rows = [len(row) for row in islice(csv.reader(opened, delimiter=separator), 20) if row]
            except csv.Error:
                rows = []
        if rows and rows[0] > 1 and set(rows) == {rows[0]}:
            return separator
        widths[separator] = rows[0] if rows else 0
    return max(widths, key=lambda separator: widths[separator])


def lines_of(source: Path, separator: str) -> Iterator[Row]:
    """Yield the nonempty rows, each with the number of its last line."""
    number = 0
    try:
        with source.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.reader(opened, delimiter=separator, strict=True)  # strict, so that an unclosed quote raises
            for row in reader:
                number = reader.line_num
                if row:
                    yield number, row
    except OSError as error:
        raise TagspreadError(f"{source} cannot be read ({error.strerror}).") from None
    except (UnicodeDecodeError, csv.Error) as error:
        in_encoding = isinstance(error, UnicodeDecodeError)
        hint = " Save it as UTF-8; in Excel: CSV UTF-8." if in_encoding else " Check the quotes after that line."
        raise TagspreadError(f"{source} is not a CSV file in UTF-8 ({error}; after line {number}).{hint}") from None


def header_of(source: Path, first: Row | None, separator: str) -> list[str]:
    """Return the column names from the first line of a file."""
    if first is None:
        raise TagspreadError(f"{source} has no rows below its header line.")
    number, header = first[0], [cell.strip() for cell in first[1]]
    if looks_like_image(header[0]):
        raise TagspreadError(
            f"{source} line {number} begins with the image name {header[0]!r}, but the first line must hold the names "
            f"of the columns; add a header line, such as image{separator}tags."
        )
    if len(header) < 2 and "\n" in first[1][0].strip():
        raise TagspreadError(
            f"{source} begins with a quoted text that contains line breaks, so that its header has one cell; check the "
            "quotes of the first lines."
        )
    if len(header) < 2:
        raise TagspreadError(
            f"{source} has one column; write the image and its tags into columns separated by {SEPARATORS[separator]}."
        )
    return header


def cells_of(
    lines: Iterable[Row], source: Source, header: Sequence[str], columns: Columns, errors: RowErrors
) -> Iterator[tuple[int, str, str | list[str]]]:
    """Yield the number, the image and the label cells of each line; blank lines are left out."""
    for number, row in lines:
        if len(row) != len(header):
            if any(cell.strip() for cell in row):
                errors.add(
                    TagspreadError(
                        f"{source.at(number)} has {len(row)} cells, but the header has {len(header)}; correct the "
                        "line, and quote cells that contain the separator."
                    ),
                    kind=f"{len(row)} cells",
                )
            continue  # blanks only
        image = row[columns.image]
        if not image.strip() and not any(cell.strip() for cell in row):
            continue  # separators only, as spreadsheets write below the last row
        yield number, image, [row[k] for k in columns.classes] if columns.tags is None else row[columns.tags]


def read_table(
    file: str | Path,
    images: str | Path,
    delimiter: str | None = AUTO,
    *,
    image_column: str | None = None,
    tags_column: str | None = None,
    layout: str = "auto",
    ignore: str | Iterable[str] = (),
    allow_outside: bool = False,
    blank: str | None = None,
    fallback_delimiter: str = USUAL,
) -> LabelTable:
    """Read a label table; its paths are relative to ``images``.

    There are two layouts. Long: one column with the image and one with its tags (``beach.jpg,sea|sand``); tags that are
    not listed are absent, and the lines of an image are merged. Wide: one column with the image and one column per tag,
    with 1, 0 or blank for unknown; each image has one line. Words and marks such as yes and no, x and ✓ are read too.

    The names of images that do not exist are matched with the files of the folder, regardless of case, separator and
    missing suffix, if only one file matches. The notes of the table tell what was matched and found.

    Args:
        file: the table, with a header line: ``.csv`` (commas, semicolons or tabs), ``.tsv`` or ``.txt`` (tabs),
            ``.parquet``; ``.jsonl`` with one object per image; a Label Studio export, ``.json`` or ``.csv``; or a
            folder with ``metadata.csv``, ``metadata.jsonl`` or ``metadata.parquet``.
        images: the folder that paths are relative to. Paths in a metadata file inside it are relative to the folder of
            that file.
        delimiter: text between the tags of a cell in the long layout; None if each cell is one tag. ``"auto"`` means
            ``|``, or semicolons or commas if the cells clearly use them.
        image_column: name of the image column; by default the first column that holds names of image files, else the
            first column.
        tags_column: name of the column with lists of tags; by default one called tags, labels, tag or label.
        layout: ``"long"``, ``"wide"`` or ``"auto"``: long if there is a column with lists of tags.
        ignore: columns without labels, or ``"all"`` for all of them.
        allow_outside: accept absolute paths and paths with ``..`` that are outside ``images``.
        blank: what an image without a tag means in the long layout, and in a wide table that marks present tags only:
            ``"unlabeled"`` (nobody has tagged it yet) or ``"negative"`` (it has none of the tags). By default, a few of
            them are negative; many raise an error that asks for this option.
        fallback_delimiter: the delimiter if ``"auto"`` finds none, such as that of a similar table.
    """
    options = TableOptions(
        delimiter, image_column, tags_column, layout, ignore, allow_outside, blank, fallback_delimiter
    )
    return _read(file, images, options, RowErrors())


def read_with_errors(
    file: str | Path, images: str | Path, **options: Any
) -> tuple[LabelTable | None, list[TagspreadError]]:
    """Read a label table as far as possible; return it without the rows that have errors, and the errors.

    Args:
        file: the table.
        images: the folder that paths are relative to.
        options: options of :func:`read_table`.

    Returns:
        The table, or None if nothing could be read; the errors, which :func:`read_table` raises one at a time.
    """
    errors = RowErrors(collect=True)
    try:
        return _read(file, images, TableOptions(**options), errors), errors.found
    except NoLabelsError as error:  # a consequence, not an error of its own, if rows could not be read
        return None, errors.found or [error]
    except TagspreadError as error:
        return None, [*errors.found, error]


def _read(file: str | Path, images: str | Path, options: TableOptions, errors: RowErrors) -> LabelTable:
    source, folder = _metadata_file(Path(file)), Path(images)
    if source.name in METADATA and source.absolute().is_relative_to(folder.absolute()):
        folder = source.parent
    suffix = source.suffix.lower()
    if suffix and suffix not in SUFFIXES:
        raise TagspreadError(f"{source} ends in {suffix}; save the table as one of {', '.join(SUFFIXES)}.")
    check_kind(source, b"PAR1" if suffix == ".parquet" else None)
    if suffix == ".parquet":
        frame = read_parquet(source)
        table = LabelTable(*labels_of_frame(frame, Source(str(source), "row"), folder, options, errors))
    elif suffix == ".json":
        return label_studio.read_json(source, folder, options)
    elif suffix == ".jsonl":
        table = read_json_lines(source, folder, options, errors)
    else:
        table = _read_delimited(source, folder, options, errors)
    return _with_resolved_names(table, folder, str(source))


def _with_resolved_names(table: LabelTable, folder: Path, source: str) -> LabelTable:
    """Return the table with the names of existing files; rows of the same file are merged."""
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


def options_for_run(file: Path, own: SettingValues, given: SettingValues) -> dict[str, Any]:
    """Return the options for reading a table with a run: the given options, else those of the run where they apply.

    Args:
        file: the table.
        own: options for the label table of the run; column options apply if this table has the columns.
        given: options that the user gives for this table.
    """
    header = _header(file)
    stated = {name: value for name, value in given.items() if value is not None or name == "delimiter"}
    options = {name: own[name] for name in ("image_column", "tags_column") if own.get(name) in header}
    if stated.get("layout") == "wide":
        options.pop("tags_column", None)
    if ignored := own.get("ignore"):
        names = [ignored] if isinstance(ignored, str) else list(ignored)
        options["ignore"] = "all" if ignored == "all" else [name for name in names if name in header]
    if not stated.get("ignore"):
        stated.pop("ignore", None)
    always = {name: own[name] for name in ("delimiter", "allow_outside", "blank", "fallback_delimiter") if name in own}
    return always | options | stated


def _metadata_file(file: Path) -> Path:
    """Return the metadata file of a folder, or the file itself."""
    if not file.is_dir():
        return file
    present = [name for name in METADATA if (file / name).is_file()]
    if len(present) != 1:
        what = " and ".join(present) if present else f"none of {', '.join(METADATA)}"
        raise TagspreadError(f"{file} cannot be read as a table: the folder has {what}; give the file with the labels.")
    return file / present[0]


def _read_delimited(file: Path, folder: Path, options: TableOptions, errors: RowErrors) -> LabelTable:
    separator = separator_of(file)
    lines = lines_of(file, separator)
    header = header_of(file, next(lines, None), separator)
    if set(header) >= label_studio.EXPORT_COLUMNS:
        return label_studio.read_rows(file, folder, header, lines, options)
    if tuple(header) == PSEUDO_LABEL_COLUMNS:
        raise TagspreadError(
            f"{file} holds the pseudo-labels of a run, not labels given by people; correct them in Label Studio "
            "(tagspread pseudo-labels RUN --label-studio FILE) and give the file that Label Studio exports."
        )
    sample = list(islice(lines, SAMPLE))
    if not sample:
        raise TagspreadError(f"{file} has no rows below its header line.")
    source = Source(str(file), "line")
    columns = find_columns(header, [row for _, row in sample], options, source.name)
    rows = cells_of(chain(sample, lines), source, header, columns, errors)
    return LabelTable(*collect_labels(rows, source, header, columns, options, folder, errors))


def _header(file: Path) -> list[str]:
    """Return the column names of a table; an empty list if it cannot be read, because reading it raises later."""
    try:
        file = _metadata_file(file)
        if file.suffix.lower() == ".jsonl":
            return keys_of(file)
        if file.suffix.lower() == ".parquet":
            import pyarrow.parquet  # type: ignore[import-untyped]

            return list(pyarrow.parquet.read_schema(file).names)
        separator = separator_of(file)
        return header_of(file, next(lines_of(file, separator), None), separator)
    except (TagspreadError, OSError, ValueError, ImportError):
        return []
