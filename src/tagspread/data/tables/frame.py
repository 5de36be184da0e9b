"""Read labels from pandas data frames and Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagspread.data.tables.cells import text, text_or_list
from tagspread.data.tables.layouts import SAMPLE, Columns, Labels, collect_labels, find_columns
from tagspread.data.tables.notes import Source
from tagspread.data.tables.options import TableOptions
from tagspread.errors import RowErrors, TagspreadError
from tagspread.wording import counted

if TYPE_CHECKING:
    import pandas as pd

ROWS_AT_ONCE = 16_384  # converted to text together: bounds the memory for frames of many rows


def import_pandas() -> Any:
    """Import pandas when it is needed; the rest of the package works without it."""
    try:
        import pandas
    except ImportError:
        raise TagspreadError("this needs pandas, which is not installed; run: pip install pandas") from None
    return pandas


def read_parquet(file: Path) -> pd.DataFrame:
    """Read a Parquet file."""
    try:
        frame: pd.DataFrame = import_pandas().read_parquet(file)
    except ImportError:
        raise TagspreadError(
            f"reading {file} needs pyarrow; run: pip install pyarrow, or save the table as CSV"
        ) from None
    except (OSError, ValueError) as error:
        raise TagspreadError(f"{file} cannot be read as Parquet ({error}).") from None
    return frame


def labels_of_frame(
    frame: pd.DataFrame, source: Source, folder: Path, options: TableOptions, errors: RowErrors
) -> Labels:
    """Return the labels of a data frame; tags may be lists or text, and missing values count as blank cells."""
    if not len(frame):
        raise TagspreadError(f"{source.name} has no rows.")
    if any(name is not None for name in frame.index.names):  # a named index counts as a column
        frame = frame.reset_index()
    header = [str(name).strip() for name in frame.columns]
    if len(header) < 2:
        raise TagspreadError(
            f"{source.name} has {counted(len(header), 'column')}; it needs a column for the image and one for its tags."
        )
    sample = [[text(cell) for cell in row] for row in frame.head(SAMPLE).itertuples(index=False, name=None)]
    columns = find_columns(header, sample, options, source.name)
    return collect_labels(_rows(frame, columns), source, header, columns, options, folder, errors)


def _rows(frame: pd.DataFrame, columns: Columns) -> Iterator[tuple[int, str, str | Sequence[str]]]:
    for start in range(0, len(frame), ROWS_AT_ONCE):
        for number, image, cells in _rows_of_part(frame.iloc[start : start + ROWS_AT_ONCE], columns):
            yield start + number, image, cells


def _rows_of_part(frame: pd.DataFrame, columns: Columns) -> Iterator[tuple[int, str, str | Sequence[str]]]:
    images = (text(cell) for cell in frame.iloc[:, columns.image])
    cells_or_tags: Any
    if columns.tags is not None:
        cells_or_tags = (text_or_list(cell) for cell in frame.iloc[:, columns.tags])
    else:
        cells_or_tags = zip(*(_texts(frame.iloc[:, k]) for k in columns.classes), strict=True)
    return ((number, image, cells) for number, (image, cells) in enumerate(zip(images, cells_or_tags, strict=True)))


def _texts(column: pd.Series[Any]) -> list[str]:
    """Return a column as CSV text; cache the texts, because most columns hold few different values."""
    text_of: dict[Any, str] = {}
    return [text_of.setdefault(cell, text(cell)) if isinstance(cell, int | str) else text(cell) for cell in column]
