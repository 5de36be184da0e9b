"""What is drawn: learning curves, the unlabeled set over the epochs, shares and precision per tag, probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from tagspread.aliases import JsonObject
from tagspread.core.calibration import Calibration, Reliability
from tagspread.report.class_rows import ClassRow
from tagspread.report.scored import ScoredPart
from tagspread.report.sentences import hundredths
from tagspread.report.summary import RunSummary
from tagspread.report.svg import (
    Heap,
    Series,
    bar_strip,
    dot_strip,
    histogram,
    legend,
    line_chart,
    reliability_chart,
    ticks,
)
from tagspread.wording import counted

LINES = {  # of the log: what it is called, color, shape
    "test_map_ema": ("test, averaged network", "one", "circle"),
    "test_map_raw": ("test, network itself", "two", "diamond"),
    "held_out_map_ema": ("held out, averaged network", "three", "square"),
    "held_out_map_raw": ("held out, network itself", "four", "triangle"),
}


class TitledChart(NamedTuple):
    """A chart with its title, signs and a sentence on how to read it."""

    title: str
    chart: Markup
    signs: Markup
    caption: str


class Strips(NamedTuple):
    """A row per tag over one scale: (place, name, strip, text), and the scale's (position in percent, number)."""

    rows: list[tuple[int, str, Markup, str]]
    scale: list[tuple[float, str]]


def learning_charts(summary: RunSummary) -> list[TitledChart]:
    """Return mAP and loss over the epochs; a head that is fitted in rounds has neither."""
    charts, until = [], _warmup_end(summary)
    shaded = " Shaded: the warm-up, on the labeled images alone." if until else ""
    lines = [Series(name, _points(summary, key, 100), *look) for key, (name, *look) in LINES.items()]
    lines = [one for one in lines if one.points]
    if lines:
        label = f"mAP by epoch: {lines[0].name} from {lines[0].points[0][1]:.1f} to {lines[0].points[-1][1]:.1f}"
        chart = line_chart(label, lines, "{:g}".format, until=until)
        caption = f"Mean average precision after each epoch; 100 would be perfect.{shaded}"
        charts.append(TitledChart("Mean average precision while learning", chart, legend(lines), caption))
    if points := _points(summary, "loss"):
        loss = Series("loss", points)
        label = f"Loss by epoch: from {points[0][1]:.4g} to {points[-1][1]:.4g}"
        chart = line_chart(label, [loss], "{:g}".format, until=until)
        caption = f"What training makes small. It may jump where the unlabeled images come in.{shaded}"
        charts.append(TitledChart("Loss", chart, Markup(""), caption if until else "What training makes small."))
    return charts


def unlabeled_charts(summary: RunSummary) -> list[TitledChart]:
    """Return how many pseudo-labels there were in each epoch, and how many changed."""
    charts = []
    kinds = (("pseudo_positives", "taken to carry a tag", "one", "circle"), ("ignored", "left open", "two", "diamond"))
    lines = [Series(name, _points(summary, key), *look) for key, name, *look in kinds]
    lines = [one for one in lines if any(y for _, y in one.points)]
    if lines:
        first, last = (lines[0].points[place][1] for place in (0, -1))
        label = f"Pseudo-labels by {summary.step}: {lines[0].name} from {first:,.0f} to {last:,.0f}"
        chart = line_chart(label, lines, _thousands, x_title=summary.step)
        caption = f"Pairs of an unlabeled image and a tag, in each {summary.step}."
        charts.append(TitledChart("Pseudo-labels", chart, legend(lines), caption))
    entries = 0 if summary.unlabeled is None else summary.unlabeled.size * len(summary.classes)
    flips = _points(summary, "flips", 100 / entries) if entries else []
    if len(flips) > 1:
        flips = flips[1:]  # at first there is nothing to change
        label = f"Pseudo-labels that changed, by {summary.step}: from {flips[0][1]:.2g} % to {flips[-1][1]:.2g} %"
        chart = line_chart(label, [Series("changed", flips, "three", "square")], "{:g} %".format, x_title=summary.step)
        caption = (
            f"Share of pseudo-labels that differ from the {summary.step} before; it should fall as the teacher settles."
        )
        charts.append(TitledChart("Changes of mind", chart, Markup(""), caption))
    return charts


def _points(summary: RunSummary, key: str, times: float = 1) -> list[tuple[float, float]]:
    found = ((line["epoch"] + 1, line.get(key)) for line in summary.log)
    return [(epoch, times * value) for epoch, value in found if value is not None and math.isfinite(value)]


def _warmup_end(summary: RunSummary) -> int:
    return max((line["epoch"] + 1 for line in summary.log if line.get("stage") == "warmup"), default=0)


def _thousands(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def share_strips(rows: Sequence[ClassRow]) -> Strips | None:
    """Return how often each tag is labeled, with its interval, beside how often the unlabeled set got it."""
    shown = [row for row in rows if row.share is not None or row.assigned is not None]
    if not shown:
        return None
    ends = [end for row in shown for end in (row.share_ends or ())]
    marks = ticks(0, min(1, max([*ends, *(row.assigned or 0 for row in shown)])))
    top, strips = marks[-1], []
    for row in sorted(shown, key=lambda row: -(row.share if row.share is not None else row.assigned or 0)):
        scaled = None if row.share_ends is None else (row.share_ends[0] / top, row.share_ends[1] / top)
        words, text = [], []
        if row.share is not None and row.share_ends is not None:
            low, high = map(hundredths, row.share_ends)
            words.append(f"labeled {hundredths(row.share)} %, 90 % interval {low} to {high}")
            text.append(f"{hundredths(row.share)} %")
        if row.assigned is not None:
            left_open = 0 if row.possible is None else row.possible - row.assigned
            left = f", {hundredths(left_open)} % left open" if left_open else ""
            words.append(
                f"unlabeled set {hundredths(row.assigned)} %{left}"
                + (", which the labels make unlikely" * row.surprising)
            )
            text.append(f"{hundredths(row.assigned)} %" + " !" * row.surprising)
        estimate = None if row.share is None else row.share / top
        other = None if row.assigned is None or row.possible is None else (row.assigned / top, row.possible / top)
        strip = dot_strip(f"{row.name}: {'; '.join(words)}", estimate, scaled, other, [mark / top for mark in marks])
        strips.append((row.place, row.name, strip, " → ".join(text)))
    return Strips(strips, [(100 * mark / top, f"{100 * mark:g} %") for mark in marks])


def precision_strips(rows: Sequence[ClassRow]) -> Strips | None:
    """Return the average precision of each tag with its interval where there are enough images, the best first."""
    shown = [(row, row.measured) for row in rows if row.measured is not None and row.measured.ap is not None]
    if not shown:
        return None
    quarters = [0, 0.25, 0.5, 0.75, 1]
    strips = []
    for row, found in sorted(shown, key=lambda pair: -(pair[1].ap or 0)):
        value, ends, interval = found.ap or 0.0, None, "too few images for an interval"
        if found.ap_low is not None and found.ap_high is not None:
            ends = (found.ap_low, found.ap_high)
            interval = f"90 % interval {hundredths(ends[0])} to {hundredths(ends[1])}"
        label = f"{row.name}: average precision {hundredths(value)}, {interval}"
        strips.append((row.place, row.name, bar_strip(label, value, ends, quarters), hundredths(value)))
    return Strips(strips, [(100 * mark, f"{100 * mark:g}") for mark in quarters])


def class_histogram(summary: RunSummary, scored: ScoredPart | None, row: ClassRow) -> Markup | None:
    """Return the probabilities of one tag: of images that carry it, that do not, and of the unlabeled set."""
    heaps, k = [], row.place
    if scored is not None:
        y, given = scored.part.table.y[:, k], scored.probabilities[:, k]
        heaps = [Heap("labeled with the tag", given[y == 1], "one"), Heap("labeled without it", given[y == 0], "two")]
    if summary.unlabeled is not None and summary.artifact is not None:
        one = slice(k, k + 1)
        calibration = Calibration(summary.artifact.calibration.slope[one], summary.artifact.calibration.intercept[one])
        probabilities = np.asarray(calibration.probabilities(summary.unlabeled.scores[:, one])).ravel()
        heaps.append(Heap("unlabeled", probabilities, "three"))
    if not heaps:
        return None
    cut = "never chosen" if row.threshold is None else f"threshold {row.threshold:.3f}"
    parts = "; ".join(f"{heap.name}: {counted(len(heap.values), 'image')}" for heap in heaps)
    return histogram(f"Probabilities of {row.name}, {cut}. {parts}", heaps, row.threshold)


def reliability_charts(summary: RunSummary, scored: ScoredPart | None) -> list[TitledChart]:
    """Return how far probabilities can be believed: on the page's images, and where they were fitted."""
    charts = []
    if scored is not None and scored.part.fair:
        caption = (
            f"On the {scored.evaluation.images:,} {scored.part.words}, all tags together. Off by "
            f"{hundredths(scored.reliability.error)} points on average."
        )
        charts.append(
            _reliability("As the tagger answers now", [("observed", "one", "circle", scored.reliability)], caption)
        )
    facts: JsonObject = {} if summary.artifact is None else summary.artifact.facts["calibration"]
    if shown := facts.get("reliability"):
        before, after = (_reliability_from(shown[when]) for when in ("before", "after"))
        caption = (
            f"On {facts.get('fitted_on')}, each judged by a fit it had no part in. Off by "
            f"{hundredths(before.error)} points before, {hundredths(after.error)} after."
        )
        both = [("before", "two", "diamond", before), ("after", "one", "circle", after)]
        charts.append(_reliability("Before and after calibration", both, caption))
    return charts


def _reliability_from(plain: JsonObject) -> Reliability:
    arrays = {name: np.array(values, dtype=np.float64) for name, values in plain.items() if name != "error"}
    return Reliability(**arrays, error=float(plain["error"]))


def _reliability(title: str, shown: Sequence[tuple[str, str, str, Reliability]], caption: str) -> TitledChart:
    lines = []
    for name, color, shape, found in shown:
        bins = np.flatnonzero(found.count > 0)
        said = [
            f"{name}: given {hundredths(found.predicted[b])} %, true {hundredths(found.observed[b])} % "
            f"(90 % interval {hundredths(found.low[b])} to {hundredths(found.high[b])}), {found.count[b]:,.0f} entries"
            for b in bins
        ]
        points, ends = _pairs(found.predicted, found.observed, bins), _pairs(found.low, found.high, bins)
        lines.append((Series(name, points, color, shape), ends, said))
    chart = reliability_chart(f"{title}: share that is true by probability given. {caption}", lines)
    signs = legend([one for one, _, _ in lines]) if len(lines) > 1 else Markup("")
    return TitledChart(title, chart, signs, caption)


def _pairs(first: np.ndarray, second: np.ndarray, places: np.ndarray) -> list[tuple[float, float]]:
    return list(zip(first[places].tolist(), second[places].tolist(), strict=True))
