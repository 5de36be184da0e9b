"""The report of a dataset check: findings, places and class frequencies, printed as tables or written as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tagspread.aliases import JsonObject
from tagspread.wording import counted

LEVELS = {
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
}  # from what blocks training to what is only good to know
LABELS, TEST = "labels", "test labels"  # names of the two tables in messages
SUMMARY = {
    "labeled": "labeled",
    "test": "test",
    "unlabeled": "unlabeled",
    "unreadable": "unreadable",
    "copies_in_unlabeled": "copies within the unlabeled set",
}
TAGS = 100  # rows shown in the table of tags
PLACES = 10  # shown per finding; JSON has them all


@dataclass(frozen=True)
class Place:
    """The place of a finding: file, row (from 1, below the header) and tag where they apply, and a remark."""

    file: str = ""
    row: int = 0
    tag: str = ""
    table: str = ""  # which table the row is in: "labels" or "test labels"
    remark: str = ""

    def __str__(self) -> str:
        """Return the place as one line of text.

        >>> print(Place(file="Cat.jpg", row=3, table="labels", remark="did you mean cat.jpg?"))
        Cat.jpg (labels row 3): did you mean cat.jpg?
        """
        where = f"{self.table} row {self.row}".strip() if self.row else self.table
        named = self.file or self.tag
        text = f"{named} ({where})" if named and where else named or where
        return f"{text}: {self.remark}" if self.remark else text


@dataclass(frozen=True)
class Finding:
    """A problem that blocks training ("error"), a doubtful point ("warning") or a fact ("note"), with its places."""

    level: str
    kind: str
    message: str
    places: tuple[Place, ...] = ()


def finding_at(level: str, kind: str, what: str, advice: str, places: Sequence[Place]) -> Iterator[Finding]:
    """Yield one finding with all its places, or nothing if there are no places.

    >>> [finding.message for finding in finding_at("error", "missing", "Missing files", "add them.", [Place("a.jpg")])]
    ['Missing files (1): add them.']
    """
    if places:
        yield Finding(level, kind, f"{what} ({len(places):,}): {advice}", tuple(places))


@dataclass(frozen=True)
class ClassFacts:
    """Frequency of a class in the labeled set, and its expected count in the unlabeled set (90 % interval)."""

    name: str
    positives: int
    known: int
    proportion: float | None  # None if no label of the class is known
    low: float
    high: float
    unlabeled_low: int
    unlabeled_high: int


@dataclass(frozen=True)
class CheckReport:
    """All findings of a check, with class frequencies and image counts.

    >>> report = CheckReport((Finding("error", "missing_file", "1 file is missing.", (Place("a.jpg", 1),)),))
    >>> report.ok, report.to_dict()["findings"][0]["places"]
    (False, [{'file': 'a.jpg', 'row': 1}])
    """

    findings: tuple[Finding, ...]
    classes: tuple[ClassFacts, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether training can start: there are no errors."""
        return not self.of("error")

    def of(self, level: str) -> list[Finding]:
        """Return the findings of one level."""
        return [finding for finding in self.findings if finding.level == level]

    def to_dict(self) -> JsonObject:
        """Return the report as plain lists and dictionaries for JSON; empty fields of a place are left out."""
        findings = [
            {
                "level": finding.level,
                "kind": finding.kind,
                "message": finding.message,
                "places": [{k: v for k, v in asdict(place).items() if v} for place in finding.places],
            }
            for finding in self.findings
        ]
        classes = [asdict(facts) for facts in self.classes]
        return {"ok": self.ok, "counts": dict(self.counts), "findings": findings, "classes": classes}


def render(report: CheckReport, console: Console) -> None:
    """Print a report as text and tables, errors first."""
    console.print(_summary(report.counts), highlight=False)
    if report.classes:
        console.print()
        console.print(_class_table(report))
    for level, style in LEVELS.items():
        for finding in report.of(level):
            console.print()
            console.print(f"[{style}]{level}[/] {escape(finding.message)}", highlight=False, soft_wrap=True)
            for line in _place_lines(finding):
                console.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)
    console.print()
    console.print(_closing(report), highlight=False)


def _summary(counts: Mapping[str, int]) -> str:
    parts = [f"{counts[name]:,} {words}" for name, words in SUMMARY.items() if counts.get(name)]
    return f"[bold]{counts.get('images', 0):,} images[/]" + (": " + ", ".join(parts) if parts else "")


def _class_table(report: CheckReport) -> Table:
    table = Table(title="Tags of the labeled images, rarest first", title_justify="left")
    table.add_column("tag", overflow="fold")
    columns = ["images", "of", "share %", "90 % interval", "expected in unlabeled set"]
    columns = columns if report.counts.get("unlabeled") else columns[:-1]
    for name in columns:
        table.add_column(name, justify="right")
    rarest = sorted(
        report.classes, key=lambda facts: (facts.positives, facts.name)
    )  # rare tags are the ones with problems
    for facts in rarest[:TAGS]:
        style = "red" if facts.positives == 0 else "yellow" if facts.positives <= 2 else ""
        share = "" if facts.proportion is None else f"{100 * facts.proportion:.1f}"
        interval = "" if facts.proportion is None else f"{100 * facts.low:.1f} to {100 * facts.high:.1f}"
        unlabeled = "" if facts.proportion is None else f"{facts.unlabeled_low:,} to {facts.unlabeled_high:,}"
        row = [f"{facts.positives:,}", f"{facts.known:,}", share, interval, unlabeled]
        table.add_row(escape(facts.name), *row[: len(columns)], style=style)
    if len(rarest) > TAGS:
        table.caption = f"and {len(rarest) - TAGS:,} more frequent tags"
    return table


def _place_lines(finding: Finding) -> list[str]:
    lines = [str(place) for place in finding.places[:PLACES]]
    more = len(finding.places) - PLACES
    return [*lines, f"and {more:,} more"] if more > 0 else lines


def _closing(report: CheckReport) -> str:
    errors, warnings = len(report.of("error")), len(report.of("warning"))
    if errors:
        remedy = "fix it" if errors == 1 else "fix them"
        return f"[bold red]Not ready to train:[/] {counted(errors, 'error')}; {remedy} and run the check again."
    if warnings:
        return f"[bold yellow]Ready to train[/], with {counted(warnings, 'warning')} to read first."
    return "[bold green]Ready to train:[/] no errors, no warnings."
