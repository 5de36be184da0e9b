"""What a table is made of: plain values, which become Markdown, CSV and HTML elsewhere."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from tagspread.bench.literature import Published
from tagspread.bench.records import Record
from tagspread.wording import MINUS

TITLES: dict[str, str] = {
    "bce": "BCE", "asl": "ASL", "llr": "LL-R", "llct": "LL-Ct", "llcp": "LL-Cp", "plc": "PLC", "top1": "Top-1",
    "topk": "Top-k", "iat": "IAT", "adsh": "ADSH", "freematch": "FreeMatch", "drml": "DRML", "cap": "CAP",
    "mat": "MAT", "d2l": "D2L", "dicap": "DiCaP",
}  # fmt: skip
MISSING = "\u2013"  # a dash as it is printed


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

    @property
    def plain_method(self) -> str:
        """The method, of one from a file not where that lies, unless two of one name must be told apart."""
        return self.method if self.method in TITLES else self.name.removesuffix(f", {self.variant}")


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


def row_name(method: str, variant: str) -> str:
    """Return what a row is called; of a method from a file not where that lies.

    >>> row_name("cap", "keep_pos=0.8"), row_name("topk", ""), row_name("/home/me/rules.py:Rule", "")
    ('CAP, keep_pos=0.8', 'Top-k', 'rules.py:Rule')
    """
    return f"{TITLES.get(method, Path(method).name)}, {variant}".removesuffix(", ")
