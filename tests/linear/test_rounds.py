"""Pseudo-labeling rounds: what the method is given, when they end, and which methods are refused."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tagspread.core.thresholds import cat_targets, class_counts
from tagspread.linear.heads import DenseRows
from tagspread.linear.logistic import LogisticHead, fit_logistic
from tagspread.linear.rounds import Settings, check_method, constant_classes, probe, spread
from tagspread.methods import METHODS, Method, Targets, get_method

HEAD = LogisticHead()


def dataset(labeled=40, unlabeled=160, views=1, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(4, 3))
    rows = rng.normal(size=(labeled + unlabeled, 4))
    x = np.stack([rows + 0.1 * rng.normal(size=rows.shape) for _ in range(views)]).astype(np.float32)
    y = (rows @ truth + rng.normal(size=(labeled + unlabeled, 3)) > 0.5).astype(np.int8)
    seen = torch.from_numpy(x)
    return DenseRows(seen[:, :labeled]), torch.from_numpy(y[:labeled]), DenseRows(seen[:, labeled:])


def run(known, y, unlabeled, settings, **options):
    start = probe(known, y, settings.ridge, HEAD)
    return spread(known, y, unlabeled, settings, start, head=HEAD, classes=("a", "b", "c"), **options)


def test_rounds_are_score_label_fit_one_after_the_other():
    known, y, unlabeled = dataset(views=2)
    fitted = run(known, y, unlabeled, Settings(get_method("cap", keep_pos=0.8), 0.1, 0.02, 1.0), max_rounds=2)
    weight = fit_logistic(known.features, y, torch.zeros(3, 5), 0.1)
    for _ in range(2):
        logits = (unlabeled.features @ weight[:, :-1].T + weight[:, -1]).mean(0)
        targets = cat_targets(logits, *class_counts(y), 0.8)
        rows = torch.cat([known.features, unlabeled.features], dim=1)
        weight = fit_logistic(rows, torch.cat([y, targets]), weight, 0.02)
    assert (fitted.targets.labels == targets).all()
    torch.testing.assert_close(fitted.layers[0][0], weight[:, :-1], atol=2e-3, rtol=0)
    torch.testing.assert_close(fitted.layers[0][1], weight[:, -1], atol=2e-3, rtol=0)
    assert [entry["round"] for entry in fitted.log] == [1, 2]
    assert set(fitted.settled.tolist()) == {1, 2}


def test_a_small_weight_gives_nearly_the_labeled_only_head():
    """The penalty does not depend on the weight, so nothing but the weighted rows is added."""
    known, y, unlabeled = dataset()
    ((weight, _),) = probe(known, y, 0.3, HEAD)
    ((found, _),) = run(known, y, unlabeled, Settings(get_method("cap"), unlabeled_weight=1e-5)).layers
    torch.testing.assert_close(found, weight, atol=1e-3, rtol=0)
    ((old, _),) = run(known, y, unlabeled, Settings(get_method("cap"), 0.3, 0.02, 1e-5)).layers
    assert (old - weight).abs().max() > 0.1


def test_pseudo_labels_are_weighted_by_their_confidence():
    known, y, unlabeled = dataset()
    settings = Settings(get_method("cap"), unlabeled_weight=0.3, calibration=(1.5, -0.2))
    fitted = run(known, y, unlabeled, settings, max_rounds=1)
    weight = fit_logistic(known.features, y, torch.zeros(3, 5), 0.3)
    logits = (unlabeled.features @ weight[:, :-1].T + weight[:, -1]).mean(0)
    targets, present = cat_targets(logits, *class_counts(y)), torch.sigmoid(1.5 * logits - 0.2)
    sure = torch.where(targets == 1, 2 * present - 1, 1 - 2 * present).clamp(min=0)
    n, m = len(known), len(unlabeled)
    expected = fit_logistic(
        torch.cat([known.features, unlabeled.features], dim=1),
        torch.cat([y, targets]),
        weight,
        0.3 * n / (n + 0.3 * m) * (n + 0.3 * m) / (n + m),  # fit_logistic divides by all rows
        torch.cat([torch.ones(y.shape), 0.3 * sure]),
    )
    torch.testing.assert_close(fitted.layers[0][0], expected[:, :-1], atol=2e-3, rtol=0)


def test_rounds_end_when_the_targets_stop_moving():
    known, y, unlabeled = dataset()
    fitted = run(known, y, unlabeled, Settings(get_method("cap")), max_rounds=50)
    assert len(fitted.log) < 50
    early = run(known, y, unlabeled, Settings(get_method("cap")), max_rounds=50, tolerance=fitted.log[1]["moved"])
    assert len(early.log) == 1


def test_a_unlabeled_that_weighs_nothing_or_is_not_there_changes_nothing():
    known, y, unlabeled = dataset()
    start = probe(known, y, 0.3, HEAD)
    for settings, rows in (
        (Settings(get_method("cap"), unlabeled_weight=0.0), unlabeled),
        (Settings(get_method("bce")), unlabeled),
        (Settings(get_method("cap")), unlabeled.take(torch.arange(0))),
    ):
        fitted = run(known, y, rows, settings)
        assert fitted.targets is None
        torch.testing.assert_close(fitted.layers[0][0], start[0][0])


def test_constant_classes_keep_their_frequency_and_are_not_guessed():
    known, y, unlabeled = dataset()
    y[:, 0], y[:, 1] = 0, 1
    fitted = run(known, y, unlabeled, Settings(get_method("cap", priors={"a": 0.5})))
    ((weight, bias),) = fitted.layers
    assert (weight[:2] == 0).all()
    assert bias[0].item() == pytest.approx(-bias[1].item()) == pytest.approx(np.log(0.5 / 40.5), rel=1e-5)
    assert (fitted.targets.labels[:, 0] == 0).all()
    assert (fitted.targets.labels[:, 1] == 1).all()
    y[:, 2] = -1
    assert constant_classes(y)[2] == 0
    assert (run(known, y, unlabeled, Settings(get_method("cap", priors={"c": 0.5}))).targets.labels[:, 2] == -1).all()


@dataclass(frozen=True)
class Watching(Method):
    """Records the arguments it is called with."""

    reads_labeled = True

    def targets(self, scores, labeled, state):
        state.setdefault("told", []).append((labeled.epoch, labeled.epochs, labeled.unlabeled_size, labeled.scores))
        half = (scores > 0).float() * 0.8 + 0.1  # soft
        return Targets(half, torch.full_like(half, 0.5))


def test_a_method_is_told_where_things_stand_and_may_give_soft_and_weighted_targets():
    known, y, unlabeled = dataset()
    state: dict[str, Any] = {}
    fitted = run(known, y, unlabeled, Settings(Watching()), max_rounds=3, tolerance=-1.0, state=state)
    assert [told[:3] for told in state["told"]] == [(0, 3, 160), (1, 3, 160), (2, 3, 160)]
    assert state["told"][0][3].shape == y.shape
    assert fitted.targets.labels.unique().tolist() == pytest.approx([0.1, 0.9])


def accepted(name):
    try:
        check_method(get_method(name))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in METHODS if accepted(name)])
def test_every_method_that_labels_from_scores_runs(name):
    known, y, unlabeled = dataset()
    method = get_method(name)
    fitted = run(known, y, unlabeled, Settings(method))
    assert torch.isfinite(fitted.layers[0][0]).all()
    assert (fitted.targets is None) != method.uses_unlabeled


@pytest.mark.parametrize("name", [name for name in METHODS if not accepted(name)])
def test_every_other_method_says_why_not(name):
    with pytest.raises(ValueError, match=r"trains the network in its own way|is defined by the loss"):
        check_method(get_method(name))


def test_which_methods_label_from_scores():
    assert all(map(accepted, ("bce", "cap", "iat", "top1", "topk")))
    assert not accepted("asl")


def test_a_method_is_told_of_each_round_and_of_rows_that_were_set_apart():
    known, y, unlabeled = dataset()
    told = []

    @dataclass(frozen=True)
    class Rule(Method):
        def start(self, labeled):
            return {"cut": torch.zeros(1)}

        def new_epoch(self, labeled, state):
            state["cut"].fill_(labeled.epoch + 1)

        def targets(self, scores, labeled, state):
            told.append((int(state["cut"]), scores, labeled.apart))
            return Targets((scores > float(state["cut"]) / 10).to(torch.int8))

    apart = torch.tensor([[1, 0, 1], [0, 1, 0]])
    run(known, y, unlabeled, Settings(Rule()), apart=apart, max_rounds=3)
    assert [cut for cut, _, _ in told] == [1, 2, 3]
    for _, found, judged in told:
        assert torch.equal(judged.y, apart)
        assert torch.equal(judged.scores, found[-2:])
