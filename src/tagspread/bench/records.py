"""Records of benchmark cells: their positions in the tables, and the versions of methods that they belong to.

A table shows one cell per position, the last one requested, and one version of a method per row, because a mean over
two versions means nothing. A new version begins when the file of a custom method is edited, or when a release changes
the settings of a method or a preset.
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
    """Return the position of a cell in its table. A new version of a method has new keys, but the same positions."""
    return (*(cell[name] for name in ("dataset", "method", "variant", "p", "seed")), cell["setup"]["id"])


def row_of(cell: Record) -> RowName:
    """Return the row of a cell: setup, method and variant."""
    return cell["setup"]["id"], cell["method"], cell["variant"]


@dataclass
class Version:
    """The version of a row's method.

    Attributes:
        name: the version; None for older records, which do not store it.
        suffixes: suffix of the keys for each set of options, which identifies the version of older records. Within a
            row, options differ if a threshold was chosen for each seed.
    """

    name: str | None = None
    suffixes: dict[str, str] = field(default_factory=dict)


def versions(cells: Iterable[Record]) -> dict[RowName, Version]:
    """Return the version of each row: that of its last cell."""
    now: dict[RowName, Version] = {}
    for cell in cells:
        row = now.setdefault(row_of(cell), Version())
        row.name = cell.get("version", row.name)
        row.suffixes[_options(cell)] = _key_suffix(cell)
    return now


def is_current(cell: Record, now: dict[RowName, Version]) -> bool:
    """Return whether a cell belongs to the version of its row."""
    row = now.get(row_of(cell), Version())
    if row.name is not None and "version" in cell:
        return bool(cell["version"] == row.name)
    return row.suffixes.get(_options(cell), _key_suffix(cell)) == _key_suffix(cell)


def _options(cell: Record) -> str:
    return json.dumps(cell.get("options"), sort_keys=True)


def _key_suffix(cell: Record) -> str:
    return str(cell["key"].rpartition("-")[2])  # equal for all shares and seeds of a version with the same options


def current(records: Sequence[Record], planned: Sequence[Record]) -> list[Record]:
    """Return the records to show in tables and charts: requested cells, and other cells of the present versions.

    Args:
        records: records of finished cells, oldest first.
        planned: the requested cells; in rows without one, the version that was run last is shown.
    """
    keys = {place_of(cell): cell["key"] for cell in planned}
    now = versions(records) | versions(planned)
    return [r for r in records if (keys[place_of(r)] == r["key"] if place_of(r) in keys else is_current(r, now))]
