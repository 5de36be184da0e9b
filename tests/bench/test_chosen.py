"""Thresholds chosen on held-out labels: by which pictures, by which figure, and where they stand in the tables."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from tagspread.bench import chosen as chosen_module
from tagspread.bench.chosen import BY_LABELS, FILE, LEAST, TRIED, Choice, Choices, choose, chosen_rows, split_of
from tagspread.bench.figures import pseudo_labels
from tagspread.bench.grid import Grid
from tagspread.bench.results import Results
from tagspread.bench.tables import build_tables
from tagspread.errors import TagspreadError
from tests.bench.conftest import Listener
from tests.bench.test_studies import record
from tests.bench.test_tables import SETUP, cell, done, rows_of
from tests.train.conftest import make_problem


def choice(p=0.05, seed=1, best=0.7, setup="abc"):
    return Choice("voc", setup, p, seed, 57, tuple(0.5 - abs(t - best) for t in TRIED))


@given(st.lists(st.floats(0, 1), min_size=len(TRIED), max_size=len(TRIED)))
def test_threshold_is_the_lowest_of_the_best_that_the_method_can_have(f1):
    for method, least in LEAST.items():
        allowed = [k for k, t in enumerate(TRIED) if t >= least]
        best = next(k for k in allowed if all(f1[k] >= f1[j] for j in allowed))
        assert Choice("voc", "abc", 0.05, 1, 9, tuple(f1)).threshold(method) == TRIED[best]


def demo_grid(**changes):
    settings = {"warmup_epochs": 1, "epochs": 1, "batch": 32}
    usual = {"dataset": "demo", "methods": (), "shares": (0.2,), "seeds": (1, 2), "tuned": tuple(LEAST)}
    return Grid(**(usual | {"settings": settings} | changes))


def test_a_split_has_its_cells_once_its_threshold_is_chosen():
    grid = demo_grid()
    assert [c.config.method for c in grid.cells()] == ["asl", "asl"]
    first = grid.warmups()[0]
    made = Choice(*split_of(first), 5, choice(best=0.4).f1)
    cells = grid.cells({made.split: made})
    assert [(c.config.seed, c.config.method, c.options) for c in cells] == [
        (1, "asl", {}), (1, "plc", {"threshold": 0.5}), (1, "iat", {"threshold": 0.4}), (2, "asl", {}),
    ]  # fmt: skip
    other = demo_grid(settings={"warmup_epochs": 2, "epochs": 1, "batch": 32})  # another recipe, another choice
    assert len(other.cells({made.split: made})) == 2


def test_chosen_on_a_fifth_of_the_labelled_part_and_on_nothing_else(monkeypatch):
    small_problem = make_problem(train=64, test=12, labelled=24)
    seen: dict[str, Any] = {}
    rng = np.random.default_rng(3)

    def train(problem, config, folder, **_):
        seen.update(problem=problem, config=config)
        return type("Run", (), {"path": folder})

    def scored(network, store, rows, **_):
        seen["logits"] = torch.from_numpy(rng.normal(1, 1, (len(rows), len(small_problem.classes))))
        return seen["logits"]

    for name, stand_in in (("run_training", train), ("score", scored), ("load_network", lambda *_: None)):
        monkeypatch.setattr(chosen_module, name, stand_in)
    monkeypatch.setattr(chosen_module, "read_artefact", lambda _: None)
    warmup = demo_grid(settings={"selection": "held_out", "epochs": 1}).warmups()[0]
    found = choose(warmup, small_problem, torch.device("cpu"), Listener())
    part = seen["problem"]
    assert sorted([*part.labelled, *part.held_out]) == sorted(small_problem.labelled)
    assert len(part.held_out) == found.pictures == pytest.approx(len(small_problem.labelled) / 5, abs=1)
    assert len(part.test) == 0
    assert (seen["config"].method, seen["config"].selection) == ("asl", "last")
    truth = small_problem.y[part.held_out]
    for t, f1 in zip(TRIED, found.f1, strict=True):
        expected = f1_score(truth, seen["logits"].sigmoid().numpy() >= t, average="micro", zero_division=0)
        assert f1 == pytest.approx(expected, abs=1e-4)
    assert found.split == split_of(warmup)


def test_the_study_in_small_and_a_second_call_chooses_nothing_anew(ask, bench, tmp_path, monkeypatch):
    request = ask(study="thresholds", methods=None, seeds=(1, 2))
    failed, told = bench(request)
    assert failed == 0
    splits = json.loads((tmp_path / "out" / FILE).read_text())["splits"]
    assert [(split["seed"], split["pictures"]) for split in splits] == [(1, 5), (2, 5)]
    records = Results(tmp_path / "out").read()
    choices = Choices(Results(tmp_path / "out")).read()
    assert [r["method"] for r in records] == ["asl", "plc", "iat"] * 2
    for r in records:
        if r["method"] != "asl":
            made = choices["demo", r["setup"]["id"], r["p"], r["seed"]]
            wanted = make_plain(r["method"], made.threshold(r["method"]))
            assert r["options"] == wanted
    assert sum("held-out labelled pictures" in line for line in told.lines) == 2
    table = (tmp_path / "out" / "table.md").read_text()
    assert f"| IAT, {BY_LABELS} | " in table
    assert ", variants" not in table

    monkeypatch.setattr(chosen_module, "run_training", None)
    assert not bench(request)[1].cells


def make_plain(method, threshold):
    return {} if threshold == {"plc": 0.6, "iat": 0.5}[method] else {"threshold": threshold}


def test_what_cannot_be_chosen_now_is_said(ask, bench, tmp_path):
    _, told = bench(ask(study="thresholds", methods=None, dry_run=True))
    assert told.lines[-1] == "thresholds of 1 split: chosen first; their cells come on top"
    assert not (tmp_path / "out").exists()
    _, told = bench(ask(study="thresholds", methods=None, budget=0.0))
    assert told.lines[0] == "thresholds of 1 split: left for another time"
    failed, told = bench(ask(study="thresholds", methods=None, shares=(0.01, 0.2)))
    assert failed == 0
    assert "demo p=0.01 seed 1: no threshold could be chosen: held_out is 0.2 of 1 labelled picture" in told.lines[1]
    assert "iat" in told.cells[-1]


def test_a_study_sets_its_own_options(ask, bench):
    with pytest.raises(TagspreadError, match="not with a study"):
        bench(ask({"method_options": {"threshold": 0.7}}, study="thresholds", methods=None))


@pytest.mark.parametrize("text", ["{", "{}", '{"splits": [{"p": 1}]}', '{"splits": [5]}'])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(TagspreadError, match=r"thresholds\.json cannot be read .* chosen anew"):
        Choices(Results(tmp_path)).read()
    kept = choice()
    (tmp_path / FILE).unlink()
    Choices(Results(tmp_path)).add(kept)
    assert Choices(Results(tmp_path)).read() == {kept.split: kept}


def iat(seed, threshold, value, **more):
    return done("iat", 0.05, seed, value, variant=f"threshold={threshold}", options={"threshold": threshold}, **more)


def test_chosen_thresholds_make_one_row_beside_the_fixed_one():
    choices = {made.split: made for made in (choice(seed=1, best=0.7), choice(seed=2, best=0.8), choice(seed=3))}
    records = [done("iat", 0.05, 1, 0.5), iat(1, 0.7, 0.70), iat(2, 0.8, 0.72), done("cap", 0.05, 1, 0.6)]
    planned = [cell("iat", 0.05, 3, variant="threshold=0.7", options={"threshold": 0.7})]
    cells = ([*found, *chosen_rows(found, choices)] for found in (records, planned))
    tables = build_tables("voc", *cells)
    assert [t.protocol for t in tables] == ["honest", "parity"]  # no table of variants: all of them stand here
    assert rows_of(tables[0]) == {
        "IAT": ["50.00 (n = 1)"],
        f"IAT, {BY_LABELS}": ["71.00 ± 1.41 (n = 2)"],
        "CAP": ["60.00 (n = 1)"],
    }
    assert tables[0].rows[1].entries[0].published == (73.24, "")
    assert tables[0].notes[-1] == f"IAT, {BY_LABELS}, seed by seed: p = 0.05: 0.7, 0.8, 0.7."


def test_a_sweep_keeps_its_rows_and_another_setup_its_own_choice():
    made = choice(seed=1, best=0.7)
    records = [iat(1, 0.7, 0.7), iat(2, 0.7, 0.8)]  # the second was asked for by the user
    tables = build_tables("voc", [*records, *chosen_rows(records, {made.split: made})], [])
    assert rows_of(tables[1]) == {"IAT, threshold=0.7": ["75.00 ± 7.07"]}
    elsewhere = iat(1, 0.7, 0.7, setup=SETUP | {"id": "other"})
    assert not list(chosen_rows([elsewhere], {made.split: made}))
    usual = choice(seed=1, best=0.5)  # what is chosen may be what is usual
    assert [c["variant"] for c in chosen_rows([done("iat", 0.05, 1, 0.5)], {usual.split: usual})] == [BY_LABELS]


def test_pseudo_labels_of_a_chosen_threshold_are_drawn_beside_the_fixed_one():
    records = [record("iat", 0.1, 1, 0.4), record("iat", 0.1, 1, 0.6, {"threshold": 0.7}, BY_LABELS)]
    records.append(record("iat", 0.1, 1, 0.9, {"threshold": 0.9}, "threshold=0.9"))
    figure = pseudo_labels(records)
    assert figure is not None
    drawn = figure.axes[0].lines
    assert [(line.get_label(), line.get_linestyle()) for line in drawn] == [("IAT", "-"), (f"IAT, {BY_LABELS}", "--")]
    assert drawn[1].get_ydata() == pytest.approx([60, 61])
