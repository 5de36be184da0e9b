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

ALL_LABELS = 0.99  # cells with at least this share of the labels show what all labels give


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
    baseline = _compare_with_labels_alone(rows, shares, cells, protocol)
    wanted = max(entry.wanted for row in rows for entry in row.entries)
    for row in rows:
        for entry in row.entries:
            entry.wanted = wanted
    notes = [note for k, share in enumerate(shares) for note in judge(rows, k, share)]
    notes += own_settings(rows, cells) + chosen_thresholds(cells) + failures(cells)
    return Table(title, protocol, setup, shares, rows, notes, baseline)


def _compare_with_labels_alone(
    rows: Sequence[Row], shares: Sequence[float], cells: Sequence[Record], protocol: str
) -> str:
    """Fill in the gains over the best method without the unlabeled set, and the shares of what all labels give.

    "All labels" is what that method, or a better one of its kind, reaches with at least ``ALL_LABELS`` of the labels.

    Returns:
        The name of the row that the gains refer to.
    """
    alone = [
        row for row in rows if row.method in METHODS and not METHODS[row.method].uses_unlabeled and not row.variant
    ]
    means = {row.name: [entry.mean for entry in row.entries if entry.mean is not None] for row in alone}
    if not any(means.values()):
        return ""
    baseline = max(alone, key=lambda row: (len(means[row.name]), sum(means[row.name])))
    ceilings = [
        entry.mean
        for row in alone
        for share, entry in zip(shares, row.entries, strict=True)
        if share >= ALL_LABELS and entry.mean is not None
    ]
    values = {
        (c["method"], c["variant"], c["p"], c["seed"]): 100 * c[protocol] for c in cells if c.get("status") == "done"
    }
    for row in rows:
        for share, entry in zip(shares, row.entries, strict=True):
            if row is not baseline:
                gains = [
                    value - values[baseline.method, "", share, seed]
                    for (method, variant, p, seed), value in values.items()
                    if (method, variant, p) == (row.method, row.variant, share)
                    and (baseline.method, "", share, seed) in values
                ]
                entry.gain = sum(gains) / len(gains) if gains else None
            if ceilings and entry.mean is not None:
                entry.share = entry.mean / max(ceilings)
    return baseline.name


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
