import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import tagspread as ts

COUNTS = [(0, 10), (1, 10), (5, 10), (10, 10), (6, 285), (1, 1), (0, 1)]


@pytest.mark.parametrize(("positives", "labeled"), COUNTS)
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_exact_interval_equals_scipy(positives, labeled, confidence):
    low, high = ts.proportion_interval([positives], labeled, confidence)
    expected = binomtest(positives, labeled).proportion_ci(confidence, method="exact")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_hoeffding_and_theorem1_are_their_formulas():
    low, high = ts.proportion_interval([50, 20], 100, 0.9, "hoeffding")
    half = np.sqrt(np.log(2 * 2 / 0.1) / 200)
    np.testing.assert_allclose(low, [0.5 - half, 0.2 - half])
    np.testing.assert_allclose(high, [0.5 + half, 0.2 + half])
    low, high = ts.proportion_interval([50], 100, method="theorem1", unlabeled=10_000)
    half = np.sqrt(np.log(100) / 200) + np.sqrt(np.log(10_000) / 20_000)
    np.testing.assert_allclose([low[0], high[0]], [0.5 - half, 0.5 + half])
    low, high = ts.proportion_interval([0, 3], 3, method="hoeffding")
    assert low.min() == 0
    assert high.max() == 1


def test_intervals_cover_what_they_claim():
    """Monte Carlo: 2,000 labeled sets drawn from known proportions."""
    rng = np.random.default_rng(0)
    truth = np.array([0.005, 0.02, 0.1, 0.3, 0.5])
    drawn = rng.binomial(120, truth, size=(2000, 5))
    inside = {}
    for method in ("exact", "hoeffding"):
        bounds = [ts.proportion_interval(row, 120, 0.9, method) for row in drawn]
        inside[method] = np.array([(low <= truth) & (truth <= high) for low, high in bounds])
    assert inside["exact"].mean(0).min() >= 0.9 - 0.02  # each class on its own
    assert inside["hoeffding"].all(1).mean() >= 0.9  # all classes at once
    # Theorem 1 is about the proportion in the unlabeled set; it may fail for a class with probability 2/n + 2/m
    unlabeled = rng.binomial(3000, truth, size=drawn.shape) / 3000
    close = np.abs(drawn / 120 - unlabeled) <= ts.theorem1_bound(120, 3000)
    assert close.mean(0).min() >= 1 - 2 / 120 - 2 / 3000


def test_labels_needed_is_the_first_size_that_suffices():
    for width, confidence, classes in [(0.05, 0.9, 20), (0.01, 0.99, 80), (0.3, 0.5, 1)]:
        size = ts.labels_needed(width, confidence, classes)
        halves = []
        for n in (size, size - 1):
            low, high = ts.proportion_interval([n // 2] * classes, n, confidence, "hoeffding")
            halves.append((high[0] - low[0]) / 2)
        assert halves[0] <= width < halves[1]


def test_theorem2_terms():
    bound = ts.theorem2_bound(0.1, 100, 900, 5, rademacher=0.02, lipschitz=3, loss_bound=2, delta=0.05)
    assert bound.pseudo_labels == pytest.approx(2 * 5 * 2 * 0.1)
    assert bound.complexity == pytest.approx(4 * 5 * 3 * 0.02)
    assert bound.sampling == pytest.approx(2 * 5 * 2 * np.sqrt(np.log(40) / 2000))
    assert bound.total == pytest.approx(sum(bound))


def test_pseudo_label_error_counts_by_hand():
    rng = np.random.default_rng(2)
    targets, truth = rng.integers(-1, 2, (50, 4)), rng.integers(-1, 2, (50, 4))
    expected = []
    for k in range(4):
        rows = [j for j in range(50) if truth[j, k] != -1]
        wrong = [sum((targets[j, k] == v) != (truth[j, k] == v) for j in rows) / len(rows) for v in (1, 0)]
        expected.append(max(wrong))
    np.testing.assert_allclose(ts.pseudo_label_error(targets, truth), expected, rtol=1e-6)
    assert isinstance(ts.pseudo_label_error(torch.from_numpy(targets), torch.from_numpy(truth)), torch.Tensor)
    assert ts.pseudo_label_error(np.abs(truth), np.abs(truth)).tolist() == [0.0] * 4


def test_torch_in_torch_out():
    low, high = ts.proportion_interval(torch.tensor([3, 4]), 10)
    assert isinstance(low, torch.Tensor)
    assert (low < high).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ts.proportion_interval([3], 2), "positives is 3 and labeled 2 for class 0"),
        (lambda: ts.proportion_interval([0, 0], [2, 0]), "labeled 0 for class 1"),
        (lambda: ts.proportion_interval([], 2), "at least one class"),
        (lambda: ts.proportion_interval([[1]], 2), r"positives has shape \(1, 1\)"),
        (lambda: ts.proportion_interval([1], 2, confidence=90), "confidence is 90"),
        (lambda: ts.proportion_interval([1], 2, method="exakt"), "Did you mean 'exact'"),
        (lambda: ts.proportion_interval([1], 2, method="theorem1"), "unlabeled is None"),
        (lambda: ts.labels_needed(0), "width is 0"),
        (lambda: ts.labels_needed(0.1, classes=0), "classes is 0"),
        (lambda: ts.labels_needed(0.1, confidence=0), "confidence is 0"),
        (lambda: ts.theorem1_bound(0, 5), "labeled is 0"),
        (lambda: ts.theorem2_bound(2, 1, 1, 1, rademacher=0), "epsilon is 2"),
        (lambda: ts.theorem2_bound(0, 0, 0, 1, rademacher=0), "labeled is 0"),
        (lambda: ts.theorem2_bound(0, 1, 1, 1, rademacher=-1), "rademacher is -1"),
        (lambda: ts.theorem2_bound(0, 1, 1, 1, rademacher=0, delta=0), "delta is 0"),
        (lambda: ts.pseudo_label_error([[1, 0]], [[1], [0]]), r"targets has shape \(1, 2\) but truth"),
        (lambda: ts.pseudo_label_error([[5]], [[1]]), "targets holds 5"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
