"""The page's figures in words: what a person who has never heard of any of this should take home."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tagspread.report.class_rows import ClassRow
from tagspread.report.labeled import GIVEN
from tagspread.report.scored import ScoredPart
from tagspread.report.summary import RunSummary
from tagspread.train.finalize import gain_in_words
from tagspread.wording import counted

SAME = 0.005  # figures further apart than this are not the same, measured twice
FEW = 5
NOTHING = "\u2013"  # a dash as it is printed


class Tile(NamedTuple):
    """A figure to be seen from afar."""

    value: str
    name: str
    remark: str


def hundredths(share: float | None, digits: int = 1) -> str:
    """Return a share times a hundred.

    >>> hundredths(0.4404), hundredths(0.4404, digits=0)
    ('44.0', '44')
    """
    return NOTHING if share is None else f"{100 * share:.{digits}f}"


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(42.3), duration(170), duration(7320)
    ('42 s', '2 min 50 s', '2 h 2 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def setting(value: Any) -> str:
    """Return the value of a setting as people read it.

    >>> setting(("Contrast", "Sharpness")), setting({"keep_pos": 0.5, "priors": None}), setting({})
    ('Contrast, Sharpness', 'keep_pos 0.5, priors not set', 'none')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {setting(one)}" for name, one in value.items()) or "none"
    return "not set" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def length(summary: RunSummary) -> str:
    """Return how long training took."""
    time = duration(sum(line.get("seconds", 0) for line in summary.log))
    if summary.step == "round" and not any("pseudo_positives" in line for line in summary.log):
        return f"a linear head fitted in {time}"
    return f"{counted(len(summary.log), summary.step)} in {time}"


def tiles(summary: RunSummary, scored: ScoredPart | None, trained: int | None) -> list[Tile]:
    """Return the headline figures."""
    found = []
    value, ends, where = _map(summary, scored)
    if value is not None:
        remark = f"mean average precision on {where}"
        found.append(Tile(hundredths(value), "mAP", remark + (f"; {_interval(*ends)}" if ends else "")))
    if scored is not None and scored.part.fair:
        shares = scored.evaluation.decisions
        found.append(Tile(f"{hundredths(shares['OP'], 0)}\u00a0%", "precision", "of the tags it gives are right"))
        found.append(Tile(f"{hundredths(shares['OR'], 0)}\u00a0%", "recall", "of the tags that are there are given"))
    if trained is not None:
        found.append(Tile(f"{trained:,}", "labeled", "images with tags were learned from"))
    if summary.unlabeled is not None:
        tried = "images were tried; the model that is kept is without"
        remark = "images were learned from as well" if summary.learned_from_unlabeled else tried
        found.append(Tile(f"{summary.unlabeled.size:,}", "unlabeled", remark))
    return found


def sentences(summary: RunSummary, scored: ScoredPart | None, rows: Sequence[ClassRow]) -> list[str]:
    """Return the findings, a sentence each."""
    said = []
    value, ends, where = _map(summary, scored)
    if value is not None:
        level = ""
        if scored is not None and scored.part.fair:
            by_chance = [one.positives / one.known for one in scored.evaluation.classes if one.positives]
            level = f" Guessing would reach about {hundredths(float(np.mean(by_chance)))}."
        inside = f" ({_interval(*ends)})" if ends else ""
        said.append(
            f"On {where}, the tagger puts the right images first with a mean average precision of "
            f"{hundredths(value)} out of 100{inside}.{level}"
        )
    if scored is not None and scored.part.fair:
        shares = scored.evaluation.decisions
        said.append(
            f"With its thresholds, {hundredths(shares['OP'], 0)} of 100 tags it gives are right, and it gives "
            f"{hundredths(shares['OR'], 0)} of 100 tags that are there."
        )
    said += _extremes(rows)
    if {"difference", "left_out"} & set(summary.metrics.get("gain", {})):
        said.append(_sentence(str(gain_in_words(summary.metrics))))
    return said


def _map(summary: RunSummary, scored: ScoredPart | None) -> tuple[float | None, tuple[float, float] | None, str]:
    """Return the mAP, its interval and where it was measured: by this page, or else by training."""
    if scored is not None and scored.part.fair:
        found = scored.evaluation
        ends = None if found.map_low is None or found.map_high is None else (found.map_low, found.map_high)
        return found.map, ends, f"{found.images:,} {scored.part.words}"
    for part, words in (("test", "test images"), ("held_out", "held-out images")):
        if (known := summary.metrics.get(part)) and known.get("mAP") is not None:
            ends = known.get("interval_90")
            return known["mAP"], None if ends is None else (ends[0], ends[1]), f"{known.get('images', 0):,} {words}"
    return None, None, ""


def _interval(low: float, high: float) -> str:
    return f"90\u00a0% interval {hundredths(low)}\u00a0to\u00a0{hundredths(high)}"


def _extremes(rows: Sequence[ClassRow]) -> list[str]:
    ranked = sorted(
        ((row.measured.ap, row.name) for row in rows if row.measured is not None and row.measured.ap is not None),
        key=lambda pair: -pair[0],
    )
    if len(ranked) < 2 * 2 or hundredths(ranked[0][0]) == hundredths(ranked[-1][0]):
        return []
    return [f"It is best at {_first(ranked)}, weakest at {_first(ranked[::-1])}."]


def _first(ranked: Sequence[tuple[float, str]]) -> str:
    """Return the first two; all that are level with them, where no two of them come first.

    >>> _first([(1.0, "a"), (1.0, "b"), (1.0, "c"), (0.5, "d")]), _first([(0.9, "a"), (0.5, "b"), (0.5, "c")])
    ('3 tags alike (100.0): “a”, “b”, “c”', '“a” (90.0) and 2 tags alike (50.0): “b”, “c”')
    """
    shown = [hundredths(ap) for ap, _ in ranked]
    ahead = shown.count(shown[0])
    if ahead >= 2 + 1:
        return _alike(ranked[:ahead])
    level = ranked[ahead : ahead + shown.count(shown[1])] if ahead == 1 else []
    if len(level) > 1:
        return f"“{ranked[0][1]}” ({shown[0]}) and {_alike(level)}"
    return " and ".join(f"“{name}” ({value})" for (_, name), value in zip(ranked[:2], shown, strict=False))


def _alike(tied: Sequence[tuple[float, str]]) -> str:
    return f"{len(tied)} tags alike ({hundredths(tied[0][0])}): {_names([name for _, name in tied])}"


def notes(summary: RunSummary, scored: ScoredPart | None, rows: Sequence[ClassRow]) -> list[str]:
    """Return what one should know before believing the rest."""
    said = []
    if "warning" in summary.metrics:
        said.append(_sentence(str(summary.metrics["warning"])))
    if "not_measured" in summary.metrics.get("gain", {}):
        said.append(_sentence(str(gain_in_words(summary.metrics))))
    if scored is not None:
        said += _about_images(summary, scored)
    if few := [row.name for row in rows if row.labeled is not None and row.labeled < FEW]:
        said.append(f"Fewer than {FEW} labeled images carry {_names(few)}: expect little there, and tag a few more.")
    decision = {} if summary.artifact is None else summary.artifact.facts.get("decision", {})
    if pooled := decision.get("classes_with_pooled_threshold"):
        said.append(f"Too few examples for a threshold of their own, so they share one: {_names(pooled)}.")
    if never := decision.get("classes_never_chosen"):
        said.append(f"Never chosen, as no threshold keeps the policy “{decision.get('policy')}”: {_names(never)}.")
    if odd := [row.name for row in rows if row.surprising]:
        said.append(
            f"In the unlabeled set, {_names(odd)} got more or fewer pseudo-tags than the labeled images make likely."
        )
    return said


def _about_images(summary: RunSummary, scored: ScoredPart) -> list[str]:
    said, found = [], scored.evaluation
    if not scored.part.fair:
        said.append("Images and histograms are of images the tagger was trained on: it looks better there.")
    elif found.absent:
        said.append(f"On none of these images, so left out of the mean: {_names(found.absent)}.")
    if scored.part.words == GIVEN and found.trained_on is None:
        said.append("The run does not know whether it was trained on any of these images.")
    if scored.part.fair and found.trained_on:
        said.append(f"{found.trained_on:,} of these images were trained on, so the figures flatter.")
    if scored.part.fair and found.thresholds_chosen_on:
        said.append(
            f"The thresholds were chosen on {found.thresholds_chosen_on:,} of these {found.images:,} images, so "
            "precision, recall and probabilities look better than they are; average precision does not depend on them."
        )
    measured = (summary.metrics.get("test") or summary.metrics.get("held_out") or {}).get("mAP")
    own = scored.part.words != GIVEN
    if scored.part.fair and own and measured is not None and found.map is not None and abs(measured - found.map) > SAME:
        said.append(
            f"Training measured a mAP of {hundredths(measured)} and this page {hundredths(found.map)}: images, "
            "labels or the model have changed since."
        )
    if scored.unreadable:
        some = "; ".join(scored.unreadable[:3])
        one = len(scored.unreadable) == 1
        words = "image cannot be read and is left out:" if one else "images cannot be read and are left out, such as"
        said.append(f"{len(scored.unreadable):,} {words} {some}.")
    return said


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:].replace("90 %", "90\u00a0%") + "."


def _names(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(f"“{name}”" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
