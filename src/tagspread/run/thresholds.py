"""Decision thresholds in ``labels.json``: where each one comes from, and the precision and recall to expect with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tagspread.wording import counted


class Expected(NamedTuple):
    """An expected rate with its interval, all in 0..1."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ThresholdRow:
    """The decision threshold of one tag.

    Attributes:
        name: name of the tag.
        threshold: the threshold; None if the tag is never predicted.
        reason: why the threshold is not simply the best one for this tag; empty if it is.
        positives: number of images with the tag that it was chosen on; None if it was not chosen on labeled images.
        precision: expected precision on new images; None if unknown.
        recall: expected recall on new images; None if unknown.
    """

    name: str
    threshold: float | None
    reason: str
    positives: int | None
    precision: Expected | None
    recall: Expected | None


def threshold_rows(classes: Sequence[str], facts: Mapping[str, Any]) -> list[ThresholdRow]:
    """Return one row per tag, from the entries of ``labels.json`` about thresholds.

    >>> decision = {"policy": "f1", "chosen_on": "x", "positives": [2], "classes_with_pooled_threshold": ["cat"]}
    >>> threshold_rows(["cat"], {"thresholds": [0.4], "decision": decision})[0].reason
    'on 2 images only: shares the threshold of all tags together'
    """
    decision, nothing = facts.get("decision", {}), [None] * len(classes)
    positives, expected = decision.get("positives", nothing), decision.get("expected") or {}
    rates = [
        [None if triple is None else Expected(*triple) for triple in expected.get(name, nothing)]
        for name in ("precision", "recall")
    ]
    columns = zip(classes, facts["thresholds"], positives, *rates, strict=True)
    return [
        ThresholdRow(name, threshold, _reason(name, count, decision), count, precision, recall)
        for name, threshold, count, precision, recall in columns
    ]


def _reason(name: str, count: int | None, decision: Mapping[str, Any]) -> str:
    rarity = "too few examples" if count is None else f"on {counted(count, 'image')} only"
    if name in decision.get("classes_never_chosen", ()):
        return "never predicted: no threshold satisfies the policy"
    if name in decision.get("classes_with_pooled_threshold", ()):
        return f"{rarity}: shares the threshold of all tags together"
    if name in decision.get("classes_with_shrunken_threshold", ()):
        return f"{rarity}: the images of the other tags count, too"
    return ""
