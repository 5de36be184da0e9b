"""Read CSV and TSV files: detect the separator, read lines and header, raise for other kinds of file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tagspread.data.tables.columns import Columns
from tagspread.data.tables.image_names import Source, looks_like_image
from tagspread.errors import TagspreadError

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


def check_kind(source: Path, expected: bytes | None) -> None:
    """Raise if the first bytes show that a file is not text, or does not start with ``expected``."""
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
    if len(header) < 2:
        raise TagspreadError(
            f"{source} has one column; write the image and its tags into columns separated by {SEPARATORS[separator]}."
        )
    return header


def cells_of(
    lines: Iterable[Row], source: Source, header: Sequence[str], columns: Columns
) -> Iterator[tuple[int, str, str | list[str]]]:
    """Yield the number, the image and the label cells of each line; blank lines are left out."""
    for number, row in lines:
        if len(row) != len(header):
            if any(cell.strip() for cell in row):
                raise TagspreadError(
                    f"{source.at(number)} has {len(row)} cells, but the header has {len(header)}; correct the line, "
                    "and quote cells that contain the separator."
                )
            continue  # blanks only
        image = row[columns.image]
        if not image.strip() and not any(cell.strip() for cell in row):
            continue  # separators only, as spreadsheets write below the last row
        yield number, image, [row[k] for k in columns.classes] if columns.tags is None else row[columns.tags]
