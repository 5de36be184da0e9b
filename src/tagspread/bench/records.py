"""Where a cell stands in the tables, and which of several stands there.

There is one cell in a place, the last that was asked for, and one version of its method in a row: a mean over two
versions means nothing. A version ends when the file of one's own method is edited, or when a release gives a method
or a preset other settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tagspread.aliases import JsonObject

Record: TypeAlias = JsonObject
RowName: TypeAlias = tuple[str, str, str]  # setup, method, variant


def place_of(cell: Record) -> tuple[Any, ...]:
    """Return where a cell stands in its table. A new version has other keys than the old one, and the same places."""
    return (*(cell[name] for name in ("dataset", "method", "variant", "p", "seed")), cell["setup"]["id"])


def row_of(cell: Record) -> RowName:
    """Return in which row of which table a cell stands."""
    return cell["setup"]["id"], cell["method"], cell["variant"]


@dataclass
class Version:
    """What a row's method is: its version, and for older records, which do not say theirs, how their keys end."""

    name: str | None = None
    ends: dict[str, str] = field(default_factory=dict)  # by options: along a row, a chosen threshold may differ


def versions(cells: Iterable[Record]) -> dict[RowName, Version]:
    """Return of which version of its method each row is: that of the last of its cells."""
    now: dict[RowName, Version] = {}
    for cell in cells:
        row = now.setdefault(row_of(cell), Version())
        row.name = cell.get("version", row.name)
        row.ends[_options(cell)] = _end(cell)
    return now


def is_current(cell: Record, now: dict[RowName, Version]) -> bool:
    """Return whether a cell is of the version that its row is of."""
    row = now.get(row_of(cell), Version())
    if row.name is not None and "version" in cell:
        return bool(cell["version"] == row.name)
    return row.ends.get(_options(cell), _end(cell)) == _end(cell)


def _options(cell: Record) -> str:
    return json.dumps(cell.get("options"), sort_keys=True)


def _end(cell: Record) -> str:
    return str(cell["key"].rpartition("-")[2])  # the same for all shares and seeds of a version with these options


def current(records: Sequence[Record], planned: Sequence[Record]) -> list[Record]:
    """Return the records that tables and charts are made of: what was asked for, and what is of the same version.

    Args:
        records: what was run, the oldest first.
        planned: what was asked for; of rows that are not in it, the version that was run last counts.
    """
    asked = {place_of(cell): cell["key"] for cell in planned}
    now = versions(records) | versions(planned)
    return [r for r in records if (asked[place_of(r)] == r["key"] if place_of(r) in asked else is_current(r, now))]
