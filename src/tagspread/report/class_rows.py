"""One row of figures per tag, from all that is known: labels, pseudo-labels, and how good the tagger is at it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tagspread.core.theory import proportion_interval
from tagspread.core.thresholds import class_counts
from tagspread.predict.evaluation import CONFIDENCE, ClassMetrics
from tagspread.report.scored import ScoredPart
from tagspread.report.summary import RunSummary


@dataclass(frozen=True)
class ClassRow:
    """A tag; None where nothing is known.

    Attributes:
        place: its number among the classes.
        name: the tag.
        labeled: labeled images that carry it and were trained on.
        share: the share that is, of those where it is known.
        share_ends: the exact 90 % interval of that share.
        pseudo: images of the unlabeled set that were taken to carry it.
        assigned: the share that is.
        possible: the share if all that were left open carried it as well.
        flips: how often its pseudo-labels changed, per hundred images of the unlabeled set.
        threshold: the probability from which on it is chosen; None: never.
        measured: how good the tagger is at it.
    """

    place: int
    name: str
    labeled: int | None
    share: float | None
    share_ends: tuple[float, float] | None
    pseudo: int | None
    assigned: float | None
    possible: float | None
    flips: float | None
    threshold: float | None
    measured: ClassMetrics | None

    @property
    def surprising(self) -> bool:
        """Whether more, or fewer, images of the unlabeled set got the tag than the labeled part makes likely."""
        if self.assigned is None or self.possible is None or self.share_ends is None:
            return False
        low, high = self.share_ends
        return self.assigned > high or self.possible < low


def class_rows(summary: RunSummary, trained: np.ndarray | None, scored: ScoredPart | None) -> list[ClassRow]:
    """Return a row per tag.

    Args:
        summary: the run.
        trained: labels that were trained on, images x classes.
        scored: what the tagger says of labeled images; its figures count only if they were not trained on.
    """
    if summary.artifact is None:
        return []
    counts = None if trained is None else class_counts(trained)
    unlabeled = summary.unlabeled if summary.unlabeled is not None and summary.unlabeled.size else None
    rows = []
    for k, name in enumerate(summary.classes):
        positives, known = (None, 0) if counts is None else (int(counts[0][k]), int(counts[1][k]))
        ends = None
        if positives is not None and known:
            low, high = proportion_interval([positives], known, CONFIDENCE)
            ends = (float(low[0]), float(high[0]))
        cut = float(summary.artifact.thresholds[k])
        rows.append(
            ClassRow(
                place=k,
                name=name,
                labeled=positives,
                share=positives / known if positives is not None and known else None,
                share_ends=ends,
                pseudo=None if unlabeled is None else int(unlabeled.positives[k]),
                assigned=None if unlabeled is None else float(unlabeled.positives[k] / unlabeled.size),
                possible=None
                if unlabeled is None
                else float((unlabeled.positives[k] + unlabeled.ignored[k]) / unlabeled.size),
                flips=None if unlabeled is None else float(100 * unlabeled.flips[k] / unlabeled.size),
                threshold=cut if math.isfinite(cut) else None,
                measured=scored.evaluation.classes[k] if scored is not None and scored.part.fair else None,
            )
        )
    return rows
