"""Two tables in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import TagspreadError


def merge(one: LabelTable, other: LabelTable) -> LabelTable:
    """Return the rows of both, the classes of both; a image in both gets one row with what either knows.

    In the rows of a table, a class that it does not have is what its ``unlisted`` says.

    Raises:
        TagspreadError: one table says 1 and the other 0 of the same image and class, or names a image twice.
    """
    classes = one.classes + tuple(name for name in other.classes if name not in set(one.classes))
    place: dict[Path, int] = {}
    places = []
    for table in (one, other):
        places.append(np.array([place.setdefault(path, len(place)) for path in table.paths], dtype=np.int64))
        if len(set(places[-1].tolist())) < len(table):
            raise TagspreadError(f"{_twice(places[-1], table)} is in the same table twice; unite its rows first.")
    y = np.full((len(place), len(classes)), -1, np.int8)
    mine, its = one.aligned(classes, "the first table"), other.aligned(classes, "the second table")
    y[places[0]] = mine
    met = y[places[1]]
    if len(clash := np.argwhere((met >= 0) & (its >= 0) & (met != its))):
        row, column = clash[0]
        raise TagspreadError(
            f"{other.paths[int(row)]}: {classes[column]!r} is {met[row, column]} in one table and {its[row, column]} "
            f"in the other ({len(clash):,} such labels in all); correct one of them."
        )
    y[places[1]] = np.where(its >= 0, its, met)
    return LabelTable(tuple(place), classes, y, one.unlisted if one.unlisted == other.unlisted else -1)


def _twice(places: np.ndarray, table: LabelTable) -> Path:
    _, first = np.unique(places, return_index=True)
    return table.paths[int(np.setdiff1d(np.arange(len(places)), first)[0])]
