r"""Probability calibration: per-class Platt scaling of logits, reliability diagrams, expected calibration error.

The scores of a network rank well but are not probabilities, least of all when it is trained with the asymmetric loss.
Platt scaling (Platt, 1999) fits two numbers per class by maximum likelihood, on rows that the network was not trained
on:

.. math:: p_k = \sigma(a_k z_k + b_k), \qquad a_k > 0

for the logit :math:`z_k`. Of the entries with a calibrated probability of 0.7, about seven in ten are then positive.
The order of the rows does not change, so ranking metrics stay the same. As in Platt's paper, the fit uses the targets
:math:`(P + 1) / (P + 2)` and :math:`1 / (N + 2)` instead of 1 and 0, where P and N count the known positives and
negatives. The fit therefore stays finite even if the scores separate the two perfectly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tagspread.core.arrays import Array, ArrayLike, as_labels, as_scores, check_no_nan, check_same_shape, like
from tagspread.core.theory import proportion_interval
from tagspread.errors import TagspreadError

STEPS, HALVINGS = 100, 30  # Newton's method needs about ten steps; a step that overshoots is halved
TINY = 1e-9


@dataclass(frozen=True)
class Calibration:
    """Platt scaling parameters: one slope and one intercept per class.

    Attributes:
        slope: one per class, above 0.
        intercept: one per class.
        rare: classes that take the fit pooled over all classes, because they have too few positives or negatives for
            their own fit, or because their scores carry no information.
    """

    slope: np.ndarray
    intercept: np.ndarray
    rare: tuple[int, ...] = ()

    @classmethod
    def identity(cls, classes: int) -> Calibration:
        """Return the calibration that leaves the network's probabilities unchanged.

        >>> Calibration.identity(1).probabilities([[0.0]]).tolist()
        [[0.5]]
        """
        return cls(np.ones(classes), np.zeros(classes))

    def probabilities(self, logits: ArrayLike) -> Array:
        """Return calibrated probabilities in float64. In float32, all entries close to 1 would be tied."""
        given = as_scores("logits", logits).to(torch.float64)
        slope, intercept = (torch.from_numpy(part).to(given.device) for part in (self.slope, self.intercept))
        return like(torch.sigmoid(given * slope + intercept), logits)


def fit_calibration(logits: ArrayLike, y: ArrayLike, *, min_positives: int = 5) -> Calibration:
    """Fit slope and intercept of each class by Platt scaling.

    Use rows that the network was not trained on.

    Args:
        logits: rows x classes logits of the network.
        y: rows x classes matrix of 1, 0 and -1 (unknown, left out of its class).
        min_positives: a class with fewer positives, or fewer negatives, takes the fit pooled over all classes.

    >>> logits, y = [[3.0], [2.0], [1.0], [0.0]] * 5, [[1], [0], [1], [0]] * 5
    >>> fit_calibration(logits, y).probabilities([[1.5]]).round(3).tolist()
    [[0.5]]
    """
    z, labels = _checked("logits", logits, y)
    if not (labels == 1).any() or not (labels == 0).any():
        raise TagspreadError("y has no positive, or no negative; calibration needs rows with both.")
    fewest = np.minimum((labels == 1).sum(axis=0), (labels == 0).sum(axis=0))
    pool = z.reshape(-1, 1), labels.reshape(-1, 1)
    pooled_slope, pooled_intercept = _fit(*pool)
    if not pooled_slope[0] > TINY or _is_constant(*pool)[0]:  # uninformative scores: predict the share of positives
        pooled_slope[:], pooled_intercept[:] = TINY, np.log((labels == 1).sum() / (labels == 0).sum())
    slope, intercept = _fit(z, labels)
    rare = (fewest < min_positives) | ~(slope > TINY) | _is_constant(z, labels)
    slope, intercept = np.where(rare, pooled_slope, slope), np.where(rare, pooled_intercept, intercept)
    return Calibration(slope, intercept, tuple(map(int, np.flatnonzero(rare))))


def crossfitted(
    logits: ArrayLike, y: ArrayLike, *, folds: int = 5, seed: int = 0, min_positives: int = 5
) -> np.ndarray:
    """Return out-of-fold probabilities: each row is calibrated by a fit on the other folds.

    Use them to measure calibration on the same rows that the final calibration is fitted on.
    """
    z, labels = _checked("logits", logits, y)
    fold = np.random.default_rng(seed).permutation(len(z)) % folds
    result = np.empty(z.shape)
    for part in range(min(folds, len(z))):
        rest = labels[fold != part]
        has_both = (rest == 1).any() and (rest == 0).any()
        fitted = (
            fit_calibration(z[fold != part], rest, min_positives=min_positives)
            if has_both
            else Calibration.identity(z.shape[1])
        )
        result[fold == part] = fitted.probabilities(z[fold == part])
    return result


@dataclass(frozen=True)
class Reliability:
    """Reliability diagram: predicted and observed frequency per bin of the probability; NaN where a bin is empty.

    Attributes:
        edges: bins + 1 bin edges from 0 to 1.
        count: entries in each bin.
        predicted: mean predicted probability of each bin.
        observed: share of positives in each bin.
        low: lower end of the 90 % interval of ``observed``.
        high: upper end of the 90 % interval of ``observed``.
        error: expected calibration error: the mean of ``|observed - predicted|``, weighted by the entries in each bin.
    """

    edges: np.ndarray
    count: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    error: float


def reliability(probabilities: ArrayLike, y: ArrayLike, *, bins: int = 10) -> Reliability:
    """Compute a reliability diagram and the expected calibration error over all entries with a known label.

    >>> shown = reliability([[0.1], [0.1], [0.9], [0.9]], [[0], [0], [1], [0]], bins=2)
    >>> shown.count.tolist(), shown.predicted.tolist(), shown.observed.tolist(), round(shown.error, 3)
    ([2, 2], [0.1, 0.9], [0.0, 0.5], 0.25)
    """
    given, labels = _checked("probabilities", probabilities, y)
    if bins < 1:
        raise TagspreadError(f"bins is {bins}; give at least 1.")
    if given.min() < 0 or given.max() > 1:
        raise TagspreadError(f"probabilities range from {given.min()} to {given.max()}; give numbers from 0 to 1.")
    has_label = labels >= 0
    p, positive = given[has_label], labels[has_label] == 1
    bin_index = np.minimum((p * bins).astype(np.int64), bins - 1)
    count = np.bincount(bin_index, minlength=bins)
    hits = np.bincount(bin_index[positive], minlength=bins)
    filled = count > 0
    predicted, observed, low, high = (np.full(bins, np.nan) for _ in range(4))
    predicted[filled] = np.bincount(bin_index, weights=p, minlength=bins)[filled] / count[filled]
    observed[filled] = hits[filled] / count[filled]
    if filled.any():
        low[filled], high[filled] = proportion_interval(hits[filled], count[filled])
    weighted_gaps = count[filled] * np.abs(observed - predicted)[filled]
    error = float(weighted_gaps.sum() / max(1, count.sum()))
    return Reliability(np.linspace(0, 1, bins + 1), count, predicted, observed, low, high, error)


def _checked(argument: str, values: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    checked, labels = as_scores(argument, values), as_labels("y", y)
    check_same_shape(argument, checked, "y", labels)
    check_no_nan(argument, checked)
    return checked.double().cpu().numpy(), labels.cpu().numpy()


def _is_constant(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return, for each column, whether all rows with a has_label label have the same score."""
    has_label = labels >= 0
    highest, lowest = np.where(has_label, z, -np.inf).max(axis=0), np.where(has_label, z, np.inf).min(axis=0)
    return ~(highest - lowest > 1e-6)  # type: ignore[no-any-return]


def _fit(z: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit slope and intercept of each column: two-parameter logistic regression by Newton's method."""
    has_label, positive = labels >= 0, labels == 1
    p, n = positive.sum(axis=0), (has_label & ~positive).sum(axis=0)
    target = np.where(positive, (p + 1) / (p + 2), 1 / (n + 2))
    weight = has_label.astype(np.float64)
    # standardize the logits: with large ones, slope and intercept would be nearly collinear
    total = np.maximum(weight.sum(axis=0), 1)
    center = (z * weight).sum(axis=0) / total
    spread = np.sqrt(((z - center) ** 2 * weight).sum(axis=0) / total) + TINY
    x = (z - center) / spread

    def loss(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        u = a * x + b
        return (weight * (np.logaddexp(0, u) - target * u)).sum(axis=0)  # type: ignore[no-any-return]

    a, b = np.ones(z.shape[1]), np.zeros(z.shape[1])
    now = loss(a, b)
    for _ in range(STEPS):
        q = 1 / (1 + np.exp(-np.clip(a * x + b, -500, 500)))
        slack, curve = weight * (q - target), weight * q * (1 - q)
        ga, gb = (slack * x).sum(axis=0), slack.sum(axis=0)
        haa, hab, hbb = (curve * x * x).sum(axis=0) + TINY, (curve * x).sum(axis=0), curve.sum(axis=0) + TINY
        determinant = haa * hbb - hab**2
        da, db = (hbb * ga - hab * gb) / determinant, (haa * gb - hab * ga) / determinant
        step = np.ones_like(a)
        for _ in range(HALVINGS):
            after = loss(a - step * da, b - step * db)
            if not (worse := ~(after <= now)).any():
                break
            step = np.where(worse, step / 2, step)
        step = np.where(after <= now, step, 0.0)
        a, b = a - step * da, b - step * db
        if (now - np.minimum(after, now) <= 1e-12 * np.abs(now)).all():
            break
        now = np.minimum(after, now)
    return a / spread, b - a * center / spread
