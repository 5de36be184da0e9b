"""Charts of the report: learning curves, pseudo-labels per epoch, label frequencies, AP per tag, calibration."""

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
from tagspread.report.sentences import percent
from tagspread.report.summary import RunSummary
from tagspread.report.svg import (
    Group,
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

CURVES = {  # key in the log: name, color, shape
    "test_map_ema": ("test (EMA)", "one", "circle"),
    "test_map_raw": ("test (without EMA)", "two", "diamond"),
    "held_out_map_ema": ("held-out (EMA)", "three", "square"),
    "held_out_map_raw": ("held-out (without EMA)", "four", "triangle"),
}


class TitledChart(NamedTuple):
    """A chart with title, legend and caption."""

    title: str
    chart: Markup
    legend: Markup
    caption: str


class Strips(NamedTuple):
    """One small chart (strip) per tag, on a common scale.

    Attributes:
        rows: class index, tag, strip and value as text, per tag.
        scale: position in percent and text of each tick.
    """

    rows: list[tuple[int, str, Markup, str]]
    scale: list[tuple[float, str]]


def learning_charts(summary: RunSummary) -> list[TitledChart]:
    """Return charts of mAP and loss by epoch; empty if a head was fitted in rounds."""
    charts, until = [], _warmup_end(summary)
    shaded = " Shaded: warm-up on the labeled images only." if until else ""
    lines = [Series(name, _points(summary, key, 100), *style) for key, (name, *style) in CURVES.items()]
    lines = [line for line in lines if line.points]
    if lines:
        label = f"mAP by epoch: {lines[0].name} from {lines[0].points[0][1]:.1f} to {lines[0].points[-1][1]:.1f}"
        chart = line_chart(label, lines, "{:g}".format, until=until)
        caption = f"Mean average precision after each epoch, out of 100.{shaded}"
        charts.append(TitledChart("mAP", chart, legend(lines), caption))
    if points := _points(summary, "loss"):
        loss = Series("loss", points)
        label = f"Loss by epoch: from {points[0][1]:.4g} to {points[-1][1]:.4g}"
        chart = line_chart(label, [loss], "{:g}".format, until=until)
        jump = f" It may jump when the unlabeled images are added.{shaded}" if until else ""
        charts.append(TitledChart("Loss", chart, Markup(""), f"Mean training loss of each epoch.{jump}"))
    return charts


def unlabeled_charts(summary: RunSummary) -> list[TitledChart]:
    """Return charts of the number of pseudo-labels and of the share that changed, by epoch."""
    charts = []
    kinds = (("pseudo_positives", "positive", "one", "circle"), ("ignored", "ignored", "two", "diamond"))
    lines = [Series(name, _points(summary, key), *style) for key, name, *style in kinds]
    lines = [line for line in lines if any(y for _, y in line.points)]
    if lines:
        first, last = (lines[0].points[index][1] for index in (0, -1))
        label = f"Pseudo-labels by {summary.step}: {lines[0].name} from {first:,.0f} to {last:,.0f}"
        chart = line_chart(label, lines, _thousands, x_title=summary.step)
        caption = f"Number of pairs of an unlabeled image and a tag, in each {summary.step}."
        charts.append(TitledChart("Pseudo-labels", chart, legend(lines), caption))
    entries = 0 if summary.unlabeled is None else summary.unlabeled.size * len(summary.classes)
    flips = _points(summary, "flips", 100 / entries) if entries else []
    if len(flips) > 1:
        flips = flips[1:]  # the first pseudo-labels replace none
        label = f"Changed pseudo-labels by {summary.step}: from {flips[0][1]:.2g} % to {flips[-1][1]:.2g} %"
        chart = line_chart(label, [Series("changed", flips, "three", "square")], "{:g} %".format, x_title=summary.step)
        caption = (
            f"Share of pseudo-labels that differ from those of the previous {summary.step}. It should fall as training "
            "converges."
        )
        charts.append(TitledChart("Changed pseudo-labels", chart, Markup(""), caption))
    return charts


def _points(summary: RunSummary, key: str, factor: float = 1) -> list[tuple[float, float]]:
    """Return epoch and scaled value of each log entry that has the key and is finite."""
    values = ((line["epoch"] + 1, line.get(key)) for line in summary.log)
    return [(epoch, factor * value) for epoch, value in values if value is not None and math.isfinite(value)]


def _warmup_end(summary: RunSummary) -> int:
    return max((line["epoch"] + 1 for line in summary.log if line.get("stage") == "warmup"), default=0)


def _thousands(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def share_strips(rows: Sequence[ClassRow]) -> Strips | None:
    """Return the label frequency of each tag with its interval, next to the share of positive pseudo-labels."""
    shown = [row for row in rows if row.share is not None or row.assigned is not None]
    if not shown:
        return None
    bounds = [bound for row in shown for bound in (row.share_interval or ())]
    marks = ticks(0, min(1, max([*bounds, *(row.assigned or 0 for row in shown)])))
    top, strips = marks[-1], []
    for row in sorted(shown, key=lambda row: -(row.share if row.share is not None else row.assigned or 0)):
        interval = None if row.share_interval is None else (row.share_interval[0] / top, row.share_interval[1] / top)
        label, values = [], []
        if row.share is not None and row.share_interval is not None:
            low, high = map(percent, row.share_interval)
            label.append(f"labeled images {percent(row.share)} %, 90 % interval {low} to {high}")
            values.append(f"{percent(row.share)} %")
        assigned = None
        if row.assigned is not None and row.assigned_or_ignored is not None:
            assigned = (row.assigned / top, row.assigned_or_ignored / top)
            ignored = row.assigned_or_ignored - row.assigned
            label.append(
                f"pseudo-labels {percent(row.assigned)} %"
                + (f", {percent(ignored)} % ignored" if ignored else "")
                + (", which contradicts the labeled images" if row.is_implausible else "")
            )
            values.append(f"{percent(row.assigned)} %" + (" !" if row.is_implausible else ""))
        share = None if row.share is None else row.share / top
        strip = dot_strip(f"{row.name}: {'; '.join(label)}", share, interval, assigned, [mark / top for mark in marks])
        strips.append((row.index, row.name, strip, " → ".join(values)))
    return Strips(strips, [(100 * mark / top, f"{100 * mark:g} %") for mark in marks])


def precision_strips(rows: Sequence[ClassRow]) -> Strips | None:
    """Return the average precision of each tag, highest first, with its interval if there are enough images."""
    shown = [(row, row.metrics) for row in rows if row.metrics is not None and row.metrics.ap is not None]
    if not shown:
        return None
    quarters = [0, 0.25, 0.5, 0.75, 1]
    strips = []
    for row, metrics in sorted(shown, key=lambda pair: -(pair[1].ap or 0)):
        value, interval, text = metrics.ap or 0.0, None, "too few images for an interval"
        if metrics.ap_low is not None and metrics.ap_high is not None:
            interval = (metrics.ap_low, metrics.ap_high)
            text = f"90 % interval {percent(interval[0])} to {percent(interval[1])}"
        label = f"{row.name}: average precision {percent(value)}, {text}"
        strips.append((row.index, row.name, bar_strip(label, value, interval, quarters), percent(value)))
    return Strips(strips, [(100 * mark, f"{100 * mark:g}") for mark in quarters])


def class_histogram(summary: RunSummary, scored: ScoredPart | None, row: ClassRow) -> Markup | None:
    """Return histograms of a tag's probabilities: images with the tag, images without it, unlabeled images."""
    groups, k = [], row.index
    if scored is not None:
        y, probabilities = scored.part.table.y[:, k], scored.probabilities[:, k]
        groups = [
            Group("labeled with the tag", probabilities[y == 1], "one"),
            Group("labeled without the tag", probabilities[y == 0], "two"),
        ]
    if summary.unlabeled is not None and summary.artifact is not None:
        column = slice(k, k + 1)
        fitted = summary.artifact.calibration
        calibration = Calibration(fitted.slope[column], fitted.intercept[column])
        probabilities = np.asarray(calibration.probabilities(summary.unlabeled.scores[:, column])).ravel()
        groups.append(Group("unlabeled", probabilities, "three"))
    if not groups:
        return None
    threshold = "never predicted" if row.threshold is None else f"threshold {row.threshold:.3f}"
    counts = "; ".join(f"{group.name}: {counted(len(group.values), 'image')}" for group in groups)
    return histogram(f"Probabilities of {row.name}, {threshold}. {counts}", groups, row.threshold)


def reliability_charts(summary: RunSummary, scored: ScoredPart | None) -> list[TitledChart]:
    """Return reliability diagrams: on the evaluated images, and before and after calibration where it was fitted."""
    charts = []
    if scored is not None and scored.part.unseen:
        caption = (
            f"On the {scored.evaluation.images:,} {scored.part.description}, all tags together. Calibration error: "
            f"{percent(scored.reliability.error)} points on average."
        )
        curves = [("observed", "one", "circle", scored.reliability)]
        charts.append(_reliability_diagram("Reliability diagram", curves, caption))
    facts: JsonObject = {} if summary.artifact is None else summary.artifact.facts["calibration"]
    if stored := facts.get("reliability"):
        before, after = (_read_reliability(stored[when]) for when in ("before", "after"))
        caption = (
            f"On {facts.get('fitted_on')}, with cross-fitting: each image is calibrated by a fit on other images. "
            f"Calibration error: {percent(before.error)} points on average before, {percent(after.error)} after."
        )
        curves = [("before", "two", "diamond", before), ("after", "one", "circle", after)]
        charts.append(_reliability_diagram("Before and after calibration", curves, caption))
    return charts


def _read_reliability(stored: JsonObject) -> Reliability:
    arrays = {name: np.array(values, dtype=np.float64) for name, values in stored.items() if name != "error"}
    return Reliability(**arrays, error=float(stored["error"]))


def _reliability_diagram(title: str, curves: Sequence[tuple[str, str, str, Reliability]], caption: str) -> TitledChart:
    lines = []
    for name, color, shape, data in curves:
        bins = np.flatnonzero(data.count > 0)
        tooltips = [
            f"{name}: predicted {percent(data.predicted[b])} %, observed {percent(data.observed[b])} % "
            f"(90 % interval {percent(data.low[b])} to {percent(data.high[b])}), {data.count[b]:,.0f} predictions"
            for b in bins
        ]
        points, intervals = _pairs(data.predicted, data.observed, bins), _pairs(data.low, data.high, bins)
        lines.append((Series(name, points, color, shape), intervals, tooltips))
    chart = reliability_chart(f"{title}: observed frequency by predicted probability. {caption}", lines)
    series = [line for line, _, _ in lines]
    return TitledChart(title, chart, legend(series) if len(series) > 1 else Markup(""), caption)


def _pairs(first: np.ndarray, second: np.ndarray, index: np.ndarray) -> list[tuple[float, float]]:
    return list(zip(first[index].tolist(), second[index].tolist(), strict=True))
