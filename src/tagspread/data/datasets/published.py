"""Published benchmark results: test mAP in percent by method and labeled share, with references."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

SHARES = (0.05, 0.1, 0.15, 0.2)  # labeled shares of the CAP paper


class Paper(NamedTuple):
    """A paper with results, and the mark of its results in tables."""

    title: str
    reference: str
    mark: str


# According to its released code, these are the best test results over all epochs, of the raw and the EMA network, with
# one seed, ResNet-50 and 224 pixels. No standard deviations were published.
CAP_PAPER = Paper("CAP paper (NeurIPS 2023)", "arXiv 2305.02795, tables 1 and 2", "")
DICAP_PAPER = Paper(
    "DiCaP paper (AAAI 2026)",
    "arXiv 2511.20225, part of its main table as reproduced in public paper notes (zhaoyang97/Paper-Notes-en); the "
    "heads used for rows other than DiCaP's (ML-Decoder) are not known",
    "†",
)


@dataclass(frozen=True)
class PublishedTable:
    """The results of one paper on one dataset; None where it reports no result.

    >>> PublishedTable(CAP_PAPER, {"cap": (76.16, 82.16, 83.48, 84.41)}).value("cap", 0.1)
    82.16
    """

    paper: Paper
    rows: Mapping[str, tuple[float | None, ...]]  # method -> a result per share
    shares: tuple[float, ...] = SHARES

    def value(self, method: str, share: float) -> float | None:
        """Return the result of a method at a labeled share, or None."""
        column = next((k for k, own in enumerate(self.shares) if math.isclose(own, share)), None)
        return None if column is None or method not in self.rows else self.rows[method][column]
