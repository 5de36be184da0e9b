"""Write predictions to CSV, JSON lines or Parquet: one row per image, in parts, so that any number fits in memory."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

from tagspread.data.tables.spreadsheets import plain_image, plain_tags, plain_text
from tagspread.errors import TagspreadError
from tagspread.files import atomic_file, lock_of, refuse_others
from tagspread.predict.predictions import FIXED, Predictions, column_names

DIGITS = 6  # digits of probabilities in text files


class Writer(Protocol):
    """Writes rows to an open file."""

    def add(self, part: Predictions) -> None:
        """Write rows."""

    def close(self) -> None:
        """Finish the file."""


class CsvWriter:
    """Columns image, tags (joined), error, and one per class. No cell is a formula, unless ``raw``."""

    def __init__(self, file: IO[bytes], classes: tuple[str, ...], delimiter: str, raw: bool = False) -> None:
        self._delimiter, self._raw = delimiter, raw
        self._text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="", write_through=True)
        self._rows = csv.writer(self._text, lineterminator="\n")
        names = column_names(classes)
        self._rows.writerow([*FIXED, *(names if raw else map(plain_text, names))])

    def add(self, part: Predictions) -> None:
        """Write rows; the probabilities of an image that could not be read are blank."""
        lines = zip(part.images, part.tags, part.errors, part.probabilities.tolist(), strict=True)
        for image, tags, error, numbers in lines:
            cells = [""] * len(numbers) if error else [f"{p:.{DIGITS}g}" for p in numbers]
            if self._raw:
                self._rows.writerow([image, self._delimiter.join(tags), error, *cells])
            else:
                joined = plain_tags(tags, self._delimiter)
                self._rows.writerow([plain_image(image), joined, plain_text(error), *cells])

    def close(self) -> None:
        """Detach from the file, which the caller closes."""
        self._text.detach()


class JsonWriter:
    """One object per line: image, tags (a list), error (or null), probabilities (by class)."""

    def __init__(self, file: IO[bytes], classes: tuple[str, ...], delimiter: str, raw: bool = False) -> None:
        del delimiter, raw  # tags are a list, and no spreadsheet executes it
        self._file, self._classes = file, classes

    def add(self, part: Predictions) -> None:
        """Write rows."""
        lines = zip(part.images, part.tags, part.errors, part.probabilities.tolist(), strict=True)
        for image, tags, error, numbers in lines:
            by_class = None if error else dict(zip(self._classes, (round(p, DIGITS) for p in numbers), strict=True))
            line = {"image": image, "tags": tags, "error": error or None, "probabilities": by_class}
            self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Write nothing more."""


class ParquetWriter:
    """The columns of the CSV file; each part becomes a row group, to bound the memory."""

    def __init__(self, file: IO[bytes], classes: tuple[str, ...], delimiter: str, raw: bool = False) -> None:
        del raw  # cells have types
        try:
            import pyarrow  # type: ignore[import-untyped]
            from pyarrow import parquet
        except ImportError:
            raise TagspreadError(
                "Parquet needs pyarrow, or write .csv; run: pip install 'tagspread[parquet]'"
            ) from None
        self._arrow, self._delimiter = pyarrow, delimiter
        text = [(name, pyarrow.string()) for name in FIXED]
        self._schema = pyarrow.schema(text + [(name, pyarrow.float32()) for name in column_names(classes)])
        self._rows = parquet.ParquetWriter(file, self._schema)

    def add(self, part: Predictions) -> None:
        """Write rows."""
        joined = [self._delimiter.join(tags) for tags in part.tags]
        errors = [error or None for error in part.errors]
        numbers = part.probabilities.astype("float32").T
        images = [name.encode("utf-8", "replace").decode() for name in part.images]  # Parquet's text is UTF-8
        columns = [images, joined, errors, *numbers]
        arrays = [
            self._arrow.array(column, kind, from_pandas=True)  # NaN is missing there
            for column, kind in zip(columns, self._schema.types, strict=True)
        ]
        self._rows.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Write the footer of the Parquet file."""
        self._rows.close()


WRITERS: dict[str, type[CsvWriter] | type[JsonWriter] | type[ParquetWriter]] = {
    ".csv": CsvWriter,
    ".jsonl": JsonWriter,
    ".parquet": ParquetWriter,
}


def check_output(file: Path, overwrite: bool, suffixes: Sequence[str] = tuple(WRITERS)) -> None:
    """Raise if a file cannot be written, before work is done: unknown format, existing file, missing folder.

    Args:
        file: the file to write.
        overwrite: allow replacing an existing file.
        suffixes: allowed suffixes; empty allows any.
    """
    if suffixes and file.suffix.lower() not in suffixes:
        raise TagspreadError(f"{file} has no supported suffix; use one of {', '.join(suffixes)}.")
    if file.is_dir():
        raise TagspreadError(f"{file} is a folder; give a file.")
    if file.exists() and not overwrite:
        raise TagspreadError(f"{file} exists; choose another name, or replace it with @overwrite.", overwrite=True)
    if not file.parent.is_dir():
        raise TagspreadError(f"{file}: the folder {file.parent} is missing; create it, or choose another file.")


@contextmanager
def reserve_output(file: Path, overwrite: bool, suffixes: Sequence[str] = tuple(WRITERS)) -> Iterator[None]:
    """Lock a file against other processes that would write it; raise if one is, or if `check_output` does.

    Args:
        file: the file to write.
        overwrite: allow replacing an existing file.
        suffixes: allowed suffixes; empty allows any.
    """
    check_output(file, overwrite, suffixes)
    with ExitStack() as held:
        try:
            held.enter_context(refuse_others(lock_of(file), file, "is being written", "choose another name"))
        except OSError as error:
            raise TagspreadError(f"{file} cannot be written ({error.strerror}); choose another location.") from None
        check_output(file, overwrite, suffixes)  # another process may just have finished it
        yield


@contextmanager
def open_table(
    file: str | Path, classes: tuple[str, ...], *, overwrite: bool = False, delimiter: str = "|", raw: bool = False
) -> Iterator[Writer]:
    """Open a table of predictions to write, in the format of the file's suffix.

    Args:
        file: a new file ending in ``.csv``, ``.jsonl`` or ``.parquet``.
        classes: names of the tags.
        overwrite: replace an existing file.
        delimiter: separator between the tags in a cell.
        raw: write CSV cells as they are, even if a spreadsheet would execute them.
    """
    path = Path(file)
    check_output(path, overwrite)
    check_delimiter(classes, delimiter)
    with reserve_output(path, overwrite), atomic_file(path) as opened:
        writer = WRITERS[path.suffix.lower()](opened, classes, delimiter, raw)
        try:
            yield writer
        finally:
            writer.close()


def check_delimiter(classes: Sequence[str], delimiter: str) -> None:
    """Raise if tags that are joined by the delimiter could not be split again."""
    if not delimiter:
        raise TagspreadError(
            "the delimiter is empty, so joined tags could not be split again; give @delimiter.", delimiter="|"
        )
    clash = next((name for name in classes if delimiter in name), None)
    if clash is not None:
        raise TagspreadError(
            f"the tag {clash!r} contains the delimiter {delimiter!r}; choose another @delimiter.", delimiter=...
        )
