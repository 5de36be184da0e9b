"""From records to tables: methods by labelled shares, mean and spread over seeds, the published figure beside each.

A table is made of plain values first; ``write_tables`` then writes all of them as Markdown, CSV and HTML.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tagspread.bench.cells import all_options
from tagspread.bench.chosen import BY_LABELS
from tagspread.bench.grid import PAPER_METHODS, in_order
from tagspread.bench.literature import Published, published
from tagspread.bench.places import Record, RowName, current, place_of, row_of
from tagspread.methods import METHODS
from tagspread.wording import MINUS, counted

TITLES: dict[str, str] = {
    "bce": "BCE", "asl": "ASL", "llr": "LL-R", "llct": "LL-Ct", "llcp": "LL-Cp", "plc": "PLC", "top1": "Top-1",
    "topk": "Top-k", "iat": "IAT", "adsh": "ADSH", "freematch": "FreeMatch", "drml": "DRML", "cap": "CAP",
    "mat": "MAT", "d2l": "D2L", "dicap": "DiCaP",
}  # fmt: skip
MISSING = "\u2013"  # a dash as it is printed
PROTOCOLS = {
    "honest": "last epoch, average network (EMA); where a run ends with its warm-up (BCE, ASL) the network that is "
    "handed on; with selection held_out, the network chosen there. Nothing is chosen by the test part",
    "parity": "best epoch of student or average network by the test part itself, as the published code reports it: "
    "optimistic, for comparison with published figures only",
}
UNLIKE = "The published figures are best-on-test, so the gap to them is not between like and like"


@dataclass
class Entry:
    """One cell of a table: figures in percent."""

    values: list[float]
    wanted: int
    published: Published | None
    failed: int = 0
    best: bool = False
    tie: bool = False

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Standard deviation over the seeds (n - 1), if there are two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def gap(self) -> float | None:
        """How far above the published figure."""
        return None if self.mean is None or self.published is None else self.mean - self.published.value

    def text(self) -> str:
        """Return mean and spread, with the number of seeds where some are missing.

        >>> Entry([70.0, 71.0], 3, None).text()
        '70.50 ± 0.71 (n = 2)'
        """
        if self.mean is None:
            return "failed" if self.failed else MISSING
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{spread}" + (f" (n = {len(self.values)})" if len(self.values) < self.wanted else "")

    def published_text(self) -> str:
        """Return the published figure and the gap."""
        if self.published is None:
            return ""
        gap = "" if self.gap is None else f", {signed(self.gap)}"
        return f"{self.published.value:.2f}{self.published.mark}{gap}"


@dataclass
class Row:
    """A method's line."""

    name: str
    method: str
    variant: str
    entries: list[Entry]


@dataclass
class Table:
    """One table: a data set, a protocol, a setup."""

    title: str
    protocol: str
    setup: Record
    shares: list[float]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def signed(value: float) -> str:
    """Return a number with its sign, a true minus where it is negative.

    >>> signed(1.0)
    '+1.00'
    """
    return f"{value:+.2f}".replace("-", MINUS)


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
        more = f" Of every {' or '.join(map(str, sorted(pauses)))} epochs one was looked at, and the last."
    return f"{words[0].upper()}{words[1:]}.{more}"


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
            for kind in ("", ", variants"):
                if chosen := [cell for cell in here if (cell["variant"] not in ("", BY_LABELS)) == bool(kind)]:
                    title = f"{dataset.upper()}, {describe(setup)}{kind}"
                    tables.append(_table(title, protocol, setup, chosen, dataset))
    return tables


def _said_already(cells: Iterable[Record]) -> set[RowName]:
    """Return the variants of which every cell stands in a row of chosen thresholds, too."""
    chosen = {cell["key"] for cell in cells if cell["variant"] == BY_LABELS}
    others = [cell for cell in cells if cell["variant"] not in ("", BY_LABELS)]
    return {row_of(cell) for cell in others} - {row_of(cell) for cell in others if cell["key"] not in chosen}


def row_name(method: str, variant: str) -> str:
    """Return what a row is called; of a method from a file not where that lies.

    >>> row_name("cap", "keep_pos=0.8"), row_name("topk", ""), row_name("/home/me/rules.py:Rule", "")
    ('CAP, keep_pos=0.8', 'Top-k', 'rules.py:Rule')
    """
    return f"{TITLES.get(method, Path(method).name)}, {variant}".removesuffix(", ")


def describe(setup: Record) -> str:
    """Return a setup in words."""
    known = {"none": "no pretrained weights", "pretrained": "pretrained"}
    weights = known.get(setup["weights"], f"weights {setup['weights_name']} ({setup['weights'][:8]})")
    data = "".join(f", {value} {name}" for name, value in setup["data"].items())
    asked = "".join(f", {name}={value}" for name, value in setup.get("asked", {}).items())
    return f"preset {setup['preset']}, {setup['backbone']}, {setup['image_size']} px, {weights}{data}{asked}"


def _table(title: str, protocol: str, setup: Record, cells: Sequence[Record], dataset: str) -> Table:
    shares = sorted({cell["p"] for cell in cells})
    names = sorted({(cell["method"], cell["variant"]) for cell in cells}, key=_rank)
    rows = []
    for method, variant in names:
        entries = []
        for share in shares:
            here = [c for c in cells if (c["method"], c["variant"], c["p"]) == (method, variant, share)]
            values = [100 * c[protocol] for c in here if c.get("status") == "done"]
            beside = published(dataset, method, share) if variant in ("", BY_LABELS) else None
            entries.append(Entry(values, len(here), beside, sum(c.get("status") == "failed" for c in here)))
        rows.append(Row(row_name(method, variant), method, variant, entries))
    _tell_apart(rows)
    most = max(entry.wanted for row in rows for entry in row.entries)
    for row in rows:
        for entry in row.entries:
            entry.wanted = most
    notes = [note for k, share in enumerate(shares) for note in _judge(rows, k, share)]
    notes += _own_settings(rows, cells) + _chosen(cells) + _failures(cells)
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


def _judge(rows: list[Row], k: int, share: float) -> list[str]:
    """Mark the best of a column and what ties with it; return what is to be said about it."""
    winner, level = _highest(rows, k)
    if winner is None:
        return []
    winner.entries[k].best = True
    for row in level:
        row.entries[k].tie = True
    notes = [f"p = {share:g}: {_verdict(winner, level, k)}"]
    if winner.method not in PAPER_METHODS:
        winner, level = _highest([row for row in rows if row.method in PAPER_METHODS], k)
        notes += [f"p = {share:g}, the CAP paper's methods: {_verdict(winner, level, k)}"] if winner else []
    return notes


def _highest(rows: list[Row], k: int) -> tuple[Row | None, list[Row]]:
    """Return the row with the highest mean, if there are two to choose from, and those within its deviation."""
    means = {row.name: row.entries[k].mean or 0.0 for row in rows if row.entries[k].values}
    if len(means) < 2:
        return None, []
    winner = max((row for row in rows if row.name in means), key=lambda row: means[row.name])
    lowest = means[winner.name] - (winner.entries[k].std or 0.0)
    alone = winner.entries[k].std is None
    level = [row for row in rows if row is not winner and row.name in means and means[row.name] >= lowest]
    # a threshold that was chosen may be the usual one: the same cells are no tie
    level = [row for row in level if (row.method, row.entries[k].values) != (winner.method, winner.entries[k].values)]
    return winner, [] if alone else level


def _verdict(winner: Row, level: list[Row], k: int) -> str:
    std = winner.entries[k].std
    if std is None:
        return f"{winner.name} is highest, by one seed only: no spread is known, so no tie can be told."
    if not level:
        return f"{winner.name} is highest by more than one standard deviation ({std:.2f})."
    names = ", ".join(row.name for row in level)
    return f"{winner.name} is highest; a tie, within one standard deviation ({std:.2f}): {names}."


def _own_settings(rows: Sequence[Row], cells: Sequence[Record]) -> list[str]:
    """Say which rows were trained with other settings than the table's, as their methods need them."""
    notes = []
    for row in rows:
        own = {row_of(c): c.get("own") for c in cells if (c["method"], c["variant"]) == (row.method, row.variant)}
        for settings in filter(None, own.values()):
            listed = ", ".join(f"{name}={value}" for name, value in settings.items())
            notes.append(f"{row.name} has settings of its own: {listed}.")
    return notes


def _chosen(cells: Sequence[Record]) -> list[str]:
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


def _failures(cells: Sequence[Record]) -> list[str]:
    return list(
        dict.fromkeys(
            f"failed: {c['method']}, p = {c['p']:g}, seed {c['seed']}: {c['message'].splitlines()[0]}"
            for c in cells
            if c.get("status") == "failed"
        )
    )


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
