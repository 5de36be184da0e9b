"""MAT, compared with scikit-learn threshold by threshold."""

import math
import re
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import fbeta_score, precision_score

from tagspread.errors import TagspreadError
from tagspread.methods import Labeled, get_method
from tagspread.methods.base import SetApart
from tagspread.methods.mat import BLOCK, MAT
from tagspread.train.trainer import run_training
from tests.methods.helpers import in_single_precision, logit, named, probabilities, problems, saved


def by_hand(metric, beta, support, truth, f):
    """Find the first best threshold of the grid with scikit-learn; none without positives or support."""
    known = [(y, p) for y, p in zip(truth, f, strict=True) if y >= 0]
    if not any(y == 1 for y, _ in known):
        return math.inf
    y = [y for y, _ in known]
    best, chosen, before = -1.0, math.inf, None
    for step in range(100):
        tau = in_single_precision(step / 100)
        found = [int(p >= tau) for _, p in known]
        if found == before and metric != "recall":
            continue  # the same predictions have the same value
        before = found
        if metric == "fbeta":
            value = fbeta_score(y, found, beta=beta, zero_division=0)
        elif metric == "recall":
            value = sum(a and b for a, b in zip(y, found, strict=True)) / sum(y)
        else:
            value = precision_score(y, found, zero_division=0) if sum(found) >= support else -1.0
        if value > best + 1e-9 or (metric == "recall" and value > best - 1e-9):
            best, chosen = value, tau
    return chosen


@settings(max_examples=40, deadline=None)
@given(
    problems(),
    st.sampled_from(["fbeta", "precision", "recall"]),
    st.sampled_from([0.5, 0.5**0.5, 1.0, 2.0]),
    st.integers(1, 4),
    st.booleans(),
)
def test_mat_equals_brute_force_over_scikit_learn(dataset, metric, beta, support, set_apart):
    scores, labeled = dataset
    random = torch.Generator().manual_seed(len(scores))
    seen = torch.randn(labeled.y.shape, generator=random).mul(3).round()  # with ties
    if set_apart:
        labeled = replace(labeled, scores=seen.neg(), apart=SetApart(labeled.y, seen))
    else:
        labeled = replace(labeled, scores=seen)
    method = MAT(metric=metric, beta=beta, support=support)
    expected = [
        by_hand(metric, beta, support, labeled.y[:, k].tolist(), seen[:, k].sigmoid().tolist())
        for k in range(scores.shape[1])
    ]
    assert method.thresholds(labeled).tolist() == expected
    labels = [[int(p >= tau) for p, tau in zip(row, expected, strict=True)] for row in probabilities(scores)]
    found = method.targets(scores, labeled, {})
    assert found.labels.tolist() == labels
    assert found.weight is None


def test_mat_on_a_hand_made_example():
    """F1 is 2/3 at 0, 4/5 above 0.2, 1/2 above 0.6 and 2/3 again above 0.7."""
    f = logit(0.2, 0.605, 0.705, 0.9)
    labeled = Labeled(torch.tensor([[0], [1], [0], [1]]), named(1), scores=f[:, None])
    assert MAT(beta=1).thresholds(labeled).item() == pytest.approx(0.21)
    assert MAT(beta=0.1).thresholds(labeled).item() == pytest.approx(0.71)  # precision
    assert MAT(beta=9).thresholds(labeled).item() == pytest.approx(0.21)
    assert MAT(metric="precision", support=1).thresholds(labeled).item() == pytest.approx(0.71)
    assert MAT(metric="precision", support=2).thresholds(labeled).item() == pytest.approx(0.21)
    assert MAT(metric="recall").thresholds(labeled).item() == pytest.approx(0.60)


@pytest.mark.parametrize("metric", ["fbeta", "precision", "recall"])
def test_mat_gives_no_positives_to_a_class_without_any_or_with_too_few_items(metric):
    y = torch.tensor([[0, -1, 1], [0, -1, -1], [0, -1, -1]])
    labeled = Labeled(y, named(3), scores=torch.full((3, 3), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = get_method("mat", metric=metric).targets(torch.full((2, 3), 9.0), labeled, {})
    assert found.labels.tolist() == [[0, 0, int(metric != "precision")]] * 2  # one row is less than the support


def test_mat_looks_at_all_items_of_a_large_labeled_part():
    random = torch.Generator().manual_seed(0)
    seen = torch.randn(BLOCK + 40, 2, generator=random)
    y = (seen + 2 * torch.randn(seen.shape, generator=random) > 1).to(torch.int8)
    labeled = Labeled(y, named(2), scores=seen)
    expected = [by_hand("fbeta", 1.0, 1, y[:, k].tolist(), seen[:, k].sigmoid().tolist()) for k in range(2)]
    assert MAT(beta=1.0).thresholds(labeled).tolist() == expected


def test_mat_sets_items_apart_on_request(small_problem, tiny, silent, tmp_path):
    assert get_method("mat").share_apart == 0
    config = tiny(method="mat", method_options={"apart": 0.25}, warmup_epochs=1, epochs=1, batch=16)
    run = run_training(small_problem, config, tmp_path / "run", watcher=silent)
    assert len(saved(run.path)["targets.labels"]) == len(small_problem.unlabeled) + 6


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mat", {"metric": "f1"}, "metric is 'f1'; it must be one of 'fbeta', 'precision', 'recall'."),
        ("mat", {"beta": 0}, "beta is 0; give a number above 0."),
        ("mat", {"beta": math.nan}, "beta is nan; give a number above 0."),
        ("mat", {"beta": "1"}, "beta is '1'; give a number above 0."),
        ("mat", {"support": 0}, "support is 0; give a whole number of at least 1."),
        ("mat", {"support": 2.5}, "support is 2.5; give a whole number of at least 1."),
        ("mat", {"apart": 2}, "apart is 2; give a share from 0 to 1."),
        ("mat", {"betta": 1}, "has no option 'betta'; its options are metric, beta, support, apart. Did you mean"),
    ],
)
def test_bad_options(name, options, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        get_method(name, **options)


def test_mat_needs_scores_of_the_labeled_part():
    labeled = Labeled(torch.tensor([[1]]), named(1))
    with pytest.raises(TagspreadError, match="needs the scores of the labeled set"):
        get_method("mat").targets(torch.zeros(1, 1), labeled, {})
