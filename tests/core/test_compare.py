"""Paired mAP difference, compared with brute force: scikit-learn on every bootstrap sample."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from tagspread.core.bootstrap import resampling_counts
from tagspread.core.compare import paired_difference_interval


def brute_force(scores, other, y, samples, seed, confidence):
    def mean_ap(s, truth):
        known = [k for k in range(y.shape[1]) if (truth[:, k] == 1).any()]
        return np.mean([average_precision_score(truth[:, k], s[:, k]) for k in known])

    counts = torch.cat(list(resampling_counts(len(y), samples, seed, 2**20, torch.device("cpu")))).long().numpy()
    drawn = [np.repeat(np.arange(len(y)), count) for count in counts]
    values = [mean_ap(scores[rows], y[rows]) - mean_ap(other[rows], y[rows]) for rows in drawn]
    difference = mean_ap(scores, y) - mean_ap(other, y)
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return difference, 2 * difference - high, 2 * difference - low


def noisy(seed=0, rows=30, classes=4):
    rng = np.random.default_rng(seed)
    y = (rng.random((rows, classes)) < 0.3).astype(np.int8)
    y[0], y[1] = 1, 0
    return [(y + noise * rng.normal(size=y.shape)).round(1) for noise in (0.6, 1.2)], y  # rounding makes ties


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("confidence", [0.9, 0.5])
def test_as_brute_force(seed, confidence):
    (good, bad), y = noisy(seed)
    found = paired_difference_interval(good, bad, y, confidence=confidence, samples=60, seed=seed)
    assert found == pytest.approx(brute_force(good, bad, y, 60, seed, confidence))


def test_turned_around_it_is_the_same_with_the_other_sign():
    (good, bad), y = noisy()
    difference, low, high = paired_difference_interval(good, bad, y, samples=50)
    assert difference > 0
    assert paired_difference_interval(bad, good, y, samples=50) == pytest.approx((-difference, -high, -low))


def test_a_model_does_not_differ_from_itself():
    (good, _), y = noisy()
    assert paired_difference_interval(good, good, y, samples=20) == (0.0, 0.0, 0.0)


def test_it_is_paired_so_narrower_than_two_separate_intervals():
    (good, _), y = noisy(rows=100)
    nearly = good + np.random.default_rng(1).normal(scale=0.05, size=good.shape)
    _, low, high = paired_difference_interval(good, nearly, y, samples=200)
    from tagspread import mean_average_precision_interval

    alone = mean_average_precision_interval(good, y, samples=200)
    assert high - low < 0.5 * (alone[1] - alone[0])


def test_without_a_positive_there_is_nothing_to_say():
    assert np.isnan(paired_difference_interval([[0.1], [0.2]], [[0.2], [0.1]], [[0], [0]], samples=5)).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"other": [[0.1]]}, "shape"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"samples": 0}, "samples is 0"),
        ({"absent": "maybe"}, "absent is 'maybe'"),
        ({"scores": [[np.nan], [0.1]]}, "NaN"),
    ],
)
def test_bad_input(arguments, words):
    good = {"scores": [[0.1], [0.2]], "other": [[0.2], [0.1]], "y": [[1], [0]]}
    with pytest.raises(ValueError, match=words):
        paired_difference_interval(**(good | arguments))
