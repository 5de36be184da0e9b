"""Labels from pandas data frames, and from Parquet files, which pandas reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagspread.data.tables.cells import text, text_or_list
from tagspread.data.tables.columns import SAMPLE, Columns, find_columns
from tagspread.data.tables.image_names import Source
from tagspread.data.tables.layouts import Labels, collect_labels
from tagspread.data.tables.options import TableOptions
from tagspread.errors import TagspreadError

if TYPE_CHECKING:
    import pandas as pd


def import_pandas() -> Any:
    """Import pandas, late: the rest of the package does without."""
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
        raise TagspreadError(f"{file} needs pyarrow, or save it as CSV; run: pip install pyarrow") from None
    except (OSError, ValueError) as error:
        raise TagspreadError(f"{file} cannot be read as Parquet ({error}).") from None
    return frame


def labels_of_frame(frame: pd.DataFrame, source: Source, folder: Path, options: TableOptions) -> Labels:
    """Return the labels of a data frame; lists of tags may be lists or text, and missing values are blank cells."""
    if not len(frame):
        raise TagspreadError(f"{source.name} has no rows.")
    if any(name is not None for name in frame.index.names):  # an index that has a name is a column, too
        frame = frame.reset_index()
    header = [str(name).strip() for name in frame.columns]
    if len(header) < 2:
        raise TagspreadError(f"{source.name} has {len(header)} columns; give the image and its tags.")
    sample = [[text(cell) for cell in row] for row in frame.head(SAMPLE).itertuples(index=False, name=None)]
    columns = find_columns(header, sample, options, source.name)
    return collect_labels(_rows(frame, columns), source, header, columns, options, folder)


def _rows(frame: pd.DataFrame, columns: Columns) -> Iterator[tuple[int, str, str | Sequence[str]]]:
    images = (text(cell) for cell in frame.iloc[:, columns.image])
    cells_or_tags: Any
    if columns.tags is not None:
        cells_or_tags = (text_or_list(cell) for cell in frame.iloc[:, columns.tags])
    else:
        cells_or_tags = zip(*(_texts(frame.iloc[:, k]) for k in columns.classes), strict=True)
    return ((number, image, cells) for number, (image, cells) in enumerate(zip(images, cells_or_tags, strict=True)))


def _texts(column: pd.Series[Any]) -> list[str]:
    """Return a column as a CSV file would write it; few values come again and again."""
    text_of: dict[Any, str] = {}
    return [text_of.setdefault(cell, text(cell)) if isinstance(cell, int | str) else text(cell) for cell in column]
