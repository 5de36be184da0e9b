"""Small charts as SVG text: crisp at any size, colored by the page's style sheet, with the browser's own tooltips.

Each function returns markup in which every text that came from outside is escaped. Kinds are told apart by shape and
dash as well as by color.
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
MANY_POINTS = 40  # from here on points are not drawn, only felt by the tooltip
BINS = 40

SHAPES = {
    "circle": Markup('<circle r="3.2"/>'),
    "diamond": Markup('<path d="M0-4.6L4.6 0L0 4.6L-4.6 0Z"/>'),
    "square": Markup('<path d="M-3-3H3V3H-3Z"/>'),
    "triangle": Markup('<path d="M0-4L4.2 3.4H-4.2Z"/>'),
}


class Series(NamedTuple):
    """A line of a chart: points, and how it is told apart (a color of the style sheet, a shape)."""

    name: str
    points: Sequence[tuple[float, float]]
    color: str = "one"
    shape: str = "circle"


class Heap(NamedTuple):
    """A row of a histogram: what it is of, and the values."""

    name: str
    values: np.ndarray
    color: str = "one"


class Frame:
    """A drawing area with a scale on both sides."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], height: int = HEIGHT, left: int = LEFT) -> None:
        self.x_range, self.y_range, self.height, self.left, self.right = x, y, height, left, WIDTH - RIGHT

    def x(self, value: float) -> float:
        """Return where a value lies from left to right."""
        low, high = self.x_range
        share = (value - low) / (high - low) if high > low else 0.5
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return where a value lies from top to bottom."""
        low, high = self.y_range
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)

    def drawn(self, label: str, *parts: Markup) -> Markup:
        """Return the whole image; ``label`` says it in words to those who cannot see it."""
        start = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">')
        return start.format(WIDTH, self.height, label) + _joined(parts) + Markup("</svg>")

    def grid(self, x_ticks: Sequence[float], y_ticks: Sequence[float], y_text: Callable[[float], str]) -> Markup:
        """Return lines and numbers."""
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
        """Return what the numbers below mean."""
        middle = (self.left + self.right) / 2
        return Markup('<text class="mid" x="{:.1f}" y="{}">{}</text>').format(middle, self.height - 4, text)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers from ``low`` or below to ``high`` or above.

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
    """Return lines over the epochs.

    Args:
        label: the chart in words.
        series: the lines; at least one point among them.
        text: how a value is written.
        x_title: what the numbers below mean.
        until: shade the epochs up to this one: the warm-up.
    """
    xs, ys = ([point[axis] for one in series for point in one.points] for axis in (0, 1))
    y_ticks = ticks(min(0.0, *ys), max(ys))
    frame = Frame((min(xs), max(xs)), (y_ticks[0], y_ticks[-1]))
    x_ticks = [x for x in ticks(min(xs), max(xs), 6) if x == int(x) and min(xs) <= x <= max(xs)] or [min(xs)]
    shade = Markup("")
    if min(xs) <= until < max(xs):
        edge = (frame.x(until) + frame.x(until + 1)) / 2
        area = '<rect class="shade" x="{}" y="{}" width="{:.1f}" height="{}"/>'
        shade = Markup(area).format(LEFT, TOP, edge - LEFT, HEIGHT - TOP - BOTTOM)
    lines = [_line(frame, one, text, x_title) for one in series if one.points]
    return frame.drawn(label, shade, frame.grid(x_ticks, y_ticks, text), *lines, frame.x_title(x_title))


def _line(frame: Frame, series: Series, text: Callable[[float], str], x_title: str) -> Markup:
    places = [(frame.x(x), frame.y(y), x, y) for x, y in series.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _, _ in places)
    shape = SHAPES[series.shape] if len(places) <= MANY_POINTS else Markup('<circle class="felt" r="5"/>')
    points = [
        Markup('<g transform="translate({:.1f} {:.1f})"><title>{}, {} {:g}: {}</title>{}</g>').format(
            x, y, series.name, x_title, value, text(height), shape
        )
        for x, y, value, height in places
    ]
    return Markup('<g class="series {}"><path class="line" d="{}"/>{}</g>').format(series.color, path, _joined(points))


def legend(series: Sequence[Series]) -> Markup:
    """Return a list of the lines, each with its sign."""
    sign = '<svg class="sign series {}" viewBox="-14 -7 28 14" aria-hidden="true"><path class="line" d="M-13 0H13"/>'
    item = Markup("<li>" + sign + "{}</svg>{}</li>")
    items = [item.format(one.color, SHAPES[one.shape], one.name) for one in series]
    return Markup('<ul class="legend">{}</ul>').format(_joined(items))


def bar_strip(label: str, value: float, ends: tuple[float, float] | None, marks: Sequence[float]) -> Markup:
    """Return one bar from 0 with its interval, if it has one; all as shares of the width."""
    bar = Markup('<rect class="bar" x="0" y="6" width="{:.2f}%" height="12" rx="2"/>').format(100 * value)
    return _strip(label, marks, bar, *([] if ends is None else [_whisker(*ends)]))


def dot_strip(
    label: str,
    value: float | None,
    ends: tuple[float, float] | None,
    other: tuple[float, float] | None,
    marks: Sequence[float],
) -> Markup:
    """Return an estimate with its interval (circle) beside what became of it (diamond), as shares of the width.

    What became of it is a share, and what it would be if all that was left open were added.
    """
    parts = []
    if other is not None and other[1] > other[0]:
        open_part = '<line class="open series two" x1="{:.2f}%" x2="{:.2f}%" y1="17" y2="17"/>'
        parts.append(Markup(open_part).format(100 * other[0], 100 * min(1.0, other[1])))
    if ends is not None:
        parts.append(_whisker(*ends, y=9))
    for share, y, color, shape in ((value, 9, "one", "circle"), (other and other[0], 17, "two", "diamond")):
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


def histogram(label: str, heaps: Sequence[Heap], threshold: float | None) -> Markup:
    """Return rows of bars over the probability, one per heap, with the threshold across each of them.

    A bar's height goes with the square root of its number: one image stays visible beside a thousand.
    """
    each, gap = 46, 24
    height = TOP + len(heaps) * (each + gap) + BOTTOM
    frame = Frame((0, 1), (0, 1), height=height, left=RIGHT)
    bars, words, cuts, bottom = [], [], list[Markup](), float(TOP)
    for heap in heaps:
        bottom += each + gap
        bars.append(_bars(frame, heap, bottom, each))
        base = '<line class="axis" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
        bars.append(Markup(base).format(frame.left, frame.right, y=bottom))
        said = f"{heap.name}: {counted(len(heap.values), 'image')}"
        words.append(Markup('<text x="{}" y="{:.1f}">{}</text>').format(frame.left, bottom - each - 8, said))
        if threshold is not None:  # not through the words
            line = '<line x1="{x:.1f}" x2="{x:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
            cuts.append(Markup(line).format(bottom - each - 3, bottom, x=frame.x(threshold)))
    numbers = [
        Markup('<text class="mid" x="{:.1f}" y="{:.1f}">{:g}</text>').format(frame.x(x), bottom + 16, x)
        for x in (0, 0.25, 0.5, 0.75, 1)
    ]
    cut = Markup("")
    if threshold is not None:
        cut = Markup('<g class="cut"><title>threshold {:.3f}</title>{}</g>').format(threshold, _joined(cuts))
    return frame.drawn(label, *bars, *numbers, cut, *words, frame.x_title("probability"))


def _bars(frame: Frame, heap: Heap, bottom: float, each: float) -> Markup:
    counts, edges = np.histogram(heap.values, BINS, (0, 1))
    most = math.sqrt(max(1, counts.max()))
    bars = []
    for count, low, high in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            tall, x, wide = each * math.sqrt(count) / most, frame.x(low), frame.x(high) - frame.x(low) - 1
            bar = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
            said = f"{low:.3g} to {high:.3g}: {counted(count, 'image')}"
            bars.append(Markup(bar).format(x + 0.5, bottom - tall, wide, tall, said))
    return Markup('<g class="bars {}">{}</g>').format(heap.color, _joined(bars))


def reliability_chart(
    label: str, series: Sequence[tuple[Series, Sequence[tuple[float, float]], Sequence[str]]]
) -> Markup:
    """Return what was predicted against what was true; on the diagonal the probabilities mean what they say.

    Args:
        label: the chart in words.
        series: lines in 0..1, each with its points' intervals and tooltips.
    """
    frame = Frame((0, 1), (0, 1), height=WIDTH)
    fifths = [0, 0.25, 0.5, 0.75, 1]
    ends = (frame.x(0), frame.y(0), frame.x(1), frame.y(1))
    parts = [Markup('<path class="diagonal" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(*ends)]
    for one, intervals, said in series:
        path = "M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in one.points)
        parts.append(Markup('<g class="series {}"><path class="line" d="{}"/>').format(one.color, path))
        for (x, y), (low, high), words in zip(one.points, intervals, said, strict=True):
            whisker = '<path class="whisker" d="M{:.1f} {:.1f}V{:.1f}"/>'
            parts.append(Markup(whisker).format(frame.x(x), frame.y(low), frame.y(high)))
            point = '<g transform="translate({:.1f} {:.1f})"><title>{}</title>{}</g>'
            parts.append(Markup(point).format(frame.x(x), frame.y(y), words, SHAPES[one.shape]))
        parts.append(Markup("</g>"))
    grid = frame.grid(fifths, fifths, lambda share: f"{100 * share:.0f} %")
    return frame.drawn(label, grid, *parts, frame.x_title("probability that was given"))


def _joined(parts: Sequence[Markup]) -> Markup:
    return Markup("").join(parts)
