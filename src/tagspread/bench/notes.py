"""Notes for benchmark tables: protocols, best methods and ties, failed cells, machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tagspread.bench.cells import all_options
from tagspread.bench.grid import PAPER_METHODS, in_order
from tagspread.bench.records import Record
from tagspread.bench.table_parts import MISSING, Row, Table, row_name
from tagspread.bench.threshold_choice import BY_LABELS
from tagspread.wording import counted

PROTOCOLS = {
    "honest": "last epoch, teacher (EMA). Runs that consist of the warm-up only (BCE, ASL) use the network with which "
    "training on unlabeled images would start; with selection held_out, the network chosen on the held-out images. "
    "Nothing is chosen on the test images",
    "parity": "best test mAP of any epoch, of student or teacher, as the published code reports it. It is optimistic "
    "and meant for comparison with published values only",
}
DIFFERENT_PROTOCOL = (
    "The published values are the best of all epochs on the test images, so they cannot be compared directly"
)


def marks_in(tables: Iterable[Table]) -> set[str]:
    """Return the marks of the sources of all published values in the tables."""
    return {
        entry.published.mark for table in tables for row in table.rows for entry in row.entries if entry.published
    }  # fmt: skip


def protocol_words(protocol: str, tables: Iterable[Table]) -> str:
    """Describe a protocol, with remarks that depend on the tables."""
    words, tables = PROTOCOLS[protocol], list(tables)
    more = f" {DIFFERENT_PROTOCOL}." if protocol == "honest" and marks_in(tables) else ""
    periods = {table.setup.get("settings", {}).get("evaluate_every", 1) for table in tables} - {1}
    if protocol == "parity" and periods:
        more = f" The mAP was evaluated every {' or '.join(map(str, sorted(periods)))} epochs and after the last epoch."
    if any(table.setup.get("settings", {}).get("mode") == "head" for table in tables):
        more += " A head on a frozen network (mode=head) has no epochs, so both protocols give the same value."
    return f"{words[0].upper()}{words[1:]}.{more}"


def judge(rows: list[Row], k: int, share: float) -> list[str]:
    """Mark the best entry of a column and its ties; return sentences about them."""
    best, ties = _highest(rows, k)
    for row in best:
        row.entries[k].best = True
    for row in ties:
        row.entries[k].tie = True
    notes = [f"p = {share:g}: {_describe_best(best, ties, k)}"] if best else []
    if best and not any(row.method in PAPER_METHODS for row in best):
        best, ties = _highest([row for row in rows if row.method in PAPER_METHODS], k)
        notes += [f"p = {share:g}, methods of the CAP paper: {_describe_best(best, ties, k)}"] if best else []
    return notes


def _highest(rows: list[Row], k: int) -> tuple[list[Row], list[Row]]:
    """Return the rows with the highest displayed mean, and their ties: rows within one standard deviation of it.

    With fewer than two measured rows, both lists are empty.
    """
    means = {row.name: row.entries[k].mean or 0.0 for row in rows if row.entries[k].values}
    if len(means) < 2:
        return [], []
    measured = [row for row in rows if row.name in means]
    winner = max(measured, key=lambda row: means[row.name])
    highest, std = means[winner.name], winner.entries[k].std
    others = [row for row in measured if row is not winner]
    equal = [row for row in others if f"{means[row.name]:.2f}" == f"{highest:.2f}"]
    ties = [row for row in others if std is not None and means[row.name] >= highest - std]
    # if the chosen threshold is the default, two rows have the same cells, which is not a tie
    ties = [row for row in ties if (row.method, row.entries[k].values) != (winner.method, winner.entries[k].values)]
    return [winner, *equal], ties


def _describe_best(best: list[Row], ties: list[Row], k: int) -> str:
    winner, std = best[0], best[0].entries[k].std
    if std is None:
        names = " and ".join(row.name for row in best)
        are = "is" if len(best) == 1 else "are"
        return f"{names} {are} highest, with one seed only, so the spread and ties are unknown."
    if not ties:
        return f"{winner.name} is highest by more than one standard deviation ({std:.2f})."
    names = ", ".join(row.name for row in ties)
    return f"{winner.name} is highest, tied within one standard deviation ({std:.2f}) with {names}."


def own_settings(rows: Sequence[Row], cells: Sequence[Record]) -> list[str]:
    """Name the rows whose methods were trained with settings that differ from the table's."""
    notes = []
    for row in rows:
        different = [c.get("own", {}) for c in cells if (c["method"], c["variant"]) == (row.method, row.variant)]
        texts = (", ".join(f"{name}={value}" for name, value in own.items()) for own in different)
        notes += [f"{row.name} uses its own settings: {text}." for text in dict.fromkeys(texts) if text]
    return notes


def chosen_thresholds(cells: Sequence[Record]) -> list[str]:
    """List the thresholds chosen on held-out labels, one sentence per method."""
    notes = []
    chosen = sorted((c for c in cells if c["variant"] == BY_LABELS), key=lambda c: (c["p"], c["seed"]))
    for method in dict.fromkeys(c["method"] for c in chosen):
        thresholds: dict[float, list[str]] = {}
        for c in (c for c in chosen if c["method"] == method):
            threshold = all_options(method, c["options"])["threshold"]
            thresholds.setdefault(c["p"], []).append(MISSING if threshold is None else f"{threshold:g}")
        words = "; ".join(f"p = {share:g}: {', '.join(values)}" for share, values in thresholds.items())
        notes.append(f"{row_name(method, BY_LABELS)}, by seed: {words}.")
    return notes


def failures(cells: Sequence[Record]) -> list[str]:
    """List the failed cells, one sentence per method and reason."""
    where: dict[tuple[str, str], dict[float, list[str]]] = {}
    for c in (c for c in cells if c.get("status") == "failed"):
        seeds = where.setdefault((c["method"], c["message"].splitlines()[0]), {}).setdefault(c["p"], [])
        seeds += [] if str(c["seed"]) in seeds else [str(c["seed"])]
    notes = []
    for (method, message), shares in where.items():
        places = (f"p = {p:g}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" for p, seeds in shares.items())
        notes.append(f"failed: {method}, {'; '.join(places)}: {message}")
    return notes


def machine_notes(records: Iterable[Record]) -> list[str]:
    """Describe the machines that ran the cells, the total time, and the software versions."""
    done = [record for record in records if record["status"] == "done"]
    machines = dict.fromkeys(record["machine"] for record in done)
    notes = []
    for machine in machines:
        measured = [record for record in done if record["machine"] == machine]
        methods = in_order(record["method"] for record in measured)
        names = f" ({', '.join(row_name(method, '') for method in methods)})" if len(machines) > 1 else ""
        minutes = sum(record["wall_seconds"] for record in measured) / 60
        programs = ", ".join(sorted({f"tagspread {r['tagspread']}, torch {r['torch']}" for r in measured}))
        notes.append(
            f"Measured on {machine}: {counted(len(measured), 'cell')}{names}, {minutes:.1f} minutes in total "
            f"({programs})."
        )
    return notes
