r"""Class-distribution-aware thresholds (CAT): pseudo-labels by class frequency, the core of CAP.

Sections 3.2 and 3.3 of the paper. The labeled set gives the frequency of each class. Among m unlabeled rows, the same
share of class k becomes positive, taken from the highest scores of that class; the rest becomes negative, taken from
the lowest. With :math:`c_k` positives among the :math:`n_k` labeled rows whose label for class k is known, the quotas
are

.. math::
    K^+_k = \Big\lfloor \eta_1 \frac{c_k\, m}{n_k} \Big\rfloor, \qquad
    K^-_k = \Big\lfloor \eta_0 \frac{(n_k - c_k)\, m}{n_k} \Big\rfloor

Rows between the two quotas, which exist if :math:`\eta_1` or :math:`\eta_0` is below 1, are ignored. Quotas are
integers and rows are selected by rank. Ties, rounding and classes without positives therefore never add pseudo-labels.
"""

from __future__ import annotations

import math

from tagspread.core.arrays import Array, ArrayLike, Ratio, as_labels, as_scores, counts, like, per_class, share, shares
from tagspread.core.ranking import targets_by_rank, thresholds_by_rank
from tagspread.errors import TagspreadError


def class_counts(y: ArrayLike) -> tuple[Array, Array]:
    """Count, for each class, the labeled positives and the rows with a known label.

    Args:
        y: rows x classes matrix of 1 (present), 0 (absent) and -1 (unknown).

    Returns:
        ``(positives, known)``, integers, one per class.

    >>> positives, known = class_counts([[1, 0], [1, -1], [0, 0]])
    >>> positives.tolist(), known.tolist()
    ([2, 0], [3, 2])
    """
    labels = as_labels("y", y)
    return like((labels == 1).sum(0), y), like((labels >= 0).sum(0), y)


def cat_targets(
    scores: ArrayLike,
    positives: ArrayLike | None = None,
    labeled: ArrayLike | None = None,
    keep_pos: ArrayLike = 1.0,
    keep_neg: ArrayLike = 1.0,
    *,
    priors: ArrayLike | None = None,
) -> Array:
    """Compute CAP pseudo-labels: label as many of the highest scores positive as the frequency of each class predicts.

    Args:
        scores: m x q scores of the unlabeled rows, higher means more likely present. Only their order within a class
            counts, so logits and probabilities are both fine. Prefer float32 logits: half precision adds ties.
        positives: number of labeled rows that carry each class (see :func:`class_counts`).
        labeled: number of rows with a known label, one for all classes or one per class.
        keep_pos: share of the expected positives of each class to use (the paper's eta_1), one for all classes or one
            per class.
        keep_neg: share of the expected negatives to use (the paper's eta_0).
        priors: frequency of each class in the unlabeled set (0 to 1), where you know it better than the labeled set
            does; NaN for the other classes. If every class has a prior, no counts are needed.

    Returns:
        m x q int8 matrix: 1 positive, 0 negative, -1 ignored.

    >>> cat_targets([[0.9], [0.2], [0.7], [0.1]], positives=[1], labeled=2).ravel().tolist()
    [1, 0, 1, 0]
    >>> cat_targets([[0.9], [0.2], [0.7], [0.1]], positives=[1], labeled=2, keep_pos=0.5).ravel().tolist()
    [1, 0, -1, 0]
    >>> cat_targets([[0.9], [0.2], [0.7], [0.1]], priors=[0.25]).ravel().tolist()
    [1, 0, 0, 0]
    """
    ranked = as_scores("scores", scores)
    rows, classes = ranked.shape
    n_pos, n_neg = quotas(positives, labeled, rows, classes, keep_pos, keep_neg, priors=priors)
    return like(targets_by_rank(ranked, n_pos, n_neg), scores)


def cat_thresholds(
    scores: ArrayLike,
    positives: ArrayLike | None = None,
    labeled: ArrayLike | None = None,
    keep_pos: ArrayLike = 1.0,
    keep_neg: ArrayLike = 1.0,
    *,
    priors: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Compute CAP thresholds: the lowest positive and the highest negative score of each class.

    The arguments are those of :func:`cat_targets`. An empty quota gives ``inf`` (positives) or ``-inf`` (negatives).
    Rows tied with a threshold may be on either side, so use :func:`cat_targets` to label.

    Returns:
        ``(tau_pos, tau_neg)``, one of each per class.

    >>> tau_pos, tau_neg = cat_thresholds([[0.9], [0.2], [0.7], [0.1]], positives=[1], labeled=2)
    >>> tau_pos.tolist(), tau_neg.tolist()
    ([0.7], [0.2])
    """
    ranked = as_scores("scores", scores)
    rows, classes = ranked.shape
    n_pos, n_neg = quotas(positives, labeled, rows, classes, keep_pos, keep_neg, priors=priors)
    tau_pos, tau_neg = thresholds_by_rank(ranked, n_pos, n_neg)
    return like(tau_pos, scores), like(tau_neg, scores)


def quotas(
    positives: ArrayLike | None,
    labeled: ArrayLike | None,
    rows: int,
    classes: int,
    keep_pos: ArrayLike = 1.0,
    keep_neg: ArrayLike = 1.0,
    *,
    priors: ArrayLike | None = None,
) -> tuple[list[int], list[int]]:
    """Return how many of ``rows`` unlabeled rows to label positive, and how many negative, for each class.

    The quotas are computed in integers. A float stands for the decimal that it prints as, so 0.7 of ten positives is
    seven. A class without a known label gets neither positives nor negatives.

    >>> quotas([3, 0], labeled=22, rows=418, classes=2)  # in floating point 3 / 22 * 418 is 56.999...
    ([57, 0], [361, 418])
    """
    if rows < 1:
        raise TagspreadError(f"rows is {rows}; give the size of the unlabeled set, at least 1.")
    up, down = shares("keep_pos", keep_pos, classes), shares("keep_neg", keep_neg, classes)
    class_frequencies = _class_frequencies(positives, labeled, classes, priors)
    # floor(keep * frequency * rows) as one integer division; the quota is 0 if no label is known (n = 0)
    n_pos = [a * c * rows // (b * n) if n else 0 for (a, b), (c, n) in zip(up, class_frequencies, strict=True)]
    n_neg = [a * (n - c) * rows // (b * n) if n else 0 for (a, b), (c, n) in zip(down, class_frequencies, strict=True)]
    return n_pos, n_neg


def _class_frequencies(
    positives: ArrayLike | None, labeled: ArrayLike | None, classes: int, priors: ArrayLike | None
) -> list[Ratio]:
    """Return the frequency of each class as a ratio: its prior if given, otherwise its counts; 0 / 0 if unknown."""
    values = [math.nan] * classes if priors is None else per_class("priors", priors, classes)
    class_frequencies = [(0, 0) if math.isnan(value) else share("priors", value, k) for k, value in enumerate(values)]
    without_prior = [k for k, value in enumerate(values) if math.isnan(value)]
    if not without_prior:
        return class_frequencies
    if positives is None or labeled is None:
        raise TagspreadError(
            f"class {without_prior[0]} has no prior, so its labeled counts are needed: give positives and labeled "
            "(see class_counts), or a prior for every class."
        )
    n_positive, n_labeled = counts("positives", positives, classes), counts("labeled", labeled, classes)
    for k in without_prior:
        if n_positive[k] > n_labeled[k]:
            raise TagspreadError(
                f"positives is {n_positive[k]} for class {k} but labeled is {n_labeled[k]}; a class cannot be present "
                "in more rows than are labeled. Take both from class_counts(y)."
            )
        class_frequencies[k] = (n_positive[k], n_labeled[k])
    if not any(total for _, total in class_frequencies):
        raise TagspreadError("labeled is 0 for every class; give labeled rows, or a prior for each class.")
    return class_frequencies
