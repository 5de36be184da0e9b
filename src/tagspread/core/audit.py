r"""Audit of class frequencies: what a random sample of the unlabeled rows says about them and about pseudo-labels.

CAP assumes that each class is as frequent in the unlabeled set as in the labeled rows. A random sample of the unlabeled
set, answered by a person, tests the assumption and repairs it:

* :func:`audit_frequencies`: the frequency of each class in the unlabeled set with an exact interval, and whether the
  labeled rows contradict it (Fisher's exact test, corrected by Holm for the number of classes).
* :func:`audit_pseudo_labels`: precision and recall of the pseudo-labels of each class with exact intervals.
* :func:`shrunk_frequencies`: the audited frequencies, shrunk towards the labeled counts. With :math:`a_k` positives
  among :math:`n_k` audited rows and labeled frequency :math:`\gamma_k`, the estimate is the posterior mean

  .. math:: \hat p_k = \sum_s r_{ks} \frac{a_k + s \gamma_k}{n_k + s}

  where the labeled rows count like s audited rows, from 1 (labels that were selected by this class) to their number (a
  random sample). How probable each s is follows from the audited counts: :math:`r_{ks}` is proportional to
  :math:`w_s` times the likelihood of :math:`a_k`, beta-binomial with mean :math:`\gamma_k` and strength s, and the
  weights :math:`w_s` are those that make the counts of all classes most likely. Where labels and audit agree, the
  labels are worth much; a class that they contradict keeps the audit's frequency.

Samples are drawn without replacement; the binomial intervals are then slightly too wide, never too narrow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import betaln
from scipy.stats import fisher_exact

from tagspread.core.arrays import ArrayLike, as_labels, check_same_shape, counts
from tagspread.core.theory import proportion_interval
from tagspread.errors import TagspreadError

SIGNIFICANCE = 0.05  # probability of any contradiction by chance, over all classes
STRENGTHS = 9  # values of s, from 1 to the number of labeled rows
EM_STEPS = 100  # of expectation-maximization for the weights of these values


class Share(NamedTuple):
    """A share with an exact interval; all three are NaN if ``of`` is 0.

    Attributes:
        part: number of rows that count.
        of: number of rows.
        low: lower end of the interval.
        high: upper end.
    """

    part: int
    of: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """``part / of``."""
        return self.part / self.of if self.of else float("nan")


class ClassAudit(NamedTuple):
    """Frequency of one class in the unlabeled set, audited, and in the labeled rows.

    Attributes:
        unlabeled: share of the audited rows that carry the class.
        labeled: share of the labeled rows that carry it.
        p_value: two-sided p-value of Fisher's exact test that both are the same; 1 if one of them has no rows.
        contradicts: whether it is small enough to reject that, corrected for the number of classes.
    """

    unlabeled: Share
    labeled: Share
    p_value: float
    contradicts: bool


def exact_share(part: int, of: int, confidence: float = 0.9) -> Share:
    """Return a share with its exact (Clopper-Pearson) interval.

    >>> share = exact_share(6, 285)
    >>> round(share.value, 3), round(share.low, 3), round(share.high, 3)
    (0.021, 0.009, 0.041)
    """
    if not of:
        return Share(0, 0, float("nan"), float("nan"))
    low, high = proportion_interval([part], of, confidence)
    return Share(int(part), int(of), float(low[0]), float(high[0]))


def audit_frequencies(
    positives: ArrayLike,
    known: ArrayLike,
    labeled_positives: ArrayLike,
    labeled_known: ArrayLike,
    confidence: float = 0.9,
) -> list[ClassAudit]:
    """Estimate class frequencies in the unlabeled set from a random sample of it; compare them with the labeled rows.

    Args:
        positives: number of audited rows that carry each class.
        known: number of audited rows with a known answer, one for all classes or one per class.
        labeled_positives: number of labeled rows that carry each class.
        labeled_known: number of labeled rows with a known label, one for all classes or one per class.
        confidence: confidence level of the intervals, for each class.

    >>> cat, dog = audit_frequencies([8, 20], 200, [31, 30], 285)
    >>> round(cat.unlabeled.low, 3), round(cat.unlabeled.high, 3), cat.contradicts, dog.contradicts
    (0.02, 0.071, True, False)
    """
    a, n, c, m = _four_counts(positives, known, labeled_positives, labeled_known)
    p_values = [
        float(fisher_exact(np.array([[a_k, n_k - a_k], [c_k, m_k - c_k]])).pvalue) if n_k and m_k else 1.0
        for a_k, n_k, c_k, m_k in zip(a, n, c, m, strict=True)
    ]
    rejected = _holm(p_values)
    return [
        ClassAudit(exact_share(a[k], n[k], confidence), exact_share(c[k], m[k], confidence), p_values[k], rejected[k])
        for k in range(len(a))
    ]


def _four_counts(
    positives: ArrayLike, known: ArrayLike, labeled_positives: ArrayLike, labeled_known: ArrayLike
) -> tuple[list[int], list[int], list[int], list[int]]:
    classes = int(np.size(np.asarray(positives)))
    if not classes:
        raise TagspreadError("positives is empty; give one count per class, of at least one class.")
    named = {
        "positives": np.atleast_1d(np.asarray(positives)),
        "known": known,
        "labeled_positives": labeled_positives,
        "labeled_known": labeled_known,
    }
    a, n, c, m = (counts(name, value, classes) for name, value in named.items())
    for what, some, all_ in (("positives", a, n), ("labeled_positives", c, m)):
        for k in range(classes):
            if some[k] > all_[k]:
                raise TagspreadError(
                    f"{what} is {some[k]} for class {k} of {all_[k]} rows; a class cannot be on more rows than were "
                    "answered. Take both from class_counts(y)."
                )
    return a, n, c, m


def _holm(p_values: list[float]) -> list[bool]:
    """Return which hypotheses are rejected at ``SIGNIFICANCE`` over all of them (Holm's step-down procedure)."""
    rejected = [False] * len(p_values)
    for place, k in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[k] * (len(p_values) - place) > SIGNIFICANCE:
            break
        rejected[k] = True
    return rejected


class PseudoLabelAudit(NamedTuple):
    """How good the pseudo-labels of one class are, measured on audited rows.

    Attributes:
        precision: share of the positive pseudo-labels that are right.
        recall: share of the rows with the class that have a positive pseudo-label; ignored rows count as missed.
    """

    precision: Share
    recall: Share


def audit_pseudo_labels(targets: ArrayLike, truth: ArrayLike, confidence: float = 0.9) -> list[PseudoLabelAudit]:
    """Measure precision and recall of pseudo-labels on a random sample of the unlabeled rows.

    Args:
        targets: pseudo-labels of the sampled rows: 1, 0, -1 ignored.
        truth: answers of a person: 1, 0, -1 unknown, which are left out of their class.
        confidence: confidence level of the exact intervals.

    >>> (quality,) = audit_pseudo_labels([[1], [1], [0], [-1]], [[1], [0], [0], [1]])
    >>> quality.precision.value, quality.recall.value
    (0.5, 0.5)
    """
    given, true = as_labels("targets", targets), as_labels("truth", truth)
    check_same_shape("targets", given, "truth", true)
    called, present, answered = given == 1, true == 1, true >= 0
    right, of_called, of_present = ((called & present).sum(0), (called & answered).sum(0), present.sum(0))
    return [
        PseudoLabelAudit(exact_share(int(r), int(p), confidence), exact_share(int(r), int(t), confidence))
        for r, p, t in zip(right.tolist(), of_called.tolist(), of_present.tolist(), strict=True)
    ]


def labels_worth(
    positives: ArrayLike, known: ArrayLike, labeled_positives: ArrayLike, labeled_known: ArrayLike
) -> np.ndarray:
    """Return how many audited rows the labeled rows are worth as evidence on the frequency of each class.

    The arguments are those of :func:`audit_frequencies`.

    >>> labels_worth([21, 58, 11, 20], 200, [20, 60, 10, 70], 200).round().tolist()  # the last class was selected
    [154.0, 152.0, 156.0, 4.0]
    """
    a, n, c, m = (np.array(v, float) for v in _four_counts(positives, known, labeled_positives, labeled_known))
    strengths, chances = _strengths(a, n, c, m)
    worth: np.ndarray = (chances * strengths).sum(1)
    return worth


def shrunk_frequencies(
    positives: ArrayLike, known: ArrayLike, labeled_positives: ArrayLike, labeled_known: ArrayLike
) -> np.ndarray:
    """Estimate class frequencies in the unlabeled set: the audit's, shrunk towards the labeled counts.

    The arguments are those of :func:`audit_frequencies`.

    Returns:
        The estimate of each class; NaN for a class without an audited row, which should keep its labeled counts.

    >>> shrunk_frequencies([10, 0], [200, 0], [30, 5], [285, 285]).round(3).tolist()  # 5 % audited, 10.5 % labeled
    [0.057, nan]
    """
    a, n, c, m = (np.array(v, float) for v in _four_counts(positives, known, labeled_positives, labeled_known))
    strengths, chances = _strengths(a, n, c, m)
    means = (a[:, None] + strengths * _labeled_mean(c, m)[:, None]) / (n[:, None] + strengths)
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate = np.where(m > 0, (chances * means).sum(1), a / n)
    return np.where(n > 0, estimate, np.nan)


def _strengths(a: np.ndarray, n: np.ndarray, c: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of s (classes x values) and how probable each is, for each class."""
    mean = _labeled_mean(c, m)[:, None]
    strengths = np.maximum(m, 1.0)[:, None] ** np.linspace(0, 1, STRENGTHS)
    alpha, beta = strengths * mean, strengths * (1 - mean)
    likelihood = betaln(a[:, None] + alpha, (n - a)[:, None] + beta) - betaln(alpha, beta)
    likelihood = np.exp(likelihood - likelihood.max(1, keepdims=True))
    weights = np.full(STRENGTHS, 1 / STRENGTHS)
    informed = (n > 0) & (m > 0)
    chances = likelihood * weights
    for _ in range(EM_STEPS):
        chances = likelihood * weights
        chances /= chances.sum(1, keepdims=True)
        # one class in all is added evenly, so that a few classes cannot rule a value out
        weights = (chances[informed].sum(0) + 1 / STRENGTHS) / (informed.sum() + 1)
    return strengths, chances


def _labeled_mean(c: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Return the labeled frequencies, kept off 0 and 1 by half a row: a prior of 0 could never be corrected."""
    return np.asarray((c + 0.5) / (m + 1))


def remaining_frequencies(frequencies: ArrayLike, rows: int, positives: ArrayLike, answered: ArrayLike) -> np.ndarray:
    """Return class frequencies among the rows that are left after some were answered and labeled.

    Answers that were asked for on purpose use up the positives of rare classes, so what is left has fewer of them.

    Args:
        frequencies: frequency of each class before any row was answered; NaN is kept.
        rows: number of unlabeled rows before.
        positives: positives of each class among all answered rows.
        answered: answered rows, one number for all classes or one per class.

    >>> remaining_frequencies([0.05], 1000, [30], 100).round(4).tolist()  # 20 positives in 900 rows
    [0.0222]
    """
    before = np.asarray(frequencies, float)
    done = np.broadcast_to(np.asarray(answered, float), before.shape)
    left = np.maximum(rows - done, 1.0)
    remaining: np.ndarray = np.clip((before * rows - np.asarray(positives, float)) / left, 0.0, 1.0)
    return remaining
