"""Where a cell stands in the tables, and which of several stands there.

There is one cell in a place, the last that was asked for, and one version of its method in a row: a mean over two
versions means nothing. A version ends when the file of one's own method is edited, or when a release gives a method
or a preset other settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

Record = dict[str, Any]
RowName: TypeAlias = tuple[str, str, str]  # setup, method, variant


def place_of(cell: Record) -> tuple[Any, ...]:
    """Return where a cell stands in its table. A new version has other keys than the old one, and the same places."""
    return (*(cell[name] for name in ("dataset", "method", "variant", "p", "seed")), cell["setup"]["id"])


def row_of(cell: Record) -> RowName:
    """Return in which row of which table a cell stands."""
    return cell["setup"]["id"], cell["method"], cell["variant"]


def versions(cells: Iterable[Record]) -> dict[RowName, str]:
    """Return of which version of its method each row is: that of the last of its cells."""
    return {row_of(cell): cell["version"] for cell in cells if "version" in cell}


def is_current(cell: Record, now: dict[RowName, str]) -> bool:
    """Return whether a cell is of the version that its row is of. Of one that does not say, nothing is known."""
    version = now.get(row_of(cell))
    return version is None or cell.get("version", version) == version


def current(records: Sequence[Record], planned: Sequence[Record]) -> list[Record]:
    """Return the records that tables and figures are made of.

    Args:
        records: what was run, the oldest first.
        planned: what was asked for; of rows that are not in it, the version that was run last counts.
    """
    asked = {place_of(cell): cell["key"] for cell in planned}
    now = versions(records) | versions(planned)
    return [r for r in records if asked.get(place_of(r), r["key"]) == r["key"] and is_current(r, now)]
