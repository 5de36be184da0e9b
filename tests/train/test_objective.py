"""The loss of a step against the paper's formulas, written out entry by entry."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tagspread.methods import get_method
from tagspread.methods.base import Method
from tagspread.train.config import TrainConfig
from tagspread.train.objective import Objective

N, M, Q = 3, 5, 4


def batch(seed=0):
    """Logits, labels then targets (some unknown or ignored), weights, places."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(N + M, Q))
    labels = rng.integers(-1, 2, size=(N + M, Q)).astype(float)
    weight = np.where(np.arange(N + M)[:, None] < N, 1.0, rng.random((N + M, Q)))
    return (*(torch.from_numpy(part) for part in (logits, labels, weight)), torch.arange(M))


def entry(z, t, w):
    """Binary cross-entropy of one entry, by its definition."""
    f = 1 / (1 + math.exp(-z))
    if t == -1:
        return 0.0
    return w * (-math.log(f) if t == 1 else -math.log(1 - f))


def row_losses(logits, labels, weight):
    """The loss of each row: the sum over its classes (eq. 5 for the unlabeled rows)."""
    return [
        sum(entry(z, t, w) for z, t, w in zip(*row, strict=True))
        for row in zip(logits.tolist(), labels.tolist(), weight.tolist(), strict=True)
    ]


@pytest.mark.parametrize("share", [None, 0.5])
def test_eq_6_is_the_mean_over_the_labeled_plus_the_mean_over_the_unlabeled_rows(share):
    config = TrainConfig(loss="bce", reduction="mean_mean", unlabeled_weight=share)
    logits, labels, weight, places = batch()
    losses = row_losses(logits, labels, weight)
    expected = sum(losses[:N]) / N + (1.0 if share is None else share) * sum(losses[N:]) / M
    objective = Objective.from_config(config, get_method("cap"), {})
    assert objective(logits, labels, weight, places).item() == pytest.approx(expected)


@pytest.mark.parametrize("share", [None, 0.5])
def test_the_sum_counts_every_row_of_the_mixed_batch_alike(share):
    config = TrainConfig(loss="bce", unlabeled_weight=share)
    logits, labels, weight, places = batch(1)
    losses = row_losses(logits, labels, weight)
    expected = sum(losses[:N]) + (1.0 if share is None else share) * sum(losses[N:])
    objective = Objective.from_config(config, get_method("cap"), {})
    assert objective(logits, labels, weight, places).item() == pytest.approx(expected)


@pytest.mark.parametrize("reduction", ["sum", "mean_mean"])
def test_without_unlabeled_rows_only_the_labeled_term_is_left(reduction):
    logits, labels, weight, _ = batch(2)
    objective = Objective.from_config(TrainConfig(loss="bce", reduction=reduction), get_method("cap"), {})
    expected = sum(row_losses(logits, labels, weight)) / (N + M if reduction == "mean_mean" else 1)
    assert objective(logits, labels, weight, torch.arange(0)).item() == pytest.approx(expected)


def test_a_method_that_is_defined_by_its_loss_brings_its_own():
    logits, labels, weight, places = batch(3)
    asymmetric = TrainConfig(loss="asl", loss_options={"margin": 0.1, "gamma_neg": 2.0})
    values = [
        Objective.from_config(asymmetric, get_method(name), {})(logits, labels, weight, places).item()
        for name in ("cap", "asl")
    ]
    assert values[0] == values[1] != pytest.approx(sum(row_losses(logits, labels, weight)))
    own = Objective.from_config(TrainConfig(loss="asl"), get_method("bce"), {})
    assert own(logits, labels, weight, places).item() == pytest.approx(sum(row_losses(logits, labels, weight)))


@dataclass(frozen=True)
class Noting(Method):
    """Doubles the labeled part's loss, and writes down which rows of the unlabeled set it was shown."""

    def loss_labeled(self, output, y, weight, loss):
        return 2 * loss(output, y, weight)

    def loss(self, output, targets, loss, state):
        state["places"] += targets.places.sum()
        return 3 * loss(output, targets.labels, targets.weight)


def test_a_method_may_change_both_terms_and_its_state():
    logits, labels, weight, places = batch(4)
    state = {"places": torch.zeros(())}
    losses = row_losses(logits, labels, weight)
    objective = Objective.from_config(TrainConfig(loss="bce"), Noting(), state)
    expected = 2 * sum(losses[:N]) + 3 * sum(losses[N:])
    assert objective(logits, labels, weight, places).item() == pytest.approx(expected)
    assert state["places"].item() == sum(range(M))
