"""What is said around the tables: by which protocol, who is first or level, what failed, where it was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tagspread.bench.cells import all_options
from tagspread.bench.grid import PAPER_METHODS, in_order
from tagspread.bench.records import Record
from tagspread.bench.table_parts import MISSING, Row, Table, row_name
from tagspread.bench.threshold_choice import BY_LABELS
from tagspread.wording import counted

PROTOCOLS = {
    "honest": "last epoch, average network (EMA); where a run ends with its warm-up (BCE, ASL) the network that is "
    "handed on; with selection held_out, the network chosen there. Nothing is chosen by the test part",
    "parity": "best epoch of student or average network by the test part itself, as the published code reports it: "
    "optimistic, for comparison with published figures only",
}
UNLIKE = "The published figures are best-on-test, so the gap to them is not between like and like"


def marks_in(tables: Iterable[Table]) -> set[str]:
    """Return the marks of the published figures that tables have; none if they have no such figure."""
    return {
        entry.published.mark for table in tables for row in table.rows for entry in row.entries if entry.published
    }  # fmt: skip


def protocol_words(protocol: str, tables: Iterable[Table]) -> str:
    """Return what a protocol is, in sentences, with what tables with published figures need besides."""
    words, tables = PROTOCOLS[protocol], list(tables)
    more = f" {UNLIKE}." if protocol == "honest" and marks_in(tables) else ""
    pauses = {table.setup.get("settings", {}).get("evaluate_every", 1) for table in tables} - {1}
    if protocol == "parity" and pauses:
        more = f" Of every {' or '.join(map(str, sorted(pauses)))} epochs one was evaluated, and the last."
    if any(table.setup.get("settings", {}).get("mode") == "head" for table in tables):
        more += " A head on a frozen network (mode=head) is fitted at once: one figure, the same by both protocols."
    return f"{words[0].upper()}{words[1:]}.{more}"


def judge(rows: list[Row], k: int, share: float) -> list[str]:
    """Mark the best of a column and what ties with it; return what is to be said about it."""
    best, level = _highest(rows, k)
    for row in best:
        row.entries[k].best = True
    for row in level:
        row.entries[k].tie = True
    notes = [f"p = {share:g}: {_verdict(best, level, k)}"] if best else []
    if best and not any(row.method in PAPER_METHODS for row in best):
        best, level = _highest([row for row in rows if row.method in PAPER_METHODS], k)
        notes += [f"p = {share:g}, the CAP paper's methods: {_verdict(best, level, k)}"] if best else []
    return notes


def _highest(rows: list[Row], k: int) -> tuple[list[Row], list[Row]]:
    """Return the rows with the highest mean as it is shown, if there are two to choose from, and those level with it.

    Level is who lies within the standard deviation of the highest.
    """
    means = {row.name: row.entries[k].mean or 0.0 for row in rows if row.entries[k].values}
    if len(means) < 2:
        return [], []
    there = [row for row in rows if row.name in means]
    winner = max(there, key=lambda row: means[row.name])
    highest, std = means[winner.name], winner.entries[k].std
    others = [row for row in there if row is not winner]
    equal = [row for row in others if f"{means[row.name]:.2f}" == f"{highest:.2f}"]
    level = [row for row in others if std is not None and means[row.name] >= highest - std]
    # a threshold that was chosen may be the usual one: the same cells are no tie
    level = [row for row in level if (row.method, row.entries[k].values) != (winner.method, winner.entries[k].values)]
    return [winner, *equal], level


def _verdict(best: list[Row], level: list[Row], k: int) -> str:
    winner, std = best[0], best[0].entries[k].std
    if std is None:
        names = " and ".join(row.name for row in best)
        are = "is" if len(best) == 1 else "are"
        return f"{names} {are} highest, by one seed only: no spread is known, so no tie can be told."
    if not level:
        return f"{winner.name} is highest by more than one standard deviation ({std:.2f})."
    names = ", ".join(row.name for row in level)
    return f"{winner.name} is highest; a tie, within one standard deviation ({std:.2f}): {names}."


def own_settings(rows: Sequence[Row], cells: Sequence[Record]) -> list[str]:
    """Say which rows were trained with other settings than the table's, as their methods need them."""
    notes = []
    for row in rows:
        mine = [c.get("own", {}) for c in cells if (c["method"], c["variant"]) == (row.method, row.variant)]
        words = (", ".join(f"{name}={value}" for name, value in own.items()) for own in mine)
        notes += [f"{row.name} has settings of its own: {listed}." for listed in dict.fromkeys(words) if listed]
    return notes


def chosen_thresholds(cells: Sequence[Record]) -> list[str]:
    """Say which thresholds the held-out labels chose, one sentence for each method."""
    notes = []
    mine = sorted((c for c in cells if c["variant"] == BY_LABELS), key=lambda c: (c["p"], c["seed"]))
    for method in dict.fromkeys(c["method"] for c in mine):
        taken: dict[float, list[str]] = {}
        for c in (c for c in mine if c["method"] == method):
            threshold = all_options(method, c["options"])["threshold"]
            taken.setdefault(c["p"], []).append(MISSING if threshold is None else f"{threshold:g}")
        words = "; ".join(f"p = {share:g}: {', '.join(thresholds)}" for share, thresholds in taken.items())
        notes.append(f"{row_name(method, BY_LABELS)}, seed by seed: {words}.")
    return notes


def failures(cells: Sequence[Record]) -> list[str]:
    """Say which cells failed, one sentence for each reason."""
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
    """Return on what the figures were measured, and how long it took; where machines differ, what each has measured."""
    done = [record for record in records if record["status"] == "done"]
    machines = dict.fromkeys(record["machine"] for record in done)
    notes = []
    for machine in machines:
        here = [record for record in done if record["machine"] == machine]
        methods = in_order(record["method"] for record in here)
        names = f" ({', '.join(row_name(method, '') for method in methods)})" if len(machines) > 1 else ""
        minutes = sum(record["wall_seconds"] for record in here) / 60
        programs = ", ".join(sorted({f"tagspread {r['tagspread']}, torch {r['torch']}" for r in here}))
        notes.append(
            f"Measured on {machine}: {counted(len(here), 'cell')}{names}, {minutes:.1f} minutes if they are added up "
            f"({programs})."
        )
    return notes
