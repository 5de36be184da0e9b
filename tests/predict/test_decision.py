import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import tagspread as ts
from tagspread.core.calibration import Calibration
from tagspread.core.decision import choose_thresholds, decide
from tagspread.progress import Watcher
from tagspread.train.config import TrainConfig
from tagspread.train.decision import decide_for_run, decide_on
from tagspread.train.trainer import run_training
from tests.train.conftest import TINY, make_dataset

RNG = np.random.default_rng(0)


def answers(dataset):
    """Logits that correlate with the true labels, one row per item of the store."""
    logits = RNG.normal(size=dataset.y.shape) + 2 * (dataset.y == 1)
    return logits, lambda rows: torch.from_numpy(logits[rows])


def test_held_out_images_choose_and_calibrate():
    dataset = make_dataset().hold_out(0.5, seed=0)
    logits, logits_of = answers(dataset)
    facts = decide_for_run(dataset, logits_of)
    assert facts["decision"]["policy"] == "f1"
    assert facts["decision"]["chosen_on"] == f"{len(dataset.held_out)} held-out images"
    assert facts["calibration"]["fitted_on"] == facts["decision"]["chosen_on"]
    y = dataset.y[dataset.held_out]
    slope, intercept = (np.array(facts["calibration"][part]) for part in ("slope", "intercept"))
    calibration = Calibration(slope, intercept)
    expected = choose_thresholds(calibration.probabilities(logits[dataset.held_out]), y)
    assert facts["thresholds"] == expected.thresholds.tolist()
    rates = ts.expected_rates(logits[dataset.held_out], y, calibrate=True)
    for name in ("precision", "recall"):
        stored = facts["decision"]["expected"][name]
        for k, triple in enumerate(stored):
            value, low, high = (part[k] for part in getattr(rates, name))
            assert triple == (None if np.isnan(value) or np.isinf(expected.thresholds[k]) else [value, low, high])
        assert any(stored)
    assert facts["decision"]["positives"] == (y == 1).sum(0).tolist()
    few = [name for name, n in zip(dataset.classes, (y == 1).sum(0), strict=True) if n < 5]
    assert facts["decision"]["classes_with_pooled_threshold"] == few
    json.dumps(facts, allow_nan=False)
    shown = facts["calibration"]["reliability"]
    assert sum(shown["before"]["count"]) == sum(shown["after"]["count"]) == y.size


def test_images_set_apart_choose_where_nothing_was_held_out():
    dataset = make_dataset().set_apart(0.5, seed=0)
    facts = decide_for_run(dataset, answers(dataset)[1])
    where = f"{len(dataset.apart)} labeled images whose labels were not used in training"
    assert facts["decision"]["chosen_on"] == where


def test_without_held_out_images_the_unlabeled_is_matched():
    dataset = make_dataset()
    logits, logits_of = answers(dataset)
    facts = decide_for_run(dataset, logits_of)
    assert facts["decision"]["policy"] == "match"
    assert "nothing was held out" in facts["decision"]["chosen_on"]
    assert facts["calibration"]["fitted_on"] is None
    assert facts["calibration"]["slope"] == [1.0] * 10
    unlabeled = 1 / (1 + np.exp(-logits[dataset.unlabeled]))
    share = dataset.y[dataset.labeled].mean(0)
    occurs = share > 0
    found = decide(unlabeled, [np.inf if cut is None else cut for cut in facts["thresholds"]]).sum(0)
    np.testing.assert_allclose(found[occurs], (share * len(unlabeled))[occurs], atol=0.5 + 1e-9)
    missing = [name for name, there in zip(dataset.classes, occurs, strict=True) if not there]
    assert facts["decision"]["classes_with_pooled_threshold"] == missing
    stated = decide_for_run(dataset, logits_of, {dataset.classes[0]: 0.5})["thresholds"]
    assert decide(unlabeled[:, :1], [stated[0]]).sum() == len(unlabeled) // 2
    assert stated[1:] == facts["thresholds"][1:]


def test_classes_are_matched_to_the_frequency_of_their_known_labels():
    """Unknown labels count neither way, and a class without a positive has no frequency of its own."""
    dataset = make_dataset()
    logits, logits_of = answers(dataset)
    y = dataset.y.copy()
    y[dataset.labeled[::2], 0] = -1
    y[dataset.labeled, 1] = 0
    y[dataset.labeled, 2] = -1
    facts = decide_for_run(replace(dataset, y=y), logits_of)
    assert facts["decision"]["classes_with_pooled_threshold"][:2] == list(dataset.classes[1:3])
    known = y[dataset.labeled, 0][y[dataset.labeled, 0] >= 0]
    found = decide(1 / (1 + np.exp(-logits[dataset.unlabeled, :1])), facts["thresholds"][:1]).sum()
    assert found == pytest.approx(known.mean() * len(dataset.unlabeled), abs=0.5 + 1e-9)


def test_with_neither_it_is_one_half():
    dataset = make_dataset(train=40, labeled=40)
    facts = decide_for_run(dataset, lambda rows: pytest.fail("nothing to score"))
    assert facts["thresholds"] == [0.5] * 10
    assert facts["decision"]["chosen_on"].startswith("nothing")


def test_a_run_that_went_wrong_still_ends():
    facts = decide_for_run(make_dataset(), lambda rows: torch.full((len(rows), 10), torch.nan))
    assert facts["thresholds"] == [0.5] * 10
    assert facts["decision"]["chosen_on"] == "nothing: the network's scores are not finite"


def test_a_floor_out_of_reach_is_named_and_null():
    logits = np.array([[0.0], [1.0], [2.0]] * 5)
    y = np.array([[1], [0], [0]] * 5)
    facts = decide_on(logits, y, ("a",), "precision:0.9", "here", calibrate=False)
    assert facts["thresholds"] == [None]
    assert facts["decision"]["classes_never_chosen"] == ["a"]
    assert facts["calibration"]["fitted_on"] is None
    json.dumps(facts, allow_nan=False)


def test_a_class_that_no_image_reaches_the_shared_threshold_of_is_named():
    logits = np.column_stack([np.r_[np.full(10, 2.0), np.full(10, -2.0)], np.full(20, -5.0)])
    y = np.column_stack([np.r_[np.ones(10), np.zeros(10)], np.r_[1, np.zeros(19)]]).astype(int)
    decision = decide_on(logits, y, ("often", "rare"), "f1", "here", calibrate=False)["decision"]
    assert decision["classes_with_pooled_threshold"] == decision["classes_chosen_nowhere"] == ["rare"]
    assert decision["classes_never_chosen"] == []


def test_a_run_that_holds_out_is_calibrated(tmp_path):
    config = TrainConfig.from_dict({**TINY, "selection": "held_out", "held_out": 0.5})
    run = run_training(
        make_dataset(), config, tmp_path / "run", device=torch.device("cpu"), watcher=Watcher(quiet=True)
    )
    facts = json.loads((run.path / "labels.json").read_text())
    assert facts["model"] == "best.safetensors"
    assert facts["calibration"]["fitted_on"] == "20 held-out images"
    assert set(facts["calibration"]["slope"]) != {1.0}
