import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from tagspread.report.svg import Group, Series, bar_strip, dot_strip, histogram, legend, line_chart, ticks
from tagspread.report.svg import reliability_chart as reliability

BAD = "<script>&\"'"


def parsed(markup):
    assert isinstance(markup, Markup)
    return ElementTree.fromstring(str(markup))


def titles(tree):
    return [element.text for element in tree.iter("title")]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_cover_the_range_in_a_few_even_steps(low, width):
    found = ticks(low, low + width)
    assert found[0] <= low + 1e-6 * width + 1e-9 * abs(low)
    assert found[-1] >= low + width - 1e-6 * width - 1e-9 * abs(low)
    assert 2 <= len(found) <= 8
    steps = np.diff(found)
    assert np.allclose(steps, steps[0], atol=1e-8 * max(1, abs(low)))


def test_a_line_goes_through_its_points_and_higher_is_further_up():
    tree = parsed(line_chart("words", [Series("a", [(1, 10.0), (2, 30.0), (3, 20.0)])], "{:g}".format))
    path = next(element for element in tree.iter("path") if element.get("class") == "line")
    points = [tuple(map(float, pair.split())) for pair in path.get("d")[1:].split("L")]
    xs, ys = zip(*points, strict=True)
    assert xs[0] < xs[1] < xs[2]
    assert np.isclose(xs[1] - xs[0], xs[2] - xs[1], atol=0.2)
    assert ys[1] < ys[2] < ys[0]  # SVG counts from the top
    assert np.isclose((ys[0] - ys[1]) / (ys[0] - ys[2]), 2, atol=0.05)
    assert titles(tree) == ["a, epoch 1: 10", "a, epoch 2: 30", "a, epoch 3: 20"]


@pytest.mark.parametrize("points", [[(5, 0.0)], [(1, 0.0), (2, 0.0)], [(k, float(k % 7)) for k in range(1, 300)]])
def test_odd_lines_are_drawn_within_the_frame(points):
    tree = parsed(line_chart("words", [Series("a", points)], "{:g}".format, until=1))
    width, height = map(float, tree.get("viewBox").split()[2:])
    for x, y in re.findall(r"translate\(([-\d.]+) ([-\d.]+)\)", ElementTree.tostring(tree, "unicode")):
        assert 0 <= float(x) <= width
        assert 0 <= float(y) <= height
    assert len(titles(tree)) == len(points)


def test_the_warm_up_is_shaded_to_its_end():
    def shades(until):
        tree = parsed(line_chart("words", [Series("a", [(1, 1.0), (2, 1.0), (3, 1.0)])], "{:g}".format, until=until))
        return [float(element.get("width")) for element in tree.iter("rect")]

    assert shades(0) == shades(3) == []
    assert 0 < shades(1)[0] < shades(2)[0]


def test_all_text_is_escaped():
    for drawn in (
        line_chart(BAD, [Series(BAD, [(1, 1.0)])], lambda _: BAD),
        legend([Series(BAD, [])]),
        bar_strip(BAD, 0.5, (0.4, 0.6), [0, 1]),
        dot_strip(BAD, 0.5, (0.4, 0.6), (0.5, 0.6), [0, 1]),
        histogram(BAD, [Group(BAD, np.array([0.5]))], 0.5),
        reliability(BAD, [(Series(BAD, [(0.5, 0.5)]), [(0.4, 0.6)], [BAD])]),
    ):
        assert "<script" not in drawn
        assert "&lt;script&gt;" in drawn
        parsed(drawn)


def test_strips_lie_where_the_shares_say():
    tree = parsed(bar_strip("words", 0.25, (0.1, 0.4), [0, 0.5]))
    assert next(tree.iter("rect")).get("width") == "25.00%"
    assert {line.get("x1") for line in tree.iter("line")} == {"0.00%", "50.00%", "10.00%", "40.00%"}
    assert len(list(parsed(bar_strip("words", 0.25, None, [])).iter("line"))) == 0
    signs = parsed(dot_strip("words", 0.25, None, (0.5, 1.7), [])).findall("svg")
    assert [sign.get("x") for sign in signs] == ["25.00%", "50.00%"]
    nothing = parsed(dot_strip("words", None, None, None, [0.5]))
    assert not nothing.findall("svg")
    open_part = parsed(dot_strip("words", None, None, (0.5, 1.7), [])).find("line")
    assert open_part.get("x2") == "100.00%"  # more than the scale holds


def test_histogram_counts_every_value_once():
    values = np.random.default_rng(0).beta(0.3, 0.9, 500)
    values[:2] = 0.0, 1.0
    tree = parsed(histogram("words", [Group("a", values), Group("none", np.empty(0))], None))
    counts = [int(text.split(": ")[1].split()[0].replace(",", "")) for text in titles(tree) if text]
    assert sum(counts) == 500
    assert "none: 0 images" in [element.text for element in tree.iter("text")]
    bars = list(tree.iter("rect"))
    tallest = max(bars, key=lambda bar: float(bar.get("height")))
    assert str(max(counts)) in tallest.find("title").text


def test_the_threshold_stands_at_its_probability():
    tree = parsed(histogram("words", [Group("a", np.array([0.5]))], 0.5))
    cut = next(group for group in tree.iter("g") if group.get("class") == "threshold").find("line")
    bar = next(tree.iter("rect"))
    assert np.isclose(float(cut.get("x1")), float(bar.get("x")), atol=1)
    assert not [
        g
        for g in parsed(histogram("w", [Group("a", np.array([0.5]))], None)).iter("g")
        if g.get("class") == "threshold"
    ]
