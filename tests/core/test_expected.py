"""Expected precision and recall, compared with literal loops, exact binomial intervals, and known true rates."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, binomtest, norm

from tagspread.core.calibration import fit_calibration
from tagspread.core.decision import choose_thresholds, decide
from tagspread.core.expected import SAMPLES, expected_rates


def literal(scores, y, policy, calibrate, few, seed=0):
    """Return value, low and high of precision and recall per class, computed row by row."""
    rng = np.random.default_rng(seed)
    rows, classes = y.shape
    votes: list[list[list[bool]]] = [[[] for _ in range(classes)] for _ in range(rows)]
    rates: list[tuple[list[float], list[float]]] = [([], []) for _ in range(classes)]
    for _ in range(SAMPLES):
        drawn = rng.integers(rows, size=rows)
        every = scores
        if calibrate:
            every = fit_calibration(scores[drawn], y[drawn], min_positives=few["min_positives"]).probabilities(scores)
        thresholds = choose_thresholds(every[drawn], y[drawn], policy, **few).thresholds
        for k in range(classes):
            chosen = [j for j in range(rows) if every[j, k] >= thresholds[k]]
            hits = sum(y[j, k] == 1 for j in chosen)
            if predicted := sum(y[j, k] >= 0 for j in chosen):
                rates[k][0].append(hits / predicted)
            rates[k][1].append(hits / sum(y[:, k] == 1))
            for j in set(range(rows)) - set(drawn.tolist()):
                votes[j][k].append(j in chosen)
    result = []
    for k in range(classes):
        share = [np.mean(votes[j][k]) if votes[j][k] else 0 for j in range(rows)]
        hits = sum(share[j] for j in range(rows) if y[j, k] == 1)
        for which, n in enumerate((sum(share[j] for j in range(rows) if y[j, k] >= 0), sum(y[:, k] == 1))):
            p = (hits + 0.5) / (n + 1)
            fewer = n / (1 + n * np.var(rates[k][which]) / (p * (1 - p)))
            t, f = hits / n * fewer, (1 - hits / n) * fewer
            result.append((hits / n, beta.ppf(0.05, t, f + 1), beta.ppf(0.95, t + 1, f)))
    return np.array(result).reshape(classes, 2, 3)


@pytest.mark.parametrize("calibrate", [False, True])
def test_rates_equal_those_of_literal_loops(calibrate):
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(60, 3))
    y = (scores + rng.normal(size=scores.shape) > [0, 0.5, 1]).astype(int)
    y[:10, 0] = -1
    few = {"min_positives": 3, "enough_positives": 15}
    found = expected_rates(scores, y, "f1", calibrate=calibrate, **few)
    expected = literal(scores, y, "f1", calibrate, few)
    np.testing.assert_allclose(np.stack(found.precision, axis=1), expected[:, 0], rtol=1e-6)
    np.testing.assert_allclose(np.stack(found.recall, axis=1), expected[:, 1], rtol=1e-6)
    usual = expected_rates(scores, y, "f1", min_positives=3, enough_positives=15)  # not calibrated, 90 %, seed 0
    said = expected_rates(scores, y, "f1", calibrate=False, confidence=0.9, seed=0, **few)
    np.testing.assert_array_equal(np.stack(usual.precision), np.stack(said.precision))
    again = expected_rates(torch.from_numpy(scores), torch.from_numpy(y), "f1", calibrate=calibrate, **few)
    np.testing.assert_array_equal(again.precision.low, found.precision.low)


def test_a_threshold_without_doubt_has_the_exact_binomial_interval():
    """Half of the rows score 1, the others 0: every sample chooses the same rows."""
    y = np.r_[np.ones(30), np.zeros(10), np.zeros(40)].astype(int)[:, None]
    scores = np.r_[np.ones(40), np.zeros(40)][:, None]
    found = expected_rates(scores, y)
    exact = binomtest(30, 40).proportion_ci(0.9, "exact")
    assert (found.precision.value[0], found.recall.value[0]) == (pytest.approx(0.75), pytest.approx(1))
    assert (found.precision.low[0], found.precision.high[0]) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert found.recall.low[0] == pytest.approx(binomtest(30, 30).proportion_ci(0.9, "exact").low)


def test_true_rates_lie_in_their_intervals_at_the_stated_rate():
    """Scores of positives and negatives are normal, so the true rates at a threshold are known."""
    inside, apparent, expected = [], [], []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        y = (rng.random((60, 1)) < 0.2).astype(int)
        if y.sum() < 2:
            continue
        scores = rng.normal(size=y.shape) + 1.5 * y
        cut = choose_thresholds(scores, y).thresholds[0]
        recall, false = norm.sf(cut - 1.5), norm.sf(cut)
        precision = 0.2 * recall / (0.2 * recall + 0.8 * false)
        rates = expected_rates(scores, y)
        pairs = ((precision, rates.precision), (recall, rates.recall))
        inside.append([rate.low[0] <= true <= rate.high[0] for true, rate in pairs])
        chosen = decide(scores, [cut])[:, 0] == 1
        apparent.append(y[chosen].mean() - precision)
        expected.append(rates.precision.value[0] - precision)
    assert (np.mean(inside, axis=0) >= 0.87).all()
    assert np.mean(apparent) > 0.04  # the rows that the threshold was chosen on promise too much
    assert abs(np.mean(expected)) < 0.06  # too low rather than too high: a sample holds fewer distinct rows


def test_what_is_not_known_has_the_widest_interval():
    y = np.zeros((12, 2), int)
    y[:6, 0] = 1
    scores = np.column_stack([np.linspace(1, 0, 12), np.full(12, -5.0)])
    found = expected_rates(scores, y, min_positives=1, enough_positives=1)
    assert np.isnan(found.recall.value[1])
    assert (found.recall.low[1], found.recall.high[1]) == (0, 1)
    single = expected_rates([[0.3]], [[1]])
    assert np.isnan(single.precision.value[0])
    assert (single.precision.low[0], single.precision.high[0]) == (0, 1)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="confidence is 2"):
        expected_rates([[0.1]], [[1]], confidence=2)
    with pytest.raises(ValueError, match="has shape"):
        expected_rates([[0.1, 0.2]], [[1]])
