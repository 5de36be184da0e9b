"""From records to tables: methods by labeled shares, mean and spread over seeds, the published figure beside each.

A table is made of plain values first; ``write_tables`` then writes all of them as Markdown, CSV and HTML.
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
    """Return all tables of a data set: by protocol, then by setup in the order in which they came."""
    asked, found = ([cell for cell in some if cell["dataset"] == dataset] for some in (planned, records))
    cells = {place_of(cell): cell for cell in (*asked, *current(found, asked))}
    setups = {cell["setup"]["id"]: cell["setup"] for cell in cells.values()}
    said = _said_already(cells.values())
    tables = []
    for protocol in PROTOCOLS:
        for name, setup in setups.items():
            here = [c for c in cells.values() if c["setup"]["id"] == name and row_of(c) not in said]
            title = f"{find_dataset(dataset).title}, {describe(setup)}"
            usual = [cell for cell in here if not _is_variant(cell)]
            varied = [cell for cell in here if _is_variant(cell)]
            if usual:
                tables.append(_table(title, protocol, setup, usual, dataset))
            if varied:  # beside the method as it is, in the same splits
                splits = {_split(cell) for cell in varied}
                beside = [cell for cell in usual if not cell["variant"] and _split(cell) in splits]
                tables.append(_table(f"{title}, variants", protocol, setup, beside + varied, None))
    return tables


def _is_variant(cell: Record) -> bool:
    return cell["variant"] not in ("", BY_LABELS)


def _split(cell: Record) -> tuple[str, float, int]:
    return cell["method"], cell["p"], cell["seed"]


def _said_already(cells: Iterable[Record]) -> set[RowName]:
    """Return the variants of which every cell stands in a row of chosen thresholds, too."""
    chosen = {cell["key"] for cell in cells if cell["variant"] == BY_LABELS}
    others = [cell for cell in cells if _is_variant(cell)]
    return {row_of(cell) for cell in others} - {row_of(cell) for cell in others if cell["key"] not in chosen}


def describe(setup: Record) -> str:
    """Return a setup in words."""
    known = {"none": "no pretrained weights", "pretrained": "pretrained"}
    weights = known.get(setup["weights"], f"weights {setup['weights_name']} ({setup['weights'][:8]})")
    data = "".join(f", {value} {name}" for name, value in setup["data"].items())
    asked = "".join(f", {name}={value}" for name, value in setup.get("asked", {}).items())
    return f"preset {setup['preset']}, {setup['backbone']}, {setup['image_size']} px, {weights}{data}{asked}"


def _table(title: str, protocol: str, setup: Record, cells: Sequence[Record], published_for: str | None) -> Table:
    """Return one table; with a data set's name, the published figures stand beside its own."""
    shares = sorted({cell["p"] for cell in cells})
    names = sorted({(cell["method"], cell["variant"]) for cell in cells}, key=_rank)
    rows = []
    for method, variant in names:
        entries = []
        for share in shares:
            here = [c for c in cells if (c["method"], c["variant"], c["p"]) == (method, variant, share)]
            values = [100 * c[protocol] for c in here if c.get("status") == "done"]
            beside = published(published_for, method, share) if published_for else None
            entries.append(Entry(values, len(here), beside, sum(c.get("status") == "failed" for c in here)))
        rows.append(Row(row_name(method, variant), method, variant, entries))
    _tell_apart(rows)
    most = max(entry.wanted for row in rows for entry in row.entries)
    for row in rows:
        for entry in row.entries:
            entry.wanted = most
    notes = [note for k, share in enumerate(shares) for note in judge(rows, k, share)]
    notes += own_settings(rows, cells) + chosen_thresholds(cells) + failures(cells)
    return Table(title, protocol, setup, shares, rows, notes)


def _tell_apart(rows: Sequence[Row]) -> None:
    """Name methods of the user's own by their whole path where files of one name lie in two folders."""
    names = [row.name for row in rows]
    for row, name in zip(rows, names, strict=True):
        if names.count(name) > 1:
            row.name = f"{row.method}, {row.variant}".removesuffix(", ")


def _rank(name: tuple[str, str]) -> tuple[int, str, str]:
    method, variant = name
    order = in_order((*METHODS, method))
    return order.index(method), method, variant
