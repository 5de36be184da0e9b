"""Metrics per tag for the report: labeled images, pseudo-labels, threshold, AP, precision, recall and F1."""

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
    """Metrics of one tag; None where a value is unknown.

    Attributes:
        index: index of the class.
        name: name of the tag.
        labeled: number of labeled training images that carry the tag.
        share: share of labeled training images that carry the tag, of those where it is known.
        share_interval: exact 90 % interval of ``share``.
        assigned: share of unlabeled images with a positive pseudo-label.
        assigned_or_ignored: share of unlabeled images with a positive or an ignored pseudo-label.
        flips: number of pseudo-label changes per hundred unlabeled images.
        threshold: decision threshold; None if the tag is never predicted.
        metrics: metrics on the evaluated images.
    """

    index: int
    name: str
    labeled: int | None
    share: float | None
    share_interval: tuple[float, float] | None
    assigned: float | None
    assigned_or_ignored: float | None
    flips: float | None
    threshold: float | None
    metrics: ClassMetrics | None

    @property
    def is_implausible(self) -> bool:
        """Whether the share of positive pseudo-labels is outside the interval estimated from the labeled images.

        Ignored pseudo-labels may be positive or negative.
        """
        if self.assigned is None or self.assigned_or_ignored is None or self.share_interval is None:
            return False
        low, high = self.share_interval
        return self.assigned > high or self.assigned_or_ignored < low


def class_rows(summary: RunSummary, trained_y: np.ndarray | None, scored: ScoredPart | None) -> list[ClassRow]:
    """Return one row per tag.

    Args:
        summary: the run.
        trained_y: labels of the labeled training images (images x classes).
        scored: the evaluated images; their metrics are used only if the model was not trained on them.
    """
    if summary.artifact is None:
        return []
    counts = None if trained_y is None else class_counts(trained_y)
    unlabeled = summary.unlabeled if summary.unlabeled is not None and summary.unlabeled.size else None
    rows = []
    for k, name in enumerate(summary.classes):
        positives, known = (None, 0) if counts is None else (int(counts[0][k]), int(counts[1][k]))
        interval = None
        if positives is not None and known:
            low, high = proportion_interval([positives], known, CONFIDENCE)
            interval = (float(low[0]), float(high[0]))
        threshold = float(summary.artifact.thresholds[k])
        rows.append(
            ClassRow(
                index=k,
                name=name,
                labeled=positives,
                share=positives / known if positives is not None and known else None,
                share_interval=interval,
                assigned=None if unlabeled is None else float(unlabeled.positives[k] / unlabeled.size),
                assigned_or_ignored=None
                if unlabeled is None
                else float((unlabeled.positives[k] + unlabeled.ignored[k]) / unlabeled.size),
                flips=None if unlabeled is None else float(100 * unlabeled.flips[k] / unlabeled.size),
                threshold=threshold if math.isfinite(threshold) else None,
                metrics=scored.evaluation.classes[k] if scored is not None and scored.part.unseen else None,
            )
        )
    return rows
