"""Tables from and to pandas, and Parquet files, which pandas reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tagspread.data.tables.columns import Wanted, find_shape, wanted
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.rows import LongRows, NameRule, Source, WideRows
from tagspread.errors import TagspreadError

if TYPE_CHECKING:
    import pandas as pd


def _pandas() -> Any:
    """Import pandas, late: the rest of the package does without."""
    try:
        import pandas
    except ImportError:
        raise TagspreadError("this needs pandas, which is not installed; run: pip install pandas") from None
    return pandas


def to_frame(table: LabelTable, image_column: str = "image") -> pd.DataFrame:
    """Return the paths as text and a nullable integer column (``Int8``) per class, unknown as ``pd.NA``."""
    pandas = _pandas()
    if image_column in table.classes:
        raise TagspreadError(f"a class is called {image_column!r}, as the images' column; give another image_column.")
    values = {
        name: pandas.arrays.IntegerArray(np.maximum(column, 0), column < 0)
        for name, column in zip(table.classes, table.y.T, strict=True)
    }
    frame: pd.DataFrame = pandas.DataFrame({image_column: [str(path) for path in table.paths], **values})
    return frame


def from_frame(
    frame: pd.DataFrame,
    image_column: str | None = None,
    *,
    tags_column: str | None = None,
    images: str | Path | None = None,
    delimiter: str | None = "|",
    layout: str = "auto",
    ignore: str | Iterable[str] = (),
    allow_outside: bool = False,
) -> LabelTable:
    """Return the table of a frame, long or wide as in ``read_table``; lists of tags may be lists or text.

    Args:
        frame: images and their tags. In the wide shape missing values and -1 are unknown; in the long one a missing
            list is one without tags, as a blank in a CSV file is, which pandas reads as missing.
        image_column: the column with the images.
        tags_column: the column with lists of tags.
        images: the folder that paths start from, which they must not leave; without, paths are taken as they are.
        delimiter: what separates tags in text.
        layout: ``"long"``, ``"wide"`` or ``"auto"``.
        ignore: columns that are about something else, or ``"all"``.
        allow_outside: accept paths that leave ``images``.
    """
    options = wanted(image_column, tags_column, layout, ignore)
    folder = Path(images if images is not None else "")
    return _read(frame, Source("frame", "row"), folder, delimiter, options, allow_outside or images is None)


def read_parquet(source: Path, images: Path, delimiter: str | None, options: Wanted, outside: bool) -> LabelTable:
    """Read a Parquet file as ``read_table`` says."""
    pandas = _pandas()
    try:
        frame = pandas.read_parquet(source)
    except ImportError:
        raise TagspreadError(f"{source} needs pyarrow, or save it as CSV; run: pip install pyarrow") from None
    except (OSError, ValueError) as error:
        raise TagspreadError(f"{source} cannot be read as Parquet ({error}).") from None
    return _read(frame, Source(f"{source}", "row"), images, delimiter, options, outside)


def _read(
    frame: pd.DataFrame, source: Source, folder: Path, delimiter: str | None, options: Wanted, outside: bool
) -> LabelTable:
    if not len(frame):
        raise TagspreadError(f"{source.name} has no rows.")
    if any(name is not None for name in frame.index.names):  # an index that has a name is a column, too
        frame = frame.reset_index()
    header = [str(name).strip() for name in frame.columns]
    if len(header) < 2:
        raise TagspreadError(f"{source.name} has {len(header)} columns; give the image and its tags.")
    sample = [[text(cell) for cell in row] for row in frame.head(200).itertuples(index=False, name=None)]
    shape = find_shape(header, sample, options, source.name)
    name_of = NameRule(folder, source, outside)
    names = [name_of(text(cell), row) for row, cell in enumerate(frame.iloc[:, shape.image])]
    if shape.tags is not None:
        long = LongRows(source, delimiter)
        for row, (name, cell) in enumerate(zip(names, frame.iloc[:, shape.tags], strict=True)):
            add_tags(long, name, cell, row)
        return long.table(folder)
    wide = WideRows(source, [header[k] for k in shape.columns], drop_others=options.ignore is None)
    columns = [_cells(frame.iloc[:, k]) for k in shape.columns]
    for row, (name, *cells) in enumerate(zip(names, *columns, strict=True)):
        wide.add(name, cells, row)
    return wide.table(folder)


def _cells(column: pd.Series[Any]) -> list[str]:
    """Return a column as a CSV file would write it; few values come again and again."""
    met: dict[Any, str] = {}
    return [met.setdefault(cell, text(cell)) if isinstance(cell, int | str) else text(cell) for cell in column]


def add_tags(long: LongRows, name: str, cell: Any, row: int) -> None:
    """Add a image's tags, be they a list, text or nothing."""
    if isinstance(cell, list | tuple | set | frozenset | np.ndarray):
        long.add(name, map(text, cell), row)
    else:
        long.add_cell(name, text(cell), row)


def text(cell: Any) -> str:
    """Return a value as a CSV file would write it.

    >>> [text(cell) for cell in ("sea", True, 1.0, 0, None, float("nan"))]
    ['sea', '1', '1', '0', '', '']
    """
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool | np.bool_):
        return str(int(cell))
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):  # pandas' own kinds, without importing pandas
        return ""
    if isinstance(cell, float | np.floating):
        return "" if np.isnan(cell) else str(int(cell)) if cell.is_integer() else str(cell)
    return str(cell)
