"""Thresholds chosen on held-out labels: images, criterion, and rows in the tables."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from sklearn.metrics import f1_score

from tagspread.bench import cells as cells_module
from tagspread.bench import runner as runner_module
from tagspread.bench import threshold_choice as threshold_module
from tagspread.bench.charts import pseudo_labels
from tagspread.bench.grid import Grid
from tagspread.bench.results import Results
from tagspread.bench.table_parts import MISSING
from tagspread.bench.tables import build_tables
from tagspread.bench.threshold_choice import (
    BY_LABELS,
    CANDIDATES,
    FILE,
    TUNED_FROM,
    ThresholdChoice,
    ThresholdChoices,
    choose_threshold,
    chosen_rows,
    split_of,
)
from tagspread.errors import TagspreadError
from tagspread.run.artifact import load_network, read_artifact
from tagspread.train.interrupts import Interrupted
from tagspread.train.trainer import run_training
from tests.bench.conftest import Listener
from tests.bench.test_studies import record
from tests.bench.test_tables import SETUP, cell, done, rows_of
from tests.train.conftest import make_dataset


def choice(p=0.05, seed=1, best=0.7, setup="abc"):
    return ThresholdChoice("voc", setup, p, seed, 57, {t: 0.5 - abs(t - best) for t in CANDIDATES})


@given(st.lists(st.floats(0, 1), min_size=len(CANDIDATES), max_size=len(CANDIDATES)))
def test_threshold_is_the_lowest_of_the_best_that_the_method_can_have(f1):
    for method, least in TUNED_FROM.items():
        allowed = [k for k, t in enumerate(CANDIDATES) if t >= least]
        best = next(k for k in allowed if all(f1[k] >= f1[j] for j in allowed))
        made = ThresholdChoice("voc", "abc", 0.05, 1, 9, dict(zip(CANDIDATES, f1, strict=True)))
        assert made.threshold(method) == CANDIDATES[best]


def demo_grid(**changes):
    settings = {"warmup_epochs": 1, "epochs": 1, "batch": 32}
    usual = {"dataset": "demo", "methods": (), "shares": (0.2,), "seeds": (1, 2), "tuned": tuple(TUNED_FROM)}
    return Grid(**(usual | {"settings": settings} | changes))


def test_a_split_has_its_cells_once_its_threshold_is_chosen():
    grid = demo_grid()
    assert [c.config.method for c in grid.cells()] == ["asl", "asl"]
    first = grid.warmups()[0]
    made = ThresholdChoice(*split_of(first), 5, choice(best=0.4).f1)
    cells = grid.cells({made.split: made})
    assert [(c.config.seed, c.config.method, c.options) for c in cells] == [
        (1, "asl", {}), (1, "plc", {"threshold": 0.5}), (1, "iat", {"threshold": 0.4}), (2, "asl", {}),
    ]  # fmt: skip
    other = demo_grid(settings={"warmup_epochs": 2, "epochs": 1, "batch": 32})  # another recipe, another choice
    assert len(other.cells({made.split: made})) == 2


@pytest.mark.parametrize(
    ("preset", "loss", "network"), [("paper", "asl", "model"), ("paper", "bce", "model"), ("default", "bce", "ema")]
)
def test_chosen_on_a_fifth_of_the_labeled_part_by_the_network_that_is_handed_on(
    preset, loss, network, tmp_path, monkeypatch
):
    dataset = make_dataset(train=64, test=12, labeled=24)
    monkeypatch.setattr(threshold_module, "remove_models", lambda _: None)
    settings = {
        "warmup_epochs": 3 * (preset == "paper"),
        "epochs": 1,
        "batch": 8,
        "selection": "held_out",
        "loss": loss,
    }
    [warmup] = demo_grid(preset=preset, settings=settings, seeds=(1,)).warmups()
    found = choose_threshold(warmup, dataset, tmp_path / "run", device=torch.device("cpu"), watcher=Listener())

    about = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (about["settings"]["method"], about["settings"]["selection"]) == (loss, "last")
    apart = dataset.hold_out(0.2, 1)
    assert found.images == len(apart.held_out) == 5
    assert found.split == split_of(warmup)
    judged = load_network(read_artifact(tmp_path / "run"), torch.device("cpu"))
    judged.load_state_dict(load_file(tmp_path / "run" / f"{network}.safetensors"))
    with torch.inference_mode():
        f = judged(apart.store.batch(apart.held_out)).sigmoid().numpy()
    expected = [f1_score(dataset.y[apart.held_out], f >= t, average="micro", zero_division=0) for t in CANDIDATES]
    assert list(found.f1) == list(CANDIDATES)
    assert list(found.f1.values()) == pytest.approx(expected, abs=1e-4)


def test_a_choice_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    dataset = make_dataset(train=64, test=12, labeled=24)
    [warmup] = demo_grid(settings={"warmup_epochs": 3, "epochs": 1, "batch": 8}, seeds=(1,)).warmups()
    how: dict[str, Any] = {"device": torch.device("cpu"), "watcher": Listener()}
    whole = choose_threshold(warmup, dataset, tmp_path / "whole", **how)
    begun = []

    def stopped(dataset, config, folder, options, **more):
        begun.append(options.resume)
        run = run_training(dataset, config, folder, options, **more)
        if not options.resume:
            raise Interrupted
        return run

    monkeypatch.setattr(cells_module, "run_training", stopped)
    with pytest.raises(Interrupted):
        choose_threshold(warmup, dataset, tmp_path / "parts", **how)
    assert choose_threshold(warmup, dataset, tmp_path / "parts", **how) == whole
    assert begun == [False, True]
    assert not list(tmp_path.glob("*/*.safetensors"))  # nobody needs the network any more


def test_the_study_in_small_and_a_second_call_chooses_nothing_anew(ask, bench, tmp_path, monkeypatch):
    request = ask(study="thresholds", methods=None, seeds=(1, 2))
    failed, told = bench(request)
    assert failed == 0
    splits = json.loads((tmp_path / "out" / FILE).read_text())["splits"]
    assert [(split["seed"], split["images"]) for split in splits] == [(1, 5), (2, 5)]
    records = Results(tmp_path / "out").read()
    choices = ThresholdChoices(Results(tmp_path / "out")).read()
    assert [r["method"] for r in records] == ["asl", "plc", "iat"] * 2
    for r in records:
        if r["method"] != "asl":
            made = choices["demo", r["setup"]["id"], r["p"], r["seed"]]
            wanted = make_plain(r["method"], made.threshold(r["method"]))
            assert r["options"] == wanted
    assert sum("held-out labeled images" in line for line in told.lines) == 2
    table = (tmp_path / "out" / "table.md").read_text()
    assert f"| IAT, {BY_LABELS} | " in table
    assert ", variants" not in table

    monkeypatch.setattr(threshold_module, "train_in", None)
    assert not bench(request)[1].cells


def test_a_study_that_was_stopped_while_it_chose_goes_on(ask, bench, monkeypatch):
    request = ask(study="thresholds", methods=None, seeds=(1, 2))
    chosen: list[int] = []

    def once(warmup, *rest, **more):
        if chosen:
            raise KeyboardInterrupt
        chosen.append(warmup.config.seed)
        return choose_threshold(warmup, *rest, **more)

    monkeypatch.setattr(runner_module, "choose_threshold", once)
    with pytest.raises(KeyboardInterrupt):
        bench(request)
    monkeypatch.undo()
    failed, told = bench(request)
    assert failed == 0
    assert sum("held-out labeled images" in line for line in told.lines) == 1
    assert len(told.cells) == 6


def make_plain(method, threshold):
    return {} if threshold == {"plc": 0.6, "iat": 0.5}[method] else {"threshold": threshold}


def test_what_is_not_chosen_yet_is_said_and_shown_as_missing(ask, bench, tmp_path):
    _, told = bench(ask(study="thresholds", methods=None, dry_run=True))
    assert told.lines[-1] == "further cells run once their threshold is chosen, in 1 split"
    assert not (tmp_path / "out").exists()
    for preset in ("paper", "default"):  # the second has no warm-up of its own to show
        failed, told = bench(ask(study="thresholds", methods=None, preset=preset, budget=0.0))
        assert failed == 0
        assert told.lines[0] == "thresholds of 1 split not chosen: the time budget is spent; run again to continue"
        assert f"| IAT, {BY_LABELS} | {MISSING} |" in (tmp_path / "out" / "table.md").read_text()
    bench(ask(study="thresholds", methods=None, seeds=(2,)))
    table = (tmp_path / "out" / "table.md").read_text()
    assert f"| IAT, {BY_LABELS} | {MISSING} |" in table  # preset default
    assert table.count("(n = 1)") == 3 * 2  # warm-up and both methods: seed 1 is still missing
    assert f"IAT, {BY_LABELS}, by seed: p = 0.2: {MISSING}, 0." in table


def test_a_choice_that_fails_is_a_failed_cell_and_not_the_end(ask, bench, tmp_path, monkeypatch):
    request = ask(study="thresholds", methods=None, shares=(0.01, 0.2))
    failed, told = bench(request)
    assert failed == 2
    assert "demo p=0.01 seed 1: choosing the threshold failed: 1 labeled image: too few" in told.lines[1]
    assert "iat" in told.cells[-1]
    assert f"| IAT, {BY_LABELS} | failed | " in (tmp_path / "out" / "table.md").read_text()
    failed, told = bench(request)  # not tried again unless asked for
    assert "2 cells failed before; run again with --retry-failed" in told.lines
    assert (failed, [line for line in told.lines if "chosen" in line]) == (2, [])

    def breaks(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runner_module, "choose_threshold", breaks)
    failed, told = bench(replace(request, retry_failed=True))
    assert failed == 2
    assert any(line.endswith("choosing the threshold failed: RuntimeError: out of memory") for line in told.lines)
    monkeypatch.setattr(
        runner_module, "choose_threshold", lambda warmup, *_, **__: ThresholdChoice(*split_of(warmup), 1, choice().f1)
    )
    failed, told = bench(replace(request, retry_failed=True))
    assert failed == 0
    assert "failed" not in (tmp_path / "out" / "table.md").read_text()


def test_no_choice_is_begun_that_would_not_end_in_time(ask, bench, monkeypatch):
    bench(ask(methods=("asl",)))
    monkeypatch.setattr(runner_module.GridRunner, "expected_seconds", lambda *_: 90.0)
    _, told = bench(ask(study="thresholds", methods=None, budget=1.0))
    assert told.lines[0] == "thresholds of 1 split not chosen: the time budget is spent; run again to continue"


def test_the_first_choice_of_two_processes_counts(tmp_path):
    choices = ThresholdChoices(Results(tmp_path))
    for best in (0.7, 0.8):
        choices.add(choice(best=best))
    assert choices.read()[choice().split].threshold("iat") == 0.7


def test_a_study_sets_its_own_options(ask, bench):
    with pytest.raises(TagspreadError, match="cannot be combined with --study"):
        bench(ask({"method_options": {"threshold": 0.7}}, study="thresholds", methods=None))


BARE, NULL, NONE = (
    json.dumps({"splits": [{"dataset": "voc", "setup": "x", "p": 0.1, "seed": 1, "images": 5, "f1": f1}]})
    for f1 in ([0.5] * 14, {"0.5": None}, {})
)


@pytest.mark.parametrize("text", ["{", "{}", '{"splits": [{"p": 1}]}', '{"splits": [5]}', BARE, NULL, NONE])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(TagspreadError, match=r"thresholds\.json cannot be read .* to choose the thresholds again"):
        ThresholdChoices(Results(tmp_path)).read()
    kept = choice()
    (tmp_path / FILE).unlink()
    ThresholdChoices(Results(tmp_path)).add(kept)
    assert ThresholdChoices(Results(tmp_path)).read() == {kept.split: kept}


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
    assert tables[0].notes[-1] == f"IAT, {BY_LABELS}, by seed: p = 0.05: 0.7, 0.8, 0.7."


def test_a_sweep_keeps_its_rows_and_another_setup_its_own_choice():
    made = choice(seed=1, best=0.7)
    records = [iat(1, 0.7, 0.7), iat(2, 0.7, 0.8)]  # the second was asked for by the user
    tables = build_tables("voc", [*records, *chosen_rows(records, {made.split: made})], [])
    assert rows_of(tables[1]) == {"IAT, threshold=0.7": ["75.00 ± 7.07"]}
    elsewhere = iat(1, 0.7, 0.7, setup=SETUP | {"id": "other"})
    assert not list(chosen_rows([elsewhere], {made.split: made}))
    usual = choice(seed=1, best=0.5)  # what is chosen may be what is usual
    assert [c["variant"] for c in chosen_rows([done("iat", 0.05, 1, 0.5)], {usual.split: usual})] == [BY_LABELS]


def test_a_threshold_that_is_the_usual_one_is_no_tie_with_itself():
    usual = [choice(seed=seed, best=0.5) for seed in (1, 2)]
    records = [done("iat", 0.05, seed, 0.5 + seed / 100) for seed in (1, 2)] + [done("bce", 0.05, 1, 0.2)]
    records += chosen_rows(records, {made.split: made for made in usual})
    [note, which] = build_tables("voc", records, [])[0].notes
    assert note == "p = 0.05: IAT is highest by more than one standard deviation (0.71)."
    assert which.endswith("p = 0.05: 0.5, 0.5.")


def test_pseudo_labels_of_a_chosen_threshold_are_drawn_beside_the_fixed_one():
    records = [record("iat", 0.1, 1, 0.4), record("iat", 0.1, 1, 0.6, {"threshold": 0.7}, BY_LABELS)]
    records.append(record("iat", 0.1, 1, 0.9, {"threshold": 0.9}, "threshold=0.9"))
    figure = pseudo_labels(records)
    assert figure is not None
    drawn = figure.axes[0].lines
    assert [(line.get_label(), line.get_linestyle()) for line in drawn] == [("IAT", "-"), (f"IAT, {BY_LABELS}", "--")]
    assert drawn[1].get_ydata() == pytest.approx([60, 61])
    records.append(record("iat", 0.05, 1, 0.4))  # a first panel without it
    figure = pseudo_labels(records)
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].texts] == ["IAT", f"IAT, {BY_LABELS}"]
