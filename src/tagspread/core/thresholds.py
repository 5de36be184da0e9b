r"""Class-distribution-aware thresholds (CAT): the heart of CAP (sections 3.2 and 3.3 of the paper).

The labeled part says how often each class occurs. Of m unlabeled rows, the share of class k that
matches its frequency becomes positive, from the top of that class's scores; the rest, from the bottom,
becomes negative. With :math:`c_k` positives among :math:`n_k` labeled rows whose label is known,

.. math::
    K^+_k = \Big\lfloor \eta_1 \frac{c_k\, m}{n_k} \Big\rfloor, \qquad
    K^-_k = \Big\lfloor \eta_0 \frac{(n_k - c_k)\, m}{n_k} \Big\rfloor

and what :math:`\eta_1, \eta_0 < 1` leave in the doubtful middle is ignored. Quotas are whole numbers and
rows are chosen by rank, so neither ties nor rounding nor a class without positives can inflate them.
"""

from __future__ import annotations

import math

from tagspread.core.arrays import Array, ArrayLike, as_labels, as_scores, like
from tagspread.core.per_class import Ratio, counts, per_class, share, shares
from tagspread.core.ranking import targets_by_rank, thresholds_by_rank
from tagspread.errors import TagspreadError


def class_counts(y: ArrayLike) -> tuple[Array, Array]:
    """Count, per class, the labeled positives and the rows whose label is known.

    Args:
        y: rows x classes matrix of 1 (present), 0 (absent) and -1 (unknown).

    Returns:
        ``(positives, known)``, whole numbers, one per class.

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
    """Turn the teacher's scores of the unlabeled rows into pseudo-labels, as often as each class occurs.

    Args:
        scores: m x q scores, higher means more likely present. Only their order within a class counts,
            so logits and probabilities serve alike; prefer float32 logits, half precision ties many.
        positives: how many labeled rows carry each class (see :func:`class_counts`).
        labeled: how many labeled rows are known, for all classes or for each.
        keep_pos: share of each class's expected positives that is used (the paper's eta_1), one or per class.
        keep_neg: the same for negatives (eta_0).
        priors: how often each class occurs in the unlabeled set (0 to 1), where you know it better than the labeled
            part does; NaN for the classes where it does not. Given for every class, no counts are needed.

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
    """Return the score of each class's last positive and of its last negative: what the quotas amount to.

    The arguments are those of :func:`cat_targets`. An empty quota gives ``inf`` (positives) or ``-inf``
    (negatives). Rows tied with a threshold may fall on either side: use :func:`cat_targets` to label.

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
    """Return how many of ``rows`` unlabeled rows each class may call positive, and negative.

    Whole numbers all the way: a float stands for the decimal it prints as, so that 0.7 of ten positives is seven.
    A class of which no label is known gets neither positives nor negatives.

    >>> quotas([3, 0], labeled=22, rows=418, classes=2)  # in floating point 3 / 22 * 418 is 56.999...
    ([57, 0], [361, 418])
    """
    if rows < 1:
        raise TagspreadError(f"rows is {rows}; give the size of the unlabeled set, at least 1.")
    up, down = shares("keep_pos", keep_pos, classes), shares("keep_neg", keep_neg, classes)
    found = _proportions(positives, labeled, classes, priors)
    # floor(keep * proportion * rows) as one integer division; where nothing is known (n = 0) the quota is 0
    n_pos = [a * c * rows // (b * n) if n else 0 for (a, b), (c, n) in zip(up, found, strict=True)]
    n_neg = [a * (n - c) * rows // (b * n) if n else 0 for (a, b), (c, n) in zip(down, found, strict=True)]
    return n_pos, n_neg


def _proportions(
    positives: ArrayLike | None, labeled: ArrayLike | None, classes: int, priors: ArrayLike | None
) -> list[Ratio]:
    """Return each class's proportion: the prior where there is one, else counted; 0 / 0 where nothing is known."""
    stated = [math.nan] * classes if priors is None else per_class("priors", priors, classes)
    found = [(0, 0) if math.isnan(prior) else share("priors", prior, k) for k, prior in enumerate(stated)]
    unstated = [k for k, prior in enumerate(stated) if math.isnan(prior)]
    if not unstated:
        return found
    if positives is None or labeled is None:
        raise TagspreadError(
            f"class {unstated[0]} has no prior, so its labeled counts are needed: give positives and labeled "
            "(see class_counts), or a prior for every class."
        )
    present, known = counts("positives", positives, classes), counts("labeled", labeled, classes)
    for k in unstated:
        if present[k] > known[k]:
            raise TagspreadError(
                f"positives is {present[k]} for class {k} but labeled is {known[k]}; a class cannot be present in "
                "more rows than are labeled. Take both from class_counts(y)."
            )
        found[k] = (present[k], known[k])
    if not any(total for _, total in found):
        raise TagspreadError("labeled is 0 for every class; proportions need labeled rows, or give priors.")
    return found
