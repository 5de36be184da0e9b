"""SVG charts: lines, bars, histograms and reliability diagrams, with tooltips, colored by the page's style sheet.

The functions return markup in which all text from outside is escaped. Series differ by shape as well as by color.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from tagspread.wording import counted

WIDTH, HEIGHT = 340, 205
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 10, 38
MAX_MARKERS = 40  # a line with more points has no visible markers, only tooltips
BINS = 40

SHAPES = {
    "circle": Markup('<circle r="3.2"/>'),
    "diamond": Markup('<path d="M0-4.6L4.6 0L0 4.6L-4.6 0Z"/>'),
    "square": Markup('<path d="M-3-3H3V3H-3Z"/>'),
    "triangle": Markup('<path d="M0-4L4.2 3.4H-4.2Z"/>'),
}


class Series(NamedTuple):
    """A line of a chart: name, points, color class and marker shape."""

    name: str
    points: Sequence[tuple[float, float]]
    color: str = "one"
    shape: str = "circle"


class Group(NamedTuple):
    """The values of one row of a histogram, with name and color class."""

    name: str
    values: np.ndarray
    color: str = "one"


class Frame:
    """A plotting area with an x-axis and a y-axis; converts values to SVG coordinates."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], height: int = HEIGHT, left: int = LEFT) -> None:
        self.x_range, self.y_range, self.height, self.left, self.right = x, y, height, left, WIDTH - RIGHT

    def x(self, value: float) -> float:
        """Return the horizontal SVG coordinate of a value."""
        low, high = self.x_range
        share = (value - low) / (high - low) if high > low else 0.5
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the vertical SVG coordinate of a value."""
        low, high = self.y_range
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)

    def render(self, label: str, *parts: Markup) -> Markup:
        """Return the SVG element; ``label`` describes the chart for screen readers."""
        start = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">')
        return start.format(WIDTH, self.height, label) + _joined(parts) + Markup("</svg>")

    def grid(self, x_ticks: Sequence[float], y_ticks: Sequence[float], y_text: Callable[[float], str]) -> Markup:
        """Return grid lines and tick labels."""
        lines = [
            Markup('<line class="grid" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>').format(
                self.left, self.right, y=self.y(tick)
            )
            + Markup('<text class="end" x="{}" y="{:.1f}">{}</text>').format(
                self.left - 6, self.y(tick) + 4, y_text(tick)
            )
            for tick in y_ticks
        ]
        numbers = [
            Markup('<text class="mid" x="{:.1f}" y="{}">{:g}</text>').format(
                self.x(tick), self.height - BOTTOM + 16, tick
            )
            for tick in x_ticks
        ]
        return _joined([*lines, *numbers])

    def x_title(self, text: str) -> Markup:
        """Return the title of the x-axis."""
        middle = (self.left + self.right) / 2
        return Markup('<text class="mid" x="{:.1f}" y="{}">{}</text>').format(middle, self.height - 4, text)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return evenly spaced round numbers that cover the range from ``low`` to ``high``.

    >>> ticks(0, 0.87)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> ticks(0, 37)
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    rough = max(high - low, 1e-9) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 10) for k in range(first, max(last, first + 1) + 1)]


def line_chart(
    label: str, series: Sequence[Series], text: Callable[[float], str], *, x_title: str = "epoch", until: float = 0
) -> Markup:
    """Return a line chart over epochs.

    Args:
        label: description of the chart for screen readers.
        series: the lines, with at least one point in total.
        text: formats a value of the y-axis.
        x_title: title of the x-axis.
        until: last epoch of the warm-up, which is shaded; 0 for none.
    """
    xs, ys = ([point[axis] for line in series for point in line.points] for axis in (0, 1))
    y_ticks = ticks(min(0.0, *ys), max(ys))
    frame = Frame((min(xs), max(xs)), (y_ticks[0], y_ticks[-1]))
    x_ticks = [x for x in ticks(min(xs), max(xs), 6) if x == int(x) and min(xs) <= x <= max(xs)] or [min(xs)]
    shade = Markup("")
    if min(xs) <= until < max(xs):
        edge = (frame.x(until) + frame.x(until + 1)) / 2
        area = '<rect class="shade" x="{}" y="{}" width="{:.1f}" height="{}"/>'
        shade = Markup(area).format(LEFT, TOP, edge - LEFT, HEIGHT - TOP - BOTTOM)
    lines = [_line(frame, line, text, x_title) for line in series if line.points]
    return frame.render(label, shade, frame.grid(x_ticks, y_ticks, text), *lines, frame.x_title(x_title))


def _line(frame: Frame, series: Series, text: Callable[[float], str], x_title: str) -> Markup:
    places = [(frame.x(x), frame.y(y), x, y) for x, y in series.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _, _ in places)
    shape = SHAPES[series.shape] if len(places) <= MAX_MARKERS else Markup('<circle class="hover" r="5"/>')
    points = [
        Markup('<g transform="translate({:.1f} {:.1f})"><title>{}, {} {:g}: {}</title>{}</g>').format(
            x, y, series.name, x_title, value, text(height), shape
        )
        for x, y, value, height in places
    ]
    return Markup('<g class="series {}"><path class="line" d="{}"/>{}</g>').format(series.color, path, _joined(points))


def legend(series: Sequence[Series]) -> Markup:
    """Return the legend: a list of the series names with their markers."""
    sign = '<svg class="sign series {}" viewBox="-14 -7 28 14" aria-hidden="true"><path class="line" d="M-13 0H13"/>'
    item = Markup("<li>" + sign + "{}</svg>{}</li>")
    items = [item.format(line.color, SHAPES[line.shape], line.name) for line in series]
    return Markup('<ul class="legend">{}</ul>').format(_joined(items))


def bar_strip(label: str, value: float, interval: tuple[float, float] | None, marks: Sequence[float]) -> Markup:
    """Return a horizontal bar with an optional interval; all values are shares of the width."""
    bar = Markup('<rect class="bar" x="0" y="6" width="{:.2f}%" height="12" rx="2"/>').format(100 * value)
    return _strip(label, marks, bar, *([] if interval is None else [_whisker(*interval)]))


def dot_strip(
    label: str,
    value: float | None,
    interval: tuple[float, float] | None,
    assigned: tuple[float, float] | None,
    marks: Sequence[float],
) -> Markup:
    """Return an estimated share with its interval (circle) above the assigned share (diamond); shares of the width.

    Args:
        label: description of the strip for screen readers and its tooltip.
        value: the estimated share.
        interval: the interval of the estimate.
        assigned: share of positive pseudo-labels, and of positive or ignored ones; the difference is drawn as a line.
        marks: positions of the grid lines.
    """
    parts = []
    if assigned is not None and assigned[1] > assigned[0]:
        ignored = '<line class="open series two" x1="{:.2f}%" x2="{:.2f}%" y1="17" y2="17"/>'
        parts.append(Markup(ignored).format(100 * assigned[0], 100 * min(1.0, assigned[1])))
    if interval is not None:
        parts.append(_whisker(*interval, y=9))
    for share, y, color, shape in ((value, 9, "one", "circle"), (assigned and assigned[0], 17, "two", "diamond")):
        if share is not None:
            sign = '<svg class="series {}" x="{:.2f}%" y="{}" overflow="visible">{}</svg>'
            parts.append(Markup(sign).format(color, 100 * share, y, SHAPES[shape]))
    return _strip(label, marks, *parts)


def _strip(label: str, marks: Sequence[float], *parts: Markup) -> Markup:
    grid = [Markup('<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="26"/>').format(x=100 * x) for x in marks]
    start = Markup('<svg class="strip" width="100%" height="26" role="img" aria-label="{0}"><title>{0}</title>')
    return start.format(label) + _joined([*grid, *parts]) + Markup("</svg>")


def _whisker(low: float, high: float, y: int = 12) -> Markup:
    end = '<line x1="{x:.2f}%" x2="{x:.2f}%" y1="{}" y2="{}"/>'
    ends = [Markup(end).format(y - 4, y + 4, x=100 * x) for x in (low, high)]
    middle = Markup('<line x1="{:.2f}%" x2="{:.2f}%" y1="{y}" y2="{y}"/>').format(100 * low, 100 * high, y=y)
    return Markup('<g class="whisker">{}</g>').format(_joined([middle, *ends]))


def histogram(label: str, groups: Sequence[Group], threshold: float | None) -> Markup:
    """Return one histogram per group, one below the other, with the decision threshold as a dashed line.

    The height of a bar is proportional to the square root of its count, so that single images remain visible.
    """
    row_height, gap = 46, 24
    height = TOP + len(groups) * (row_height + gap) + BOTTOM
    frame = Frame((0, 1), (0, 1), height=height, left=RIGHT)
    bars, titles, threshold_lines, bottom = [], [], list[Markup](), float(TOP)
    for group in groups:
        bottom += row_height + gap
        bars.append(_bars(frame, group, bottom, row_height))
        base = '<line class="axis" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
        bars.append(Markup(base).format(frame.left, frame.right, y=bottom))
        title = f"{group.name}: {counted(len(group.values), 'image')}"
        titles.append(Markup('<text x="{}" y="{:.1f}">{}</text>').format(frame.left, bottom - row_height - 8, title))
        if threshold is not None:  # in parts, so that it does not cross the titles
            line = '<line x1="{x:.1f}" x2="{x:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
            threshold_lines.append(Markup(line).format(bottom - row_height - 3, bottom, x=frame.x(threshold)))
    numbers = [
        Markup('<text class="mid" x="{:.1f}" y="{:.1f}">{:g}</text>').format(frame.x(x), bottom + 16, x)
        for x in (0, 0.25, 0.5, 0.75, 1)
    ]
    mark = Markup("")
    if threshold is not None:
        group_of_lines = '<g class="threshold"><title>threshold {:.3f}</title>{}</g>'
        mark = Markup(group_of_lines).format(threshold, _joined(threshold_lines))
    return frame.render(label, *bars, *numbers, mark, *titles, frame.x_title("probability"))


def _bars(frame: Frame, group: Group, bottom: float, row_height: float) -> Markup:
    counts, edges = np.histogram(group.values, BINS, (0, 1))
    largest = math.sqrt(max(1, counts.max()))
    bars = []
    for count, low, high in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            height, x, width = row_height * math.sqrt(count) / largest, frame.x(low), frame.x(high) - frame.x(low) - 1
            bar = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
            tooltip = f"{low:.3g} to {high:.3g}: {counted(count, 'image')}"
            bars.append(Markup(bar).format(x + 0.5, bottom - height, width, height, tooltip))
    return Markup('<g class="bars {}">{}</g>').format(group.color, _joined(bars))


def reliability_chart(
    label: str, series: Sequence[tuple[Series, Sequence[tuple[float, float]], Sequence[str]]]
) -> Markup:
    """Return a reliability diagram: observed frequency by predicted probability; calibrated points are on the diagonal.

    Args:
        label: description of the chart for screen readers.
        series: lines within 0..1, each with the intervals and tooltips of its points.
    """
    frame = Frame((0, 1), (0, 1), height=WIDTH)
    quarters = [0, 0.25, 0.5, 0.75, 1]
    ends = (frame.x(0), frame.y(0), frame.x(1), frame.y(1))
    parts = [Markup('<path class="diagonal" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(*ends)]
    for line, intervals, tooltips in series:
        path = "M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in line.points)
        parts.append(Markup('<g class="series {}"><path class="line" d="{}"/>').format(line.color, path))
        for (x, y), (low, high), tooltip in zip(line.points, intervals, tooltips, strict=True):
            whisker = '<path class="whisker" d="M{:.1f} {:.1f}V{:.1f}"/>'
            parts.append(Markup(whisker).format(frame.x(x), frame.y(low), frame.y(high)))
            point = '<g transform="translate({:.1f} {:.1f})"><title>{}</title>{}</g>'
            parts.append(Markup(point).format(frame.x(x), frame.y(y), tooltip, SHAPES[line.shape]))
        parts.append(Markup("</g>"))
    grid = frame.grid(quarters, quarters, lambda share: f"{100 * share:.0f} %")
    return frame.render(label, grid, *parts, frame.x_title("predicted probability"))


def _joined(parts: Sequence[Markup]) -> Markup:
    return Markup("").join(parts)
