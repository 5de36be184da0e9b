r"""How far can the labeled part be trusted? Intervals for class proportions and the paper's two theorems.

Of n labeled rows, :math:`c_k` carry class k: :math:`\hat\gamma_k = c_k / n`. How far is it from the truth?

* **exact** (Clopper and Pearson), class by class: the proportions under which the count seen would not be a
  surprise, by the binomial distribution itself.
* **hoeffding**, for all q classes at once: :math:`\hat\gamma_k \pm \sqrt{\log(2q/\delta) / 2n}`.
* **theorem1**, the paper's: the distance to the proportion in the m unlabeled rows is at most
  :math:`\sqrt{\log n / 2n} + \sqrt{\log m / 2m}`, with probability at least :math:`1 - 2/n - 2/m` for each class.
  (The paper says "for all classes"; that would need a factor q on what is given up. ``hoeffding`` has it.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import betaincinv

from tagspread.core.arrays import Array, ArrayLike, as_labels, as_tensor, check_same_shape, like
from tagspread.core.bootstrap import check_confidence
from tagspread.core.per_class import counts
from tagspread.errors import TagspreadError, check_choice


def proportion_interval(
    positives: ArrayLike,
    labeled: ArrayLike,
    confidence: float = 0.9,
    method: str = "exact",
    *,
    unlabeled: int | None = None,
) -> tuple[Array, Array]:
    """Return, per class, the lowest and the highest proportion that fit the labeled counts.

    Args:
        positives: how many labeled rows carry each class.
        labeled: how many labeled rows are known, for all classes or for each.
        confidence: how sure the interval is to hold the truth: per class (``exact``) or for all classes
            together (``hoeffding``). ``theorem1`` fixes its own: 1 - 2/labeled - 2/unlabeled per class.
        method: ``"exact"``, ``"hoeffding"`` or ``"theorem1"``.
        unlabeled: size of the unlabeled unlabeled set, for ``theorem1`` only.

    >>> low, high = proportion_interval([6], 285)  # VOC at 5 % labeled, a rare class
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.009], [0.041])
    """
    check_choice("method", method, ("exact", "hoeffding", "theorem1"))
    check_confidence(confidence)
    given = np.atleast_1d(as_tensor("positives", positives).cpu().numpy())
    classes = given.size
    if given.ndim != 1 or classes == 0:
        raise TagspreadError(f"positives has shape {given.shape}; give one count per class, of at least one class.")
    c, n = (np.array(counts(name, v, classes), float) for name, v in (("positives", given), ("labeled", labeled)))
    for k in np.flatnonzero((c > n) | (n == 0)):
        raise TagspreadError(
            f"positives is {c[k]:.0f} and labeled {n[k]:.0f} for class {k}; an interval needs at least one labeled "
            "row and no more positives than that. Take both from class_counts(y)."
        )
    if method == "exact":
        low, high = _clopper_pearson(c, n, confidence)
    else:
        if method == "hoeffding":
            half = np.sqrt(np.log(2 * classes / (1 - confidence)) / (2 * n))
        else:
            half = np.array([theorem1_bound(int(size), unlabeled) for size in n])
        low, high = np.maximum(c / n - half, 0.0), np.minimum(c / n + half, 1.0)
    device = positives.device if isinstance(positives, torch.Tensor) else "cpu"
    return like(torch.from_numpy(low).to(device), positives), like(torch.from_numpy(high).to(device), positives)


def _clopper_pearson(c: np.ndarray, n: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Invert the binomial tails: its cumulative distribution is an incomplete beta function."""
    tail = (1 - confidence) / 2
    low = np.where(c == 0, 0.0, betaincinv(np.maximum(c, 1), n - c + 1, tail))
    high = np.where(c == n, 1.0, betaincinv(c + 1, np.maximum(n - c, 1), 1 - tail))
    return low, high


def theorem1_bound(labeled: int, unlabeled: int | None) -> float:
    """Return the paper's bound on the distance between labeled and unlabeled class proportions.

    >>> round(theorem1_bound(285, 5432), 3)  # wider than most classes are frequent
    0.128
    """
    if unlabeled is None or unlabeled < 1:
        raise TagspreadError(
            f"unlabeled is {unlabeled}; Theorem 1 compares with the unlabeled set, so give its size (at least 1)."
        )
    if labeled < 1:
        raise TagspreadError(f"labeled is {labeled}; give at least one labeled row.")
    return sum(math.sqrt(math.log(size) / (2 * size)) for size in (labeled, unlabeled))


def labels_needed(width: float, confidence: float = 0.9, classes: int = 1) -> int:
    """Return how many labeled rows it takes until every class proportion is known to +- ``width``.

    By Hoeffding's inequality over all classes at once: no assumption on how frequent they are. For rare
    classes the exact interval is narrower sooner.

    >>> labels_needed(0.05, confidence=0.9, classes=20)
    1199
    """
    if not 0 < width < 1:
        raise TagspreadError(f"width is {width}; give the half-width of a proportion, between 0 and 1.")
    if classes < 1:
        raise TagspreadError(f"classes is {classes}; give at least one class.")
    check_confidence(confidence)
    return math.ceil(math.log(2 * classes / (1 - confidence)) / (2 * width**2))


class ExcessRiskBound(NamedTuple):
    """The three terms of Theorem 2's right-hand side; ``total`` is their sum."""

    pseudo_labels: float
    complexity: float
    sampling: float

    @property
    def total(self) -> float:
        """The whole right-hand side."""
        return sum(self)


def theorem2_bound(
    epsilon: float,
    labeled: int,
    unlabeled: int,
    classes: int,
    *,
    rademacher: float,
    lipschitz: float = 1.0,
    loss_bound: float = 1.0,
    delta: float = 0.1,
) -> ExcessRiskBound:
    r"""Return the right-hand side of Theorem 2: how much worse than the best model the trained one can be.

    With a loss per class that is :math:`L`-Lipschitz and at most :math:`B`, and N = labeled + unlabeled,

    .. math:: R(\hat f) - R(f^*) \le 2qB\varepsilon + 4qL\,\mathfrak{R}_N(\mathcal F)
              + 2qB\sqrt{\log(2/\delta) / 2N}

    holds with probability at least :math:`1 - \delta`. Twice the largest gap between true and measured risk
    bounds the left-hand side; a wrong pseudo-label moves the measured risk by at most B (first term), the rest
    is uniform convergence (second and third). At best, wrong pseudo-labels are all that more data cannot fix.

    Args:
        epsilon: share of wrong pseudo-labels of the worst class (see :func:`pseudo_label_error`).
        labeled: labeled rows.
        unlabeled: unlabeled rows.
        classes: number of classes q.
        rademacher: Rademacher complexity of the model class on N rows.
        lipschitz: the loss's Lipschitz constant.
        loss_bound: the largest value of the loss of one class.
        delta: the probability with which the bound may fail.

    >>> bound = theorem2_bound(0.01, labeled=285, unlabeled=5432, classes=20, rademacher=0.0)
    >>> round(bound.pseudo_labels, 3), round(bound.sampling, 3), round(bound.total, 3)
    (0.4, 0.647, 1.047)
    """
    if not 0 <= epsilon <= 1:
        raise TagspreadError(f"epsilon is {epsilon}; it is a share of pseudo-labels, so give a number from 0 to 1.")
    if not 0 < delta < 1:
        raise TagspreadError(f"delta is {delta}; give a probability between 0 and 1.")
    if labeled < 0 or unlabeled < 0 or labeled + unlabeled < 1 or classes < 1:
        raise TagspreadError(
            f"labeled is {labeled}, unlabeled {unlabeled}, classes {classes}; give at least one row and one class."
        )
    if min(rademacher, lipschitz, loss_bound) < 0:
        raise TagspreadError(
            f"rademacher is {rademacher}, lipschitz {lipschitz}, loss_bound {loss_bound}; none can be negative."
        )
    rows = labeled + unlabeled
    return ExcessRiskBound(
        pseudo_labels=2 * classes * loss_bound * epsilon,
        complexity=4 * classes * lipschitz * rademacher,
        sampling=2 * classes * loss_bound * math.sqrt(math.log(2 / delta) / (2 * rows)),
    )


def pseudo_label_error(targets: ArrayLike, truth: ArrayLike) -> Array:
    r"""Return the paper's :math:`\varepsilon_k`: the share of rows whose pseudo-label of class k is wrong.

    .. math:: \varepsilon_k = \max_{v \in \{1, 0\}} \frac1m \sum_j \big|\, [T_{jk} = v] - [y_{jk} = v] \,\big|

    The theorem asks it of positives and of negatives; an ignored entry is missed on one of the two sides.

    Args:
        targets: pseudo-labels: 1, 0, -1 ignored.
        truth: true labels: 1, 0, -1 unknown (left out of its class; NaN where a class has none known).

    >>> pseudo_label_error([[1, 1], [0, -1]], [[1, 0], [0, 0]]).tolist()
    [0.0, 1.0]
    """
    given, true = as_labels("targets", targets), as_labels("truth", truth)
    check_same_shape("targets", given, "truth", true)
    known = true >= 0
    sides = [((given == v) != (true == v)).logical_and(known).sum(0) / known.sum(0) for v in (1, 0)]
    return like(torch.maximum(*sides), targets)
