"""The classifier two-sample test against scikit-learn, and on data that are and are not from one distribution."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tagspread.core.two_sample import MOST_ROWS, _aucs, two_sample_test
from tagspread.errors import TagspreadError


def test_auc_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, membership = rng.integers(0, 9, (60, 4)).astype(float), (rng.random((60, 4)) < 0.4).astype(float)
    expected = [roc_auc_score(membership[:, k], scores[:, k]) for k in range(4)]
    assert _aucs(scores, membership) == pytest.approx(expected)


def test_it_rejects_one_distribution_about_as_often_as_it_says():
    p_values = []
    for seed in range(80):
        rows = np.random.default_rng(seed).exponential(size=(240, 30))  # more features than it can learn from
        found = two_sample_test(rows[:60], rows[60:], permutations=39, seed=seed)
        assert found is not None
        p_values.append(found.p_value)
    assert np.mean(np.array(p_values) <= 0.05) < 0.13
    assert 0.3 < np.mean(p_values) < 0.7


def test_it_sees_labels_that_were_selected_by_class():
    rng = np.random.default_rng(0)
    y = rng.random((2000, 4)) < [0.5, 0.1, 0.05, 0.03]
    features = y @ rng.normal(size=(4, 200)) + rng.normal(size=(2000, 200))
    weight = np.where(y[:, 2] | y[:, 3], 6.0, 1.0)
    selected = rng.choice(2000, 200, replace=False, p=weight / weight.sum())
    random = rng.permutation(2000)[:200]
    found, fair = (two_sample_test(features[rows], np.delete(features, rows, axis=0)) for rows in (selected, random))
    assert found is not None
    assert fair is not None
    assert found.p_value <= 0.01 < fair.p_value
    assert found.auc > 0.55


def test_large_sets_are_sampled_and_small_ones_say_nothing():
    rows = np.random.default_rng(0).normal(size=(3 * MOST_ROWS, 4)).astype(np.float16)
    assert two_sample_test(rows[:5], rows[5:]) is None
    first = two_sample_test(rows[:1500], rows[1500:])
    assert first == two_sample_test(rows[:1500], rows[1500:])  # the same sample and permutations again


def test_equal_rows_cannot_be_told_apart():
    assert two_sample_test(np.ones((20, 3)), np.ones((50, 3))) == (0.5, 1.0)


def test_different_widths_are_refused():
    with pytest.raises(TagspreadError, match="same number of columns"):
        two_sample_test(np.ones((20, 3)), np.ones((20, 4)))


def test_the_seed_is_0_unless_given():
    rows = np.random.default_rng(5).normal(size=(120, 3))
    assert two_sample_test(rows[:60], rows[60:]) == two_sample_test(rows[:60], rows[60:], seed=0)
    assert two_sample_test(rows[:60], rows[60:]) != two_sample_test(rows[:60], rows[60:], seed=1)
