from fractions import Fraction

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


@pytest.mark.parametrize(("n", "m"), [(1, 10**9), (4, 4), (3, 6), (6, 3), (2, 5)])
def test_theorem1_says_nothing_without_a_positive_probability(n, m):
    assert 1 - Fraction(2, n) - Fraction(2, m) <= 0
    for changed in ((n, m), (m, n)):
        with pytest.raises(ValueError, match="which is not above 0"):
            ts.theorem1_bound(*changed)
    assert ts.theorem1_bound(max(n, 5), max(m, 5)) > 0


def test_theorem2_accepts_the_ends_of_every_range():
    assert ts.theorem2_bound(0, 0, 1, 1, rademacher=0, lipschitz=0, loss_bound=0).total == 0
    assert ts.theorem2_bound(1, 1, 0, 1, rademacher=0).pseudo_labels == 2
    for broken in ({"labeled": -1}, {"unlabeled": -1}, {"classes": 0}, {"epsilon": -0.1}, {"delta": 1}):
        given = {"epsilon": 0.0, "labeled": 5, "unlabeled": 5, "classes": 1, "rademacher": 0.0} | broken
        with pytest.raises(ValueError, match=f"{next(iter(broken))} (is )?{next(iter(broken.values()))}"):
            ts.theorem2_bound(**given)


def test_theorem2_terms():
    bound = ts.theorem2_bound(0.1, 100, 900, 5, rademacher=0.02, lipschitz=3, loss_bound=2, delta=0.05)
    assert bound.pseudo_labels == pytest.approx(2 * 5 * 2 * 0.1)
    assert bound.complexity == pytest.approx(4 * 5 * 3 * 0.02)
    assert bound.sampling == pytest.approx(2 * 5 * 2 * np.sqrt(np.log(40) / 2000))
    assert bound.total == pytest.approx(sum(bound))


def test_theorem2_with_the_weights_of_eq_6():
    """McDiarmid's inequality from the change that each single row can make to the risk."""
    n, m, q, largest, delta = 7, 93, 5, 2.0, 0.05
    changes = [q * largest / (2 * n)] * n + [q * largest / (2 * m)] * m
    deviation = np.sqrt(sum(change**2 for change in changes) * np.log(2 / delta) / 2)
    bound = ts.theorem2_bound(0.1, n, m, q, rademacher=0, loss_bound=largest, delta=delta, weighting="means")
    assert bound.sampling == pytest.approx(2 * deviation)
    # as many labeled as unlabeled rows: both weightings are the same
    equal = [ts.theorem2_bound(0.1, 50, 50, 5, rademacher=0, weighting=way).sampling for way in ("rows", "means")]
    assert equal[0] == pytest.approx(equal[1])


def test_two_labeled_rows_break_the_equally_weighted_bound_but_not_the_other():
    """Two constant models, of which the better one has a risk 0.2 lower; labels and pseudo-labels are right."""
    rng = np.random.default_rng(0)
    n, m, runs, rate = 2, 1_000_000, 4000, 0.6  # the class is present with this probability; losses are 0 or 1
    labeled, unlabeled = rng.binomial(n, rate, runs) / n, rng.binomial(m, rate, runs) / m
    risk_of_yes = (1 - labeled) + (1 - unlabeled)
    excess = np.where(risk_of_yes < 1, 0.0, 0.2)  # the model "no" is wrong with probability 0.6, "yes" with 0.4
    wrong = {}
    for weighting in ("rows", "means"):
        bound = ts.theorem2_bound(0.0, n, m, 1, rademacher=0.0, delta=0.1, weighting=weighting)
        wrong[weighting] = (excess > bound.total).mean()
    assert wrong["rows"] > 0.1  # fails more often than the stated 10 %
    assert wrong["means"] == 0.0


def test_pseudo_label_error_counts_by_hand():
    rng = np.random.default_rng(2)
    targets, truth = rng.integers(-1, 2, (50, 4)), rng.integers(-1, 2, (50, 4))
    paper, with_ignored = [], []
    for k in range(4):
        rows = [j for j in range(50) if truth[j, k] != -1]
        paper.append(sum((targets[j, k] == 1) != (truth[j, k] == 1) for j in rows) / len(rows))
        with_ignored.append(sum(targets[j, k] != truth[j, k] for j in rows) / len(rows))
    np.testing.assert_allclose(ts.pseudo_label_error(targets, truth), paper, rtol=1e-6)
    np.testing.assert_allclose(ts.pseudo_label_error(targets, truth, ignored="error"), with_ignored, rtol=1e-6)
    assert isinstance(ts.pseudo_label_error(torch.from_numpy(targets), torch.from_numpy(truth)), torch.Tensor)
    assert ts.pseudo_label_error(np.abs(truth), np.abs(truth)).tolist() == [0.0] * 4
    sure = np.abs(targets)
    np.testing.assert_array_equal(*[ts.pseudo_label_error(sure, truth, ignored=way) for way in ("negative", "error")])


def test_the_unlabeled_risk_moves_by_at_most_the_error_with_ignored_entries():
    """The lemma behind Theorem 2, with random losses of at most 1; the paper's error is too small for it."""
    rng = np.random.default_rng(3)
    gaps, paper, with_ignored = [], [], []
    for _ in range(300):
        targets, truth = rng.integers(-1, 2, (6, 1)), rng.integers(0, 2, (6, 1))
        loss = rng.integers(0, 2, (2, 6, 1))  # of absence and of presence
        true_risk = np.take_along_axis(loss, truth[None], 0)[0].mean()
        pseudo = np.take_along_axis(loss, np.maximum(targets, 0)[None], 0)[0] * (targets >= 0)
        gaps.append(abs(pseudo.mean() - true_risk))
        paper.append(ts.pseudo_label_error(targets, truth)[0])
        with_ignored.append(ts.pseudo_label_error(targets, truth, ignored="error")[0])
    assert (np.array(gaps) <= np.array(with_ignored) + 1e-6).all()
    assert (np.array(gaps) > np.array(paper) + 1e-6).any()


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
        (lambda: ts.theorem1_bound(1, 1), "which is not above 0"),
        (lambda: ts.theorem1_bound(2, 10**6), "1 - 2/2 - 2/1000000"),
        (lambda: ts.theorem2_bound(0, 0, 5, 1, rademacher=0, weighting="means"), "needs rows of both kinds"),
        (lambda: ts.theorem2_bound(0, 1, 5, 1, rademacher=0, weighting="mean"), "Did you mean 'means'"),
        (lambda: ts.pseudo_label_error([[1]], [[1]], ignored="wrong"), "ignored is 'wrong'"),
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


def test_labels_needed_is_for_one_class_at_90_percent_unless_told_otherwise():
    assert ts.labels_needed(0.05) == ts.labels_needed(0.05, confidence=0.9, classes=1) == 600  # ln(20) / (2 * 0.05^2)
    assert ts.labels_needed(0.05) != ts.labels_needed(0.05, confidence=0.9, classes=2)
