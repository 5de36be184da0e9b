"""Data model of benchmark tables: entries, rows and tables, before they are written as Markdown, CSV or HTML."""

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
MISSING = "\u2013"  # shown for a cell that was not run


@dataclass
class Entry:
    """One entry of a table: mAP in percent.

    Attributes:
        values: mAP of each seed.
        wanted: number of requested seeds.
        published: the published value.
        failed: number of failed seeds.
        best: whether the mean is the highest of its column.
        tie: whether the mean is within one standard deviation of the highest.
        gain: mean difference to the labeled images alone, over the seeds that both have; None if they were not run.
        share: the mean, as a share of what all labels give; None if that was not run.
    """

    values: list[float]
    wanted: int
    published: Published | None
    failed: int = 0
    best: bool = False
    tie: bool = False
    gain: float | None = None
    share: float | None = None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over the seeds (n - 1); None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def gap(self) -> float | None:
        """Difference to the published value."""
        return None if self.mean is None or self.published is None else self.mean - self.published.value

    def text(self) -> str:
        """Format mean and standard deviation, with the number of seeds if some are missing.

        >>> Entry([70.0, 71.0], 3, None).text()
        '70.50 ± 0.71 (n = 2)'
        """
        if self.mean is None:
            return "failed" if self.failed else MISSING
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{spread}" + (f" (n = {len(self.values)})" if len(self.values) < self.wanted else "")

    def relative_text(self) -> str:
        """Format the gain over the labeled images alone, and the share of what all labels give.

        >>> Entry([70.0], 1, None, gain=2.0, share=0.875).relative_text()
        '+2.00, 87.5 %'
        """
        parts = (
            "" if self.gain is None else signed(self.gain),
            "" if self.share is None else f"{100 * self.share:.1f} %",
        )
        return ", ".join(part for part in parts if part) or MISSING

    def published_text(self) -> str:
        """Format the published value and the difference to it."""
        if self.published is None:
            return ""
        gap = "" if self.gap is None else f", {signed(self.gap)}"
        return f"{self.published.value:.2f}{self.published.mark}{gap}"


@dataclass
class Row:
    """The row of a method or of one of its variants."""

    name: str
    method: str
    variant: str
    entries: list[Entry]

    @property
    def plain_method(self) -> str:
        """The method; for a method from a file without its folder, unless another file has the same name."""
        return self.method if self.method in TITLES else self.name.removesuffix(f", {self.variant}")


@dataclass
class Table:
    """The table of one dataset, protocol and setup."""

    title: str
    protocol: str
    setup: Record
    shares: list[float]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    baseline: str = ""  # name of the row that gains refer to, if any

    @property
    def relative(self) -> str:
        """What the second table shows; empty if there is nothing to show."""
        shown = [entry for row in self.rows for entry in row.entries]
        parts = ["gain over the labeled images alone"] if any(entry.gain is not None for entry in shown) else []
        parts += ["share of what all labels give"] if any(entry.share is not None for entry in shown) else []
        return " and ".join(parts)


def signed(value: float) -> str:
    """Format a number with its sign, using the minus sign instead of a hyphen.

    >>> signed(1.0)
    '+1.00'
    """
    return f"{value:+.2f}".replace("-", MINUS)


def row_name(method: str, variant: str) -> str:
    """Return the name of a row; a method from a file is named without its folder.

    >>> row_name("cap", "keep_pos=0.8"), row_name("topk", ""), row_name("/home/me/rules.py:Rule", "")
    ('CAP, keep_pos=0.8', 'Top-k', 'rules.py:Rule')
    """
    return f"{TITLES.get(method, Path(method).name)}, {variant}".removesuffix(", ")
