"""Studies: cells of keep_pos and keep_neg, errors of class proportions, and their charts."""

import sys

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from scipy.stats import binomtest

from tagspread.bench.charts import eta, pseudo_labels, write_charts
from tagspread.bench.grid import Grid
from tagspread.bench.studies import (
    eta_variants,
    proportion_errors,
    read_label_study,
    split_proportions,
    write_label_study,
)
from tagspread.data.split import paper_split
from tagspread.errors import TagspreadError


@pytest.fixture(scope="module")
def y():
    return (np.random.default_rng(0).random((600, 4)) < [0.5, 0.2, 0.05, 0.0]).astype(np.int8)


def test_eta_study_moves_one_end_at_a_time_and_shares_the_middle_cell():
    options = [options for _, options in eta_variants()]
    assert all(1.0 in (o["keep_pos"], o["keep_neg"]) for o in options)
    assert sorted({o["keep_pos"] for o in options}) == [0.8, 0.85, 0.9, 0.95, 1.0]
    assert sorted({o["keep_neg"] for o in options}) == [0.95, 0.96, 0.97, 0.98, 0.99, 1.0]
    both = Grid("demo", ("cap",), (0.1,), (1,), variants=eta_variants()).cells()
    assert len({cell.key for cell in both}) == len(both) == 1 + 10  # the warm-up, and CAP as it is among the ten
    assert sum(not cell.variant for cell in both if cell.config.method == "cap") == 1


def test_proportions_of_a_split_against_counting_and_scipy(y):
    [split] = split_proportions(y, [0.1], [3])
    labeled, unlabeled = paper_split(600, 0.1, 3)
    assert (split["n"], split["m"]) == (60, 540)
    for k in range(4):
        count = sum(int(y[row, k]) for row in labeled)
        assert split["estimated"][k] == pytest.approx(count / 60)
        assert split["true"][k] == pytest.approx(sum(int(y[row, k]) for row in unlabeled) / 540)
        exact = binomtest(count, 60).proportion_ci(0.9, "exact")
        assert (split["low"][k], split["high"][k]) == pytest.approx((exact.low, exact.high))


def test_errors_shrink_with_n_and_promises_are_kept(y):
    points = proportion_errors(y)
    assert [point["n"] for point in points] == sorted({int(point["n"]) for point in points})
    assert (points[0]["n"], points[-1]["n"]) == (20, 300)
    assert points[-1]["worst_class_error"] < points[0]["worst_class_error"] / 2
    for point in points:
        n, m = point["n"], point["m"]
        assert n + m == 600
        assert point["theorem1_bound"] == pytest.approx(np.sqrt(np.log(n) / (2 * n)) + np.sqrt(np.log(m) / (2 * m)))
        assert point["theorem1_coverage"] >= 1 - 2 / n - 2 / m
        assert point["median_error"] <= point["error_90"] <= 1
        assert point["hoeffding_half_width"] == pytest.approx(np.sqrt(np.log(2 * 4 / 0.1) / (2 * n)), rel=0.05)
    assert points[0]["exact_coverage"] >= 0.85


def test_tiny_data_are_no_reason_to_fail():
    assert proportion_errors(np.ones((6, 2), np.int8))[-1]["n"] == 3
    assert split_proportions(np.ones((6, 2), np.int8), [0.05], [1]) == []


def record(method, p, seed, figure, options=None, variant=""):
    curve = [figure, figure + 0.01]
    curves = {"stage": ["warmup", "main", "main"], "pseudo_OF1": [None, *curve], "pseudo_CF1": [None, *curve]}
    setup = {
        "id": "s",
        "preset": "paper",
        "backbone": "b",
        "image_size": 1,
        "weights": "none",
        "weights_name": "",
        "data": {},
    }
    return {
        "status": "done", "method": method, "p": p, "seed": seed, "options": options or {}, "variant": variant,
        "setup": setup | {"weights_name": "", "asked": {}}, "honest": figure, "parity": figure, "curves": curves,
    }  # fmt: skip


def drawn(folder):
    return sorted(
        file.name for file in folder.iterdir() if file.suffix in (".png", ".svg") and file.stat().st_size > 5000
    )


def test_figures_are_drawn_for_what_there_is(tmp_path, y):
    study = tmp_path / "study.json"
    assert write_charts(tmp_path, [], study) == []
    write_label_study(study, y, ("a", "b", "c", "a long name"), [0.1, 0.2], [1, 2])
    records = [record(m, p, s, 0.5) for m in ("cap", "iat") for p in (0.1, 0.2) for s in (1, 2)]
    [said] = write_charts(tmp_path, records, study)
    assert "proportions, pseudo-labels, intervals" in said
    records += [record("cap", 0.1, 1, 0.6, {"keep_pos": 0.9}, "keep_pos=0.9")]
    write_charts(tmp_path, records, study)
    names = ("eta", "intervals", "proportions", "pseudo-labels")
    assert drawn(tmp_path) == [f"{name}.{ending}" for name in names for ending in ("png", "svg")]


def test_curves_of_own_methods_are_drawn_too():
    mine = "/home/me/rule.py:Rule"
    figure = pseudo_labels([record(method, 0.1, 1, 0.5) for method in ("cap", mine, "plc")])
    assert figure is not None
    assert [line.get_label() for line in figure.axes[0].lines] == ["CAP", "rule.py:Rule"]
    four = [f"/{place}/rule.py" for place in "abcd"]
    figure = pseudo_labels([record(method, 0.1, 1, 0.5) for method in four])
    assert figure is not None
    lines = figure.axes[0].lines
    assert [line.get_label() for line in lines] == four  # one name in four folders
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4
    assert all(tick == int(tick) for tick in figure.axes[1].xaxis.get_major_locator().tick_values(0.95, 1.05))


def bars(figure):
    segments = [s for c in figure.axes[0].collections if isinstance(c, LineCollection) for s in c.get_segments()]
    return [segment for segment in segments if np.isfinite(segment).all() and len(segment)]


def test_figure_3_compares_the_same_seeds():
    records = [record("cap", 0.1, 1, 0.5), record("cap", 0.1, 2, 0.9)]  # the table's CAP has one seed more
    records += [record("cap", 0.1, 1, 0.6, {"keep_pos": 0.9}, "keep_pos=0.9")]
    figure = eta(records)
    assert figure is not None
    assert np.array(figure.axes[0].lines[0].get_xydata()) == pytest.approx(np.array([[0.9, 60.0], [1.0, 50.0]]))
    assert figure.get_suptitle().endswith("seed 1")
    assert not bars(figure)  # one seed has no spread
    other = [record("cap", 0.1, seed, 0.9, {"keep_pos": 0.9}, "keep_pos=0.9") for seed in (2,)]
    elsewhere = eta([*records, other[0] | {"setup": other[0]["setup"] | {"id": "other"}}, *records[2:]])
    assert elsewhere is not None
    assert np.array(elsewhere.axes[0].lines[0].get_xydata())[1] == pytest.approx([1.0, 50.0])
    more = eta([*records, *other, record("cap", 0.1, 1, 0.7, {"keep_pos": 0.8}, "keep_pos=0.8")])
    assert more is not None  # seed 2 lacks a point
    both = eta([*records, *other])
    assert len(bars(both)) == 2 * 2  # points, protocols
    assert np.array(more.axes[0].lines[0].get_ydata()) == pytest.approx(np.array([70.0, 60.0, 50.0]))


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_on_a_frozen_network_the_whole_interval_is_not_the_one_that_is_chosen(preset):
    grid = Grid("demo", ("cap",), (0.1,), (1,), preset, {"mode": "head"}, variants=eta_variants())
    cells = grid.cells()
    assert len({cell.key for cell in cells}) == len({cell.variant for cell in cells}) == 1 + 10
    assert [cell.options for cell in cells if cell.variant == "keep_pos=1, keep_neg=1"] == [
        {"keep_pos": 1.0, "keep_neg": 1.0}
    ]
    records = [record("cap", 0.1, 1, 0.5), record("cap", 0.1, 1, 0.6, {"keep_pos": 1.0, "keep_neg": 1.0}, "whole")]
    records += [record("cap", 0.1, 1, 0.7, {"keep_pos": 0.9, "keep_neg": 1.0}, "part")]
    figure = eta([one | {"setup": one["setup"] | {"settings": {"mode": "head"}}} for one in records])
    assert figure is not None
    assert np.array(figure.axes[0].lines[0].get_xydata()) == pytest.approx(np.array([[0.9, 70.0], [1.0, 60.0]]))


def test_same_data_same_image(tmp_path, y):
    study = tmp_path / "study.json"
    write_label_study(study, y, ("a", "b", "c", "d"), [0.1], [1])
    write_charts(tmp_path, [], study)
    first = (tmp_path / "proportions.svg").read_bytes()
    write_charts(tmp_path, [], study)
    assert (tmp_path / "proportions.svg").read_bytes() == first


def test_without_matplotlib_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    [said] = write_charts(tmp_path, [], tmp_path / "study.json")
    assert "matplotlib is not installed" in said


def test_label_study_that_is_damaged_is_named(tmp_path):
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(TagspreadError, match=r"study\.json cannot be read"):
        read_label_study(tmp_path / "study.json")
    assert read_label_study(tmp_path / "none.json") is None
