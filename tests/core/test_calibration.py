import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from tagspread.core.calibration import Calibration, crossfitted, fit_calibration, reliability

RNG = np.random.default_rng(0)


def drawn(rows=400, classes=3, slope=2.0, shift=-1.0, seed=0):
    """Return logits distorted by a known slope and shift, and labels drawn from the true probabilities."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 2
    p = 1 / (1 + np.exp(-(slope * logits + shift)))
    return logits, (rng.random(p.shape) < p).astype(int)


def likelihood_fit(z, label):
    """Fit the same parameters with a general optimizer."""
    known = label >= 0
    z, true = z[known], label[known] == 1
    p, n = true.sum(), (~true).sum()
    target = np.where(true, (p + 1) / (p + 2), 1 / (n + 2))

    def loss(at):
        u = at[0] * z + at[1]
        return (np.logaddexp(0, u) - target * u).sum()

    return minimize(loss, [1.0, 0.0], method="BFGS", options={"gtol": 1e-9}).x


@settings(max_examples=30, deadline=None)
@given(st.floats(0.2, 5), st.floats(-4, 4), st.floats(-50, 50), st.integers(0, 1000))
def test_equals_a_general_optimizer(slope, shift, offset, seed):
    logits, y = drawn(120, 2, slope, shift, seed)
    y[np.random.default_rng(seed).random(y.shape) < 0.1] = -1
    found = fit_calibration(logits + offset, y, min_positives=5)
    for k in set(range(2)) - set(found.rare):
        a, b = likelihood_fit(logits[:, k], y[:, k])
        assert found.slope[k] == pytest.approx(a, rel=1e-3)
        assert found.intercept[k] + found.slope[k] * offset == pytest.approx(b, rel=1e-3, abs=1e-3)


def test_finds_the_truth_and_keeps_the_order():
    logits, y = drawn(20_000)
    found = fit_calibration(logits, y)
    np.testing.assert_allclose(found.slope, 2.0, atol=0.15)
    np.testing.assert_allclose(found.intercept, -1.0, atol=0.1)
    p = found.probabilities(logits)
    assert reliability(p, y).error < 0.01 < reliability(Calibration.identity(3).probabilities(logits), y).error
    for k in range(3):
        assert roc_auc_score(y[:, k], p[:, k]) == roc_auc_score(y[:, k], logits[:, k])


def test_stays_finite_where_classes_are_told_apart_perfectly():
    logits = np.linspace(-5, 5, 20)[:, None]
    found = fit_calibration(logits, (logits > 0).astype(int))
    assert np.isfinite(found.slope).all()
    assert 0.9 < found.probabilities([[5.0]])[0, 0] < 1
    same = fit_calibration(np.full((20, 1), 3.0), (logits > 2).astype(int))  # uninformative scores
    assert same.probabilities([[3.0]])[0, 0] == pytest.approx(0.3, abs=0.05)
    backwards = fit_calibration(-logits, (logits > 0).astype(int))  # inverted scores: the slope never becomes negative
    assert (backwards.slope > 0).all()
    assert backwards.rare == (0,)
    np.testing.assert_allclose(backwards.probabilities(logits), 0.5)


def test_rare_classes_take_the_common_fit():
    logits, y = drawn(200, 3)
    y[:, 1] = 0
    y[:4, 1] = 1
    y[:, 2] = 1
    found = fit_calibration(logits, y, min_positives=5)
    assert found.rare == (1, 2)
    pooled = fit_calibration(logits.reshape(-1, 1), y.reshape(-1, 1))
    np.testing.assert_array_equal(found.slope[1:], pooled.slope[0])
    np.testing.assert_array_equal(found.intercept[1:], pooled.intercept[0])


def test_scores_that_are_all_the_same_take_the_common_fit():
    rng = np.random.default_rng(0)
    z = np.column_stack([rng.normal(size=60), np.full(60, 0.3)])
    y = (rng.random((60, 2)) < 1 / (1 + np.exp(-3 * z))).astype(int)
    found = fit_calibration(z, y)
    assert found.rare == (1,)
    assert 0 < found.slope[1] < 100
    nothing = fit_calibration(z[:, 1:], y[:, 1:])
    assert nothing.probabilities(np.array([[0.3], [0.4]])) == pytest.approx(y[:, 1].mean(), abs=1e-6)


def test_probabilities_are_the_kind_of_array_that_was_given():
    logits, y = drawn(50, 2)
    found = fit_calibration(torch.from_numpy(logits), torch.from_numpy(y))
    p = found.probabilities(torch.from_numpy(logits).float())
    assert isinstance(p, torch.Tensor)
    assert p.dtype == torch.float64
    np.testing.assert_allclose(p.numpy(), found.probabilities(logits), atol=1e-6)


def test_crossfitted_rows_have_no_part_in_their_own_fit():
    logits, y = drawn(100, 2)
    first = crossfitted(logits, y, folds=5)
    changed = y.copy()
    changed[0] = 1 - changed[0]
    again = crossfitted(logits, changed, folds=5)
    np.testing.assert_array_equal(first[0], again[0])
    assert (first != again).any()
    assert crossfitted(logits[:2, :1], [[1], [0]]).shape == (2, 1)  # too few to fit on: used unchanged


def test_reliability_equals_scikit_learn():
    p = RNG.random((500, 2))
    y = (RNG.random(p.shape) < p**2).astype(int)
    y[RNG.random(y.shape) < 0.1] = -1
    found = reliability(p, y, bins=7)
    observed, predicted = calibration_curve(y[y >= 0], p[y >= 0], n_bins=7)
    np.testing.assert_allclose(found.observed, observed)
    np.testing.assert_allclose(found.predicted, predicted)
    assert found.count.sum() == (y >= 0).sum()
    assert ((found.low <= found.observed) & (found.observed < found.high)).all()
    empty = reliability([[0.05], [1.0]], [[0], [1]])
    assert np.isnan(empty.observed[1:-1]).all()
    assert empty.count.tolist() == [1] + [0] * 8 + [1]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="no positive, or no negative"):
        fit_calibration([[0.1]], [[1]])
    with pytest.raises(ValueError, match="has shape"):
        fit_calibration([[0.1, 0.2]], [[1]])
    with pytest.raises(ValueError, match="holds NaN"):
        fit_calibration([[np.nan], [1.0]], [[1], [0]])
    with pytest.raises(ValueError, match=r"range from 0.5 to 2.0"):
        reliability([[0.5], [2.0]], [[1], [0]])
    with pytest.raises(ValueError, match="bins is 0"):
        reliability([[0.5]], [[1]], bins=0)
