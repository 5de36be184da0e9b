"""Text of the report: summary sentences, headline metrics (tiles) and warnings, for readers new to the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tagspread.progress import times_in_words
from tagspread.report.class_rows import ClassRow
from tagspread.report.labeled import GIVEN
from tagspread.report.scored import ScoredPart
from tagspread.report.summary import RunSummary
from tagspread.train.finalize import gain_in_words
from tagspread.wording import counted, duration

MAX_DIFFERENCE = 0.005  # of the mAP measured by training and by the report; a larger one means that something changed
FEW = 5  # labeled images of a tag, below which the report warns
DASH = "\u2013"  # shown for a missing value


class Tile(NamedTuple):
    """A headline metric, shown in large type."""

    value: str
    name: str
    remark: str


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage without the sign; a dash for None.

    >>> percent(0.4404), percent(0.4404, digits=0)
    ('44.0', '44')
    """
    return DASH if share is None else f"{100 * share:.{digits}f}"


def setting(value: Any) -> str:
    """Format the value of a setting.

    >>> setting(("Contrast", "Sharpness")), setting({"keep_pos": 0.5, "priors": None}), setting({})
    ('Contrast, Sharpness', 'keep_pos 0.5, priors not set', 'none')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {setting(item)}" for name, item in value.items()) or "none"
    return "not set" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def length(summary: RunSummary) -> str:
    """Describe the length of the training: epochs or rounds, and time."""
    timings = summary.metrics.get("timings")
    time = duration(sum(timings.values() if timings else (line.get("seconds", 0) for line in summary.log)))
    if summary.step == "round" and not any("pseudo_positives" in line for line in summary.log):
        return f"a linear head fitted in {time}"
    return f"{counted(len(summary.log), summary.step)} in {time}"


def times(summary: RunSummary) -> str | None:
    """Return how long the steps of the run took, and what was planned; None for a run that does not record it."""
    timings = summary.metrics.get("timings")
    if not timings:
        return None
    words = f"The run took {times_in_words(timings)}."
    if summary.plan is None:
        return words
    budget = summary.plan.get("time")
    asked = f"quality {summary.plan.get('quality')}" + (f", at most {duration(budget)}" if budget else "")
    return f"{words} Planned ({asked}): {duration(summary.plan.get('estimated_seconds', 0))}."


def tiles(summary: RunSummary, scored: ScoredPart | None, trained: int | None) -> list[Tile]:
    """Return the headline metrics.

    Args:
        summary: the run.
        scored: the evaluated images.
        trained: number of labeled images that the run was trained on.
    """
    metrics = []
    value, interval, images = _map(summary, scored)
    if value is not None:
        remark = f"mean average precision on {images}"
        metrics.append(Tile(percent(value), "mAP", remark + (f"; {_interval(*interval)}" if interval else "")))
    if scored is not None and scored.part.unseen:
        shares = scored.evaluation.decisions
        metrics.append(Tile(f"{percent(shares['OP'], 0)}\u00a0%", "precision", "of the predicted tags are correct"))
        metrics.append(Tile(f"{percent(shares['OR'], 0)}\u00a0%", "recall", "of the true tags are predicted"))
    if trained is not None:
        metrics.append(Tile(f"{trained:,}", "labeled", "images with labels used for training"))
    if summary.unlabeled is not None:
        kept = "images also used for training"
        dropped = "images tried; the run keeps the labeled-only model"
        remark = kept if summary.learned_from_unlabeled else dropped
        metrics.append(Tile(f"{summary.unlabeled.size:,}", "unlabeled", remark))
    return metrics


def sentences(summary: RunSummary, scored: ScoredPart | None, rows: Sequence[ClassRow]) -> list[str]:
    """Return the summary in sentences: mAP, precision, recall, best and worst tags, gain from unlabeled images."""
    results = []
    value, interval, images = _map(summary, scored)
    if value is not None:
        chance = ""
        if scored is not None and scored.part.unseen:
            frequencies = [
                metrics.positives / metrics.known for metrics in scored.evaluation.classes if metrics.positives
            ]
            chance = f" Random guessing would reach about {percent(float(np.mean(frequencies)))}."
        bounds = f" ({_interval(*interval)})" if interval else ""
        results.append(f"On {images}, the mean average precision (mAP) is {percent(value)} out of 100{bounds}.{chance}")
    if scored is not None and scored.part.unseen:
        shares = scored.evaluation.decisions
        results.append(
            f"At the decision thresholds, {percent(shares['OP'], 0)} of 100 predicted tags are correct (precision), "
            f"and {percent(shares['OR'], 0)} of 100 true tags are predicted (recall)."
        )
    results += _extremes(rows)
    if {"difference", "left_out"} & set(summary.metrics.get("gain", {})):
        results.append(_sentence(str(gain_in_words(summary.metrics))))
    return results


def _map(summary: RunSummary, scored: ScoredPart | None) -> tuple[float | None, tuple[float, float] | None, str]:
    """Return the mAP, its interval and a description of the images; measured for this report, or else by training."""
    if scored is not None and scored.part.unseen:
        metrics = scored.evaluation
        bounds = None if metrics.map_low is None or metrics.map_high is None else (metrics.map_low, metrics.map_high)
        return metrics.map, bounds, f"{metrics.images:,} {scored.part.description}"
    for part, images in (("test", "test images"), ("held_out", "held-out images")):
        if (stored := summary.metrics.get(part)) and stored.get("mAP") is not None:
            bounds = stored.get("interval_90")
            interval = None if bounds is None else (bounds[0], bounds[1])
            return stored["mAP"], interval, f"{stored.get('images', 0):,} {images}"
    return None, None, ""


def _interval(low: float, high: float) -> str:
    return f"90\u00a0% interval {percent(low)}\u00a0to\u00a0{percent(high)}"


def _extremes(rows: Sequence[ClassRow]) -> list[str]:
    """Name the tags with the highest and the lowest average precision, unless there are few tags or all are equal."""
    ranked = sorted(
        ((row.metrics.ap, row.name) for row in rows if row.metrics is not None and row.metrics.ap is not None),
        key=lambda pair: -pair[0],
    )
    if len(ranked) < 2 * 2 or percent(ranked[0][0]) == percent(ranked[-1][0]):
        return []
    return [f"Highest average precision: {_first(ranked)}. Lowest: {_first(ranked[::-1])}."]


def _first(ranked: Sequence[tuple[float, str]]) -> str:
    """Name the first two tags of a ranking, or all tied tags where a tie makes it more than two.

    >>> _first([(1.0, "a"), (1.0, "b"), (1.0, "c"), (0.5, "d")]), _first([(0.9, "a"), (0.5, "b"), (0.5, "c")])
    ('3 tags tied at 100.0 (“a”, “b”, “c”)', '“a” (90.0) and 2 tags tied at 50.0 (“b”, “c”)')
    """
    values = [percent(ap) for ap, _ in ranked]
    first = values.count(values[0])  # number of tags tied for the first rank
    if first > 2:
        return _tied(ranked[:first])
    second = ranked[first : first + values.count(values[1])] if first == 1 else []
    if len(second) > 1:
        return f"“{ranked[0][1]}” ({values[0]}) and {_tied(second)}"
    return " and ".join(f"“{name}” ({value})" for (_, name), value in zip(ranked[:2], values, strict=False))


def _tied(tags: Sequence[tuple[float, str]]) -> str:
    return f"{len(tags)} tags tied at {percent(tags[0][0])} ({_names([name for _, name in tags])})"


def notes(summary: RunSummary, scored: ScoredPart | None, rows: Sequence[ClassRow]) -> list[str]:
    """Return warnings: optimistic metrics, tags with few labels, shared thresholds, implausible pseudo-labels."""
    warnings = []
    if "warning" in summary.metrics:
        warnings.append(_sentence(str(summary.metrics["warning"])))
    if "not_measured" in summary.metrics.get("gain", {}):
        warnings.append(_sentence(str(gain_in_words(summary.metrics))))
    if "stopped_early" in summary.metrics:
        warnings.append(_sentence(f"{summary.metrics['stopped_early']}; more time may give a better tagger"))
    plan = summary.plan or {}
    if plan.get("unlabeled", 0) < plan.get("unlabeled_available", 0):
        warnings.append(
            f"To save time, {plan['unlabeled']:,} of the {plan['unlabeled_available']:,} unlabeled images were used."
        )
    if scored is not None:
        warnings += _image_notes(summary, scored)
    if rare := [row.name for row in rows if row.labeled is not None and row.labeled < FEW]:
        warnings.append(
            f"Fewer than {FEW} labeled images carry {_names(rare)}. Expect poor predictions of such tags, or label "
            "more images."
        )
    decision = {} if summary.artifact is None else summary.artifact.facts.get("decision", {})
    if pooled := decision.get("classes_with_pooled_threshold"):
        warnings.append(f"Tags with too few examples for their own threshold share one threshold: {_names(pooled)}.")
    if never := decision.get("classes_never_chosen"):
        warnings.append(
            f"Never predicted, because no threshold satisfies the policy “{decision.get('policy')}”: {_names(never)}."
        )
    if implausible := [row.name for row in rows if row.is_implausible]:
        warnings.append(
            f"The share of positive pseudo-labels contradicts the labeled images (outside the 90\u00a0% interval): "
            f"{_names(implausible)}."
        )
    return warnings


def _image_notes(summary: RunSummary, scored: ScoredPart) -> list[str]:
    """Return warnings about the evaluated images."""
    warnings, metrics = [], scored.evaluation
    if not scored.part.unseen:
        warnings.append("Examples and histograms show images that the model was trained on, so they are optimistic.")
    elif metrics.absent:
        warnings.append(f"Not part of the mAP, because none of these images carries them: {_names(metrics.absent)}.")
    if scored.part.description == GIVEN and metrics.trained_on is None:
        warnings.append("The run does not record its training images, so it may have been trained on these images.")
    if scored.part.unseen and metrics.trained_on:
        warnings.append(
            f"{metrics.trained_on:,} of these images were used for training, so the metrics are optimistic."
        )
    if scored.part.unseen and metrics.thresholds_chosen_on:
        warnings.append(
            f"The thresholds were chosen on {metrics.thresholds_chosen_on:,} of these {metrics.images:,} images, so "
            "precision, recall, F1 and calibration are optimistic. Average precision is not affected."
        )
    trained_map = (summary.metrics.get("test") or summary.metrics.get("held_out") or {}).get("mAP")
    is_same_part = scored.part.unseen and scored.part.description != GIVEN
    difference = 0.0 if trained_map is None or metrics.map is None else abs(trained_map - metrics.map)
    if is_same_part and difference > MAX_DIFFERENCE:
        warnings.append(
            f"Training measured a mAP of {percent(trained_map)}, but this report measures {percent(metrics.map)}: the "
            "images, the labels or the model have changed since."
        )
    if scored.unreadable:
        first = "; ".join(scored.unreadable[:3])
        is_single = len(scored.unreadable) == 1
        words = (
            "image cannot be read and is left out:" if is_single else "images cannot be read and are left out, such as"
        )
        warnings.append(f"{len(scored.unreadable):,} {words} {first}.")
    return warnings


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:].replace("90 %", "90\u00a0%") + "."


def _names(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(f"“{name}”" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
