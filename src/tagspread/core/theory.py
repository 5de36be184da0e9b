r"""Confidence intervals for class priors (class proportions) and the two theorems of the CAP paper.

Of n labeled rows, :math:`c_k` carry class k, so its estimated prior is :math:`\hat\gamma_k = c_k / n`. Three intervals
say how far the true proportion may be from it:

* **exact** (Clopper and Pearson), for each class separately, from the quantiles of the binomial distribution.
* **hoeffding**, for all q classes at once: :math:`\hat\gamma_k \pm \sqrt{\log(2q/\delta) / 2n}`.
* **theorem1**, from the paper: the distance to the proportion among the m unlabeled rows is at most :math:`\sqrt{\log n
  / 2n} + \sqrt{\log m / 2m}`, with probability at least :math:`1 - 2/n - 2/m` for each class. (The paper says "for all
  classes". A union bound over q classes would need q times the failure probability; ``hoeffding`` includes this
  factor.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from tagspread.core.arrays import Array, ArrayLike, as_labels, as_tensor, check_same_shape, counts, like
from tagspread.core.binomial import clopper_pearson
from tagspread.core.bootstrap import check_confidence
from tagspread.errors import TagspreadError, check_choice


def proportion_interval(
    positives: ArrayLike,
    labeled: ArrayLike,
    confidence: float = 0.9,
    method: str = "exact",
    *,
    unlabeled: int | None = None,
) -> tuple[Array, Array]:
    """Compute a confidence interval for the proportion (prior) of each class.

    Args:
        positives: number of labeled rows that carry each class.
        labeled: number of rows with a known label, one for all classes or one per class.
        confidence: confidence level, for each class (``exact``) or for all classes together (``hoeffding``).
            ``theorem1`` has a fixed level of 1 - 2/labeled - 2/unlabeled per class.
        method: ``"exact"``, ``"hoeffding"`` or ``"theorem1"``.
        unlabeled: size of the unlabeled set, needed for ``theorem1`` only.

    Returns:
        ``(low, high)``, one of each per class.

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
            "row, and no more positives than labeled rows. Take both from class_counts(y)."
        )
    if method == "exact":
        low, high = clopper_pearson(c, n, confidence)
    else:
        if method == "hoeffding":
            half = np.sqrt(np.log(2 * classes / (1 - confidence)) / (2 * n))
        else:
            half = np.array([theorem1_bound(int(size), unlabeled) for size in n])
        low, high = np.maximum(c / n - half, 0.0), np.minimum(c / n + half, 1.0)
    device = positives.device if isinstance(positives, torch.Tensor) else "cpu"
    return like(torch.from_numpy(low).to(device), positives), like(torch.from_numpy(high).to(device), positives)


def theorem1_bound(labeled: int, unlabeled: int | None) -> float:
    """Compute the bound of Theorem 1 on the distance between labeled and unlabeled class proportions.

    The bound holds for each class with probability at least 1 - 2/n - 2/m. Where that is not positive the theorem says
    nothing, and the function raises.

    >>> round(theorem1_bound(285, 5432), 3)  # wider than most classes are frequent
    0.128
    """
    if unlabeled is None or unlabeled < 1:
        raise TagspreadError(
            f"unlabeled is {unlabeled}; Theorem 1 needs the size of the unlabeled set, so give a number of at least 1."
        )
    if labeled < 1:
        raise TagspreadError(f"labeled is {labeled}; give at least one labeled row.")
    if 2 * (labeled + unlabeled) >= labeled * unlabeled:
        raise TagspreadError(
            f"labeled is {labeled} and unlabeled is {unlabeled}; Theorem 1 holds with probability 1 - 2/{labeled} - "
            f"2/{unlabeled}, which is not above 0. Give more rows, or take the method 'exact'."
        )
    return sum(math.sqrt(math.log(size) / (2 * size)) for size in (labeled, unlabeled))


def labels_needed(width: float, confidence: float = 0.9, classes: int = 1) -> int:
    """Return how many labeled rows are needed to know every class proportion to +- ``width``.

    The number follows from Hoeffding's inequality over all classes at once. It assumes nothing about their frequencies;
    for rare classes, the exact interval reaches the same width with fewer rows.

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
    """The three terms of the right-hand side of Theorem 2; ``total`` is their sum."""

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
    weighting: str = "rows",
) -> ExcessRiskBound:
    r"""Compute the right-hand side of Theorem 2: a bound on the excess risk over the best model of the class.

    With a loss per class that is :math:`L`-Lipschitz and at most :math:`B`, and N = n + m labeled and unlabeled rows,

    .. math:: R(\hat f) - R(f^*) \le 2qB\varepsilon + 4qL\,\mathfrak{R}_N(\mathcal F)
              + 2qB\sqrt{\log(2/\delta) / 2N}

    holds with probability at least :math:`1 - \delta`. The left-hand side is at most twice the largest gap between true
    and empirical risk. A wrong pseudo-label changes the empirical risk by at most B (first term); the other two terms
    are uniform convergence. More data cannot reduce the first term.

    The last term is McDiarmid's inequality, and it assumes that each row weighs 1/N in the empirical risk
    (``weighting="rows"``, the paper's proof). The paper's objective, eq. 6, adds the mean over the labeled rows and the
    mean over the unlabeled rows, so a labeled row weighs :math:`1/2n` and an unlabeled row :math:`1/2m`. With
    ``weighting="means"`` the last term is

    .. math:: qB\sqrt{\tfrac12 \big(\tfrac1n + \tfrac1m\big) \log(2/\delta)},

    which the few labeled rows dominate; ``rademacher`` is then the complexity with these weights.

    Args:
        epsilon: pseudo-label error of the worst class, from :func:`pseudo_label_error` with ``ignored="error"``.
        labeled: number of labeled rows.
        unlabeled: number of unlabeled rows.
        classes: number of classes q.
        rademacher: Rademacher complexity of the model class on N rows.
        lipschitz: Lipschitz constant of the loss.
        loss_bound: largest value of the loss of one class.
        delta: probability with which the bound may fail.
        weighting: ``"rows"`` if every row weighs the same, ``"means"`` for eq. 6.

    >>> bound = theorem2_bound(0.01, labeled=285, unlabeled=5432, classes=20, rademacher=0.0)
    >>> round(bound.pseudo_labels, 3), round(bound.sampling, 3), round(bound.total, 3)
    (0.4, 0.647, 1.047)
    >>> means = theorem2_bound(0.01, 285, 5432, 20, rademacher=0.0, weighting="means")
    >>> round(means.sampling, 3)
    1.487
    """
    check_choice("weighting", weighting, ("rows", "means"))
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
    if weighting == "means" and not (labeled and unlabeled):
        raise TagspreadError(
            f"labeled is {labeled} and unlabeled is {unlabeled}; weighting 'means' needs rows of both kinds."
        )
    # the sum of the squared changes that one row can make to the empirical risk, for B = q = 1
    squared_changes = 1 / (labeled + unlabeled) if weighting == "rows" else (1 / labeled + 1 / unlabeled) / 4
    return ExcessRiskBound(
        pseudo_labels=2 * classes * loss_bound * epsilon,
        complexity=4 * classes * lipschitz * rademacher,
        sampling=2 * classes * loss_bound * math.sqrt(squared_changes * math.log(2 / delta) / 2),
    )


def pseudo_label_error(targets: ArrayLike, truth: ArrayLike, *, ignored: str = "negative") -> Array:
    r"""Compute the pseudo-label error of each class.

    The paper's error counts the rows that are positive in one matrix only; an ignored entry is simply not positive:

    .. math:: \varepsilon_k = \frac1m \sum_j \big|\, [T_{jk} = 1] - [y_{jk} = 1] \,\big|.

    Theorem 2 needs every entry whose loss differs from that of the true label. An ignored entry has no loss at all, so
    the bound holds with ``ignored="error"``, which counts wrong and ignored entries:

    .. math:: \varepsilon_k = \frac1m \sum_j [T_{jk} \ne y_{jk}].

    Without ignored entries both are the same.

    Args:
        targets: pseudo-labels: 1, 0, -1 ignored.
        truth: true labels: 1, 0, -1 unknown (left out of its class; NaN for a class without a known label).
        ignored: ``"negative"`` for the paper's error, ``"error"`` for the one to give to :func:`theorem2_bound`.

    >>> targets, truth = [[1, 1], [0, -1]], [[1, 0], [0, 0]]
    >>> pseudo_label_error(targets, truth).tolist(), pseudo_label_error(targets, truth, ignored="error").tolist()
    ([0.0, 0.5], [0.0, 1.0])
    """
    check_choice("ignored", ignored, ("negative", "error"))
    given, true = as_labels("targets", targets), as_labels("truth", truth)
    check_same_shape("targets", given, "truth", true)
    has_label = true >= 0
    wrong = (given == 1) != (true == 1) if ignored == "negative" else given != true
    return like((wrong & has_label).sum(0) / has_label.sum(0), targets)
