r"""Expected precision and recall of chosen decision thresholds on new rows, per class, with confidence intervals.

On the rows that thresholds were chosen on, precision and recall are too high. They are therefore measured out of bag:
the thresholds are chosen again on bootstrap samples :math:`b`, and each row is decided by those samples that it is not
in. With :math:`f_{jk}` the share of these samples in which row j is predicted to have tag k, and :math:`K` the rows
whose label is known,

.. math:: n_k = \sum_{j \in K} f_{jk}, \qquad t_k = \sum_{j : Y_{jk} = 1} f_{jk}, \qquad
          \text{precision}_k = t_k / n_k, \qquad \text{recall}_k = t_k / P_k.

Two things are uncertain: how many of :math:`n` (or :math:`P`) rows happen to be hits, and where the threshold lies. The
second has the variance :math:`v` of the rate over the thresholds of the bootstrap samples, on the given rows. The
interval is that of Clopper and Pearson for fewer rows, so that its variance is the sum of both:

.. math:: n' = n \, \frac{s}{s + v}, \qquad s = \frac{p (1 - p)}{n}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv

from tagspread.core.arrays import ArrayLike, as_labels, as_scores, check_same_shape
from tagspread.core.bootstrap import check_confidence
from tagspread.core.calibration import fit_calibration
from tagspread.core.decision import choose_thresholds, decide

SAMPLES, FEWEST_SAMPLES = 50, 20
ENTRIES = 10**8  # scores that are decided in all samples together: bounds the time for many rows


class Rate(NamedTuple):
    """A rate of each class with its interval; NaN, and an interval from 0 to 1, where nothing is known."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class ExpectedRates:
    """Precision and recall to expect on new rows.

    Attributes:
        precision: the share of the predicted rows that have the tag.
        recall: the share of the rows with the tag that are predicted.
        confidence: confidence level of the intervals, for each class.
    """

    precision: Rate
    recall: Rate
    confidence: float


def expected_rates(
    scores: ArrayLike,
    y: ArrayLike,
    policy: str = "f1",
    *,
    calibrate: bool = False,
    min_positives: int = 5,
    enough_positives: int = 20,
    confidence: float = 0.9,
    seed: int = 0,
) -> ExpectedRates:
    """Estimate precision and recall on new rows of the thresholds that :func:`choose_thresholds` chooses on these rows.

    Args:
        scores: rows x classes scores of rows that the model was not trained on; logits if ``calibrate`` is set.
        y: rows x classes matrix of 1, 0 and -1 (unknown, left out of its class).
        policy: as in :func:`choose_thresholds`.
        calibrate: also fit the calibration again on each bootstrap sample.
        min_positives: as in :func:`choose_thresholds` and :func:`fit_calibration`.
        enough_positives: as in :func:`choose_thresholds`.
        confidence: confidence level of the intervals.
        seed: seed of the bootstrap.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=(200, 1))
    >>> rates = expected_rates(y + rng.normal(size=y.shape), y)
    >>> bool(rates.precision.low[0] < rates.precision.value[0] < rates.precision.high[0])
    True
    """
    check_confidence(confidence)
    checked, labels = as_scores("scores", scores), as_labels("y", y).cpu().numpy()
    check_same_shape("scores", checked, "y", as_labels("y", y))
    values = checked.double().cpu().numpy()
    rows = len(values)
    rng = np.random.default_rng(seed)
    out_of_bag, predicted = np.zeros((rows, 1)), np.zeros(values.shape)
    positive, known = labels == 1, labels >= 0
    rates = []  # precision and recall on all rows, per sample
    for _ in range(max(FEWEST_SAMPLES, min(SAMPLES, ENTRIES // max(1, values.size)))):
        drawn = rng.integers(rows, size=rows)
        sample, sample_y = values[drawn], labels[drawn]
        if not (sample_y == 1).any() or not (sample_y == 0).any():
            continue
        every = values
        if calibrate:
            calibration = fit_calibration(sample, sample_y, min_positives=min_positives)
            sample, every = calibration.probabilities(sample), calibration.probabilities(values)
        chosen = choose_thresholds(
            sample, sample_y, policy, min_positives=min_positives, enough_positives=enough_positives
        )
        decisions = decide(every, chosen.thresholds) == 1
        is_out = np.ones((rows, 1), bool)
        is_out[drawn] = False
        out_of_bag += is_out
        predicted += decisions & is_out
        hits = (decisions & positive).sum(axis=0)
        rates.append((_share(hits, (decisions & known).sum(axis=0)), _share(hits, positive.sum(axis=0))))
    frequency = predicted / np.maximum(out_of_bag, 1)
    hits = (frequency * positive).sum(axis=0)
    totals = (frequency * known).sum(axis=0), positive.sum(axis=0).astype(float)
    if not rates:  # too few labels for any sample
        totals = tuple(np.zeros_like(total) for total in totals)
    spreads = [_variance(np.array(part)) for part in zip(*rates, strict=True)] or [np.zeros_like(hits)] * 2
    precision, recall = (_rate(hits, n, v, confidence) for n, v in zip(totals, spreads, strict=True))
    return ExpectedRates(precision, recall, confidence)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    share: np.ndarray = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return share


def _variance(values: np.ndarray) -> np.ndarray:
    """Return the variance of each column, without its NaN values; 0 for a column of NaN."""
    is_number = ~np.isnan(values)
    count = np.maximum(1, is_number.sum(axis=0))
    mean = np.where(is_number, values, 0).sum(axis=0) / count
    variance: np.ndarray = (np.where(is_number, values - mean, 0) ** 2).sum(axis=0) / count
    return variance


def _rate(hits: np.ndarray, n: np.ndarray, variance: np.ndarray, confidence: float) -> Rate:
    tail = (1 - confidence) / 2
    p = (hits + 0.5) / (n + 1)  # away from 0 and 1, where its variance would be 0
    sampling = p * (1 - p) / np.maximum(n, 1e-9)
    kept = sampling / (sampling + variance)
    t, f = hits * kept, np.maximum(n - hits, 0) * kept  # hits and failures
    low = np.where(t > 1e-9, betaincinv(np.maximum(t, 1e-9), f + 1, tail), 0.0)
    high = np.where(f > 1e-9, betaincinv(t + 1, np.maximum(f, 1e-9), 1 - tail), 1.0)
    return Rate(_share(hits, n), low, high)
