r"""Probabilities one can believe: of the entries that are given 0.7, about seven in ten should carry the tag.

Scores of a network rank well and are no probabilities; those of the asymmetric loss are far from it. Two numbers per
class fix that (Platt, 1999), the most likely ones on rows the network was not trained on:

.. math:: p_k = \sigma(a_k z_k + b_k), \qquad a_k > 0

for the logit :math:`z_k`. The order of the rows stays as it is, so no ranking figure changes. As targets serve
:math:`(P + 1) / (P + 2)` and :math:`1 / (N + 2)` instead of 1 and 0, P and N the positives and negatives that are
known: so the fit stays finite where they are told apart without a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tagspread.core.arrays import Array, ArrayLike, as_labels, as_scores, check_no_nan, check_same_shape, like
from tagspread.core.theory import proportion_interval
from tagspread.errors import TagspreadError

STEPS, HALVINGS = 100, 30  # Newton's method needs about ten; a step that overshoots is halved
TINY = 1e-9


@dataclass(frozen=True)
class Calibration:
    """One slope and one intercept per class.

    Attributes:
        slope: above 0, one per class.
        intercept: one per class.
        rare: classes with too few positives or negatives for a fit of their own, or whose scores say nothing; they
            take the fit of all classes together.
    """

    slope: np.ndarray
    intercept: np.ndarray
    rare: tuple[int, ...] = ()

    @classmethod
    def identity(cls, classes: int) -> Calibration:
        """Return the calibration that takes the network's word for it.

        >>> Calibration.identity(1).probabilities([[0.0]]).tolist()
        [[0.5]]
        """
        return cls(np.ones(classes), np.zeros(classes))

    def probabilities(self, logits: ArrayLike) -> Array:
        """Return calibrated probabilities in float64: in float32 all that is nearly certain would be tied at 1."""
        given = as_scores("logits", logits).to(torch.float64)
        slope, intercept = (torch.from_numpy(part).to(given.device) for part in (self.slope, self.intercept))
        return like(torch.sigmoid(given * slope + intercept), logits)


def fit_calibration(logits: ArrayLike, y: ArrayLike, *, min_positives: int = 5) -> Calibration:
    """Fit the slopes and intercepts on rows that the network was not trained on.

    Args:
        logits: rows x classes, as the network gives them.
        y: rows x classes matrix of 1, 0 and -1 (unknown, left out of its class).
        min_positives: a class with fewer positives, or negatives, takes the fit of all classes together.

    >>> logits, y = [[3.0], [2.0], [1.0], [0.0]] * 5, [[1], [0], [1], [0]] * 5
    >>> fit_calibration(logits, y).probabilities([[1.5]]).round(3).tolist()
    [[0.5]]
    """
    z, labels = _checked("logits", logits, y)
    if not (labels == 1).any() or not (labels == 0).any():
        raise TagspreadError("y holds no positive, or no negative; probabilities are fitted to rows that show both.")
    fewest = np.minimum((labels == 1).sum(axis=0), (labels == 0).sum(axis=0))
    pool = z.reshape(-1, 1), labels.reshape(-1, 1)
    pooled_slope, pooled_intercept = _fit(*pool)
    if not pooled_slope[0] > TINY or _flat(*pool)[0]:  # scores that say nothing: the share of positives is the best
        pooled_slope[:], pooled_intercept[:] = TINY, np.log((labels == 1).sum() / (labels == 0).sum())
    slope, intercept = _fit(z, labels)
    rare = (fewest < min_positives) | ~(slope > TINY) | _flat(z, labels)
    slope, intercept = np.where(rare, pooled_slope, slope), np.where(rare, pooled_intercept, intercept)
    return Calibration(slope, intercept, tuple(map(int, np.flatnonzero(rare))))


def crossfitted(
    logits: ArrayLike, y: ArrayLike, *, folds: int = 5, seed: int = 0, min_positives: int = 5
) -> np.ndarray:
    """Return probabilities of rows that had no part in fitting them: for figures on the rows that are fitted on."""
    z, labels = _checked("logits", logits, y)
    fold = np.random.default_rng(seed).permutation(len(z)) % folds
    result = np.empty(z.shape)
    for part in range(min(folds, len(z))):
        rest = labels[fold != part]
        fits = (rest == 1).any() and (rest == 0).any()
        fitted = (
            fit_calibration(z[fold != part], rest, min_positives=min_positives)
            if fits
            else Calibration.identity(z.shape[1])
        )
        result[fold == part] = fitted.probabilities(z[fold == part])
    return result


@dataclass(frozen=True)
class Reliability:
    """What was predicted beside what was observed, in bins of the probability; NaN where a bin is empty.

    Attributes:
        edges: bins + 1 borders from 0 to 1.
        count: entries in each bin.
        predicted: their mean probability.
        observed: the share of them that carry the tag.
        low: lower end of the 90 % interval of ``observed``.
        high: its upper end.
        error: mean distance of observed and predicted, each bin counted by its entries.
    """

    edges: np.ndarray
    count: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    error: float


def reliability(probabilities: ArrayLike, y: ArrayLike, *, bins: int = 10) -> Reliability:
    """Compare probabilities with what is true, over all entries whose label is known.

    >>> shown = reliability([[0.1], [0.1], [0.9], [0.9]], [[0], [0], [1], [0]], bins=2)
    >>> shown.count.tolist(), shown.predicted.tolist(), shown.observed.tolist(), round(shown.error, 3)
    ([2, 2], [0.1, 0.9], [0.0, 0.5], 0.25)
    """
    given, labels = _checked("probabilities", probabilities, y)
    if bins < 1:
        raise TagspreadError(f"bins is {bins}; give at least 1.")
    if given.min() < 0 or given.max() > 1:
        raise TagspreadError(f"probabilities go from {given.min()} to {given.max()}; give numbers from 0 to 1.")
    known = labels >= 0
    p, true = given[known], labels[known] == 1
    which = np.minimum((p * bins).astype(np.int64), bins - 1)
    count = np.bincount(which, minlength=bins)
    hits = np.bincount(which[true], minlength=bins)
    filled = count > 0
    predicted, observed, low, high = (np.full(bins, np.nan) for _ in range(4))
    predicted[filled] = np.bincount(which, weights=p, minlength=bins)[filled] / count[filled]
    observed[filled] = hits[filled] / count[filled]
    if filled.any():
        low[filled], high[filled] = proportion_interval(hits[filled], count[filled])
    gaps = count[filled] * np.abs(observed - predicted)[filled]
    error = float(gaps.sum() / max(1, count.sum()))
    return Reliability(np.linspace(0, 1, bins + 1), count, predicted, observed, low, high, error)


def _checked(argument: str, values: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    checked, labels = as_scores(argument, values), as_labels("y", y)
    check_same_shape(argument, checked, "y", labels)
    check_no_nan(argument, checked)
    return checked.double().cpu().numpy(), labels.cpu().numpy()


def _flat(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each column whether all its known rows have the same score, which tells nothing."""
    known = labels >= 0
    highest, lowest = np.where(known, z, -np.inf).max(axis=0), np.where(known, z, np.inf).min(axis=0)
    return ~(highest - lowest > 1e-6)  # type: ignore[no-any-return]


def _fit(z: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return slope and intercept of each column: two-parameter logistic regression by Newton's method."""
    known, positive = labels >= 0, labels == 1
    p, n = positive.sum(axis=0), (known & ~positive).sum(axis=0)
    target = np.where(positive, (p + 1) / (p + 2), 1 / (n + 2))
    weight = known.astype(np.float64)
    # on a common scale, or large logits would make the two numbers hard to tell apart
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
