"""Build benchmark tables from records: methods by labeled shares, mean and spread over seeds, published values.

:func:`tagspread.bench.table_files.write_tables` writes the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tagspread.bench.grid import in_order
from tagspread.bench.literature import published
from tagspread.bench.notes import PROTOCOLS, chosen_thresholds, failures, judge, own_settings
from tagspread.bench.records import Record, RowName, current, place_of, row_of
from tagspread.bench.table_parts import Entry, Row, Table, row_name
from tagspread.bench.threshold_choice import BY_LABELS
from tagspread.data.datasets import find_dataset
from tagspread.methods import METHODS


def build_tables(dataset: str, records: Iterable[Record], planned: Iterable[Record]) -> list[Table]:
    """Return all tables of a dataset, by protocol, then by setup in order of first occurrence."""
    requested, finished = ([cell for cell in part if cell["dataset"] == dataset] for part in (planned, records))
    cells = {place_of(cell): cell for cell in (*requested, *current(finished, requested))}
    setups = {cell["setup"]["id"]: cell["setup"] for cell in cells.values()}
    redundant = _redundant_variants(cells.values())
    tables = []
    for protocol in PROTOCOLS:
        for name, setup in setups.items():
            shown = [c for c in cells.values() if c["setup"]["id"] == name and row_of(c) not in redundant]
            title = f"{find_dataset(dataset).title}, {describe(setup)}"
            methods = [cell for cell in shown if not _is_variant(cell)]
            variants = [cell for cell in shown if _is_variant(cell)]
            if methods:
                tables.append(_table(title, protocol, setup, methods, dataset))
            if variants:  # together with the unchanged method in the same splits
                splits = {_split(cell) for cell in variants}
                unchanged = [cell for cell in methods if not cell["variant"] and _split(cell) in splits]
                tables.append(_table(f"{title}, variants", protocol, setup, unchanged + variants, None))
    return tables


def _is_variant(cell: Record) -> bool:
    return cell["variant"] not in ("", BY_LABELS)


def _split(cell: Record) -> tuple[str, float, int]:
    return cell["method"], cell["p"], cell["seed"]


def _redundant_variants(cells: Iterable[Record]) -> set[RowName]:
    """Return the rows of variants whose cells are all in a row of chosen thresholds as well."""
    chosen = {cell["key"] for cell in cells if cell["variant"] == BY_LABELS}
    others = [cell for cell in cells if _is_variant(cell)]
    return {row_of(cell) for cell in others} - {row_of(cell) for cell in others if cell["key"] not in chosen}


def describe(setup: Record) -> str:
    """Describe a setup in a title."""
    descriptions = {"none": "no pretrained weights", "pretrained": "pretrained"}
    weights = descriptions.get(setup["weights"], f"weights {setup['weights_name']} ({setup['weights'][:8]})")
    data = "".join(f", {value} {name}" for name, value in setup["data"].items())
    asked = "".join(f", {name}={value}" for name, value in setup.get("asked", {}).items())
    return f"preset {setup['preset']}, {setup['backbone']}, {setup['image_size']} px, {weights}{data}{asked}"


def _table(title: str, protocol: str, setup: Record, cells: Sequence[Record], published_for: str | None) -> Table:
    """Return one table, with published values if a dataset is given."""
    shares = sorted({cell["p"] for cell in cells})
    names = sorted({(cell["method"], cell["variant"]) for cell in cells}, key=_rank)
    rows = []
    for method, variant in names:
        entries = []
        for share in shares:
            seeds = [c for c in cells if (c["method"], c["variant"], c["p"]) == (method, variant, share)]
            values = [100 * c[protocol] for c in seeds if c.get("status") == "done"]
            literature = published(published_for, method, share) if published_for else None
            entries.append(Entry(values, len(seeds), literature, sum(c.get("status") == "failed" for c in seeds)))
        rows.append(Row(row_name(method, variant), method, variant, entries))
    _make_names_unique(rows)
    wanted = max(entry.wanted for row in rows for entry in row.entries)
    for row in rows:
        for entry in row.entries:
            entry.wanted = wanted
    notes = [note for k, share in enumerate(shares) for note in judge(rows, k, share)]
    notes += own_settings(rows, cells) + chosen_thresholds(cells) + failures(cells)
    return Table(title, protocol, setup, shares, rows, notes)


def _make_names_unique(rows: Sequence[Row]) -> None:
    """Show the full path of custom methods whose files have the same name in two folders."""
    names = [row.name for row in rows]
    for row, name in zip(rows, names, strict=True):
        if names.count(name) > 1:
            row.name = f"{row.method}, {row.variant}".removesuffix(", ")


def _rank(name: tuple[str, str]) -> tuple[int, str, str]:
    method, variant = name
    order = in_order((*METHODS, method))
    return order.index(method), method, variant
