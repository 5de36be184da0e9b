r"""Decision thresholds per class: maximize F1 or F-beta, keep a precision, or match class frequencies.

A tag is predicted if its score is at least the threshold of its class. All thresholds between two neighboring scores of
a class give the same decisions, so m rows leave at most m + 1 candidates, and every candidate is evaluated. For a
threshold that predicts :math:`n` of :math:`m` rows, :math:`t` of them correctly, in a class with :math:`P` positives:

.. math::
    \text{f1, fbeta:β} &\quad \max\; \frac{(1 + β^2)\, t}{β^2 P + n} \\
    \text{precision:p} &\quad \max\; t \quad\text{where}\quad t \ge p\, n \\
    \text{match}       &\quad \min\; |\, n - π m \,|

where :math:`π` is the share of rows that carry the tag. Among equally good thresholds, the one that predicts fewer rows
wins.

With few positives, the best threshold on these rows is rarely the best one elsewhere: a single low-scored positive can
pull it to where it predicts every second row. Such a class borrows evidence. With :math:`P < E` positives, where
:math:`E` is ``enough_positives``, the entries of all classes together count as :math:`E - P` further positives, with
their share of the negatives, and the threshold is the best one on both. With fewer than ``min_positives`` positives it
is the best one on the entries of all classes (the pooled threshold).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch

from tagspread.core.arrays import Array, ArrayLike, as_labels, as_scores, as_tensor, check_same_shape, like, per_class
from tagspread.errors import TagspreadError


class Policy(NamedTuple):
    """The criterion that thresholds are chosen by: a name and, for some criteria, a number."""

    name: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Parse ``f1``, ``fbeta:2``, ``precision:0.9`` or ``match``.

        >>> Policy.parse("precision:0.9")
        Policy(name='precision', value=0.9)
        """
        name, colon, number = str(text).partition(":")
        plain = {"f1": cls("fbeta", 1.0), "match": cls("match", 0.0)}
        if not colon and name in plain:
            return plain[name]
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name == "fbeta" and 0 < value < math.inf:
            return cls(name, value)
        if name == "precision" and 0 < value <= 1:
            return cls(name, value)
        raise TagspreadError(
            f"policy is {text!r}; it must be f1, fbeta:β with β above 0 (such as fbeta:2), precision:p with p above 0 "
            f"and at most 1 (such as precision:0.9) or match."
        )


@dataclass(frozen=True)
class Decision:
    """Decision thresholds, one per class.

    A tag is predicted if its score is at least the threshold; a threshold of ``inf`` never predicts it.

    Attributes:
        thresholds: one per class, float64, in the kind of array that the scores were.
        pooled: the threshold chosen on the entries of all classes together.
        policy: the policy by which the thresholds were chosen.
        rare: classes with too few positives for a threshold of their own; they take the pooled one.
        unreachable: classes in which no threshold reaches the required precision; they are never predicted.
        shrunken: classes with few positives, whose threshold also depends on the entries of the other classes.
    """

    thresholds: Array
    pooled: float
    policy: str
    rare: tuple[int, ...] = ()
    unreachable: tuple[int, ...] = ()
    shrunken: tuple[int, ...] = ()


def choose_thresholds(
    scores: ArrayLike,
    y: ArrayLike | None = None,
    policy: str = "f1",
    *,
    proportions: ArrayLike | None = None,
    min_positives: int = 5,
    enough_positives: int = 20,
) -> Decision:
    """Choose the decision threshold of each class that is best by ``policy`` on these rows.

    Use rows that the model was not trained on: on its training rows a model is overconfident.

    Args:
        scores: rows x classes, higher means more likely present.
        y: rows x classes matrix of 1, 0 and -1 (unknown, left out of its class); not needed for ``match`` with
            ``proportions``.
        policy: ``f1``, ``fbeta:β`` (β above 1 favors recall), ``precision:p`` (maximal recall at a precision of at
            least p) or ``match`` (predict each tag as often as it occurs).
        proportions: for ``match``, the frequency of each class; NaN where it is unknown, so that the class takes the
            pooled threshold. By default, frequencies are counted in ``y``.
        min_positives: a class with fewer positives in ``y`` takes the threshold pooled over all classes.
        enough_positives: a class with fewer positives in ``y`` borrows evidence from the other classes; with
            ``proportions``, which say nothing about positives, no class does.

    Returns:
        The thresholds, with the classes that took the pooled one, borrowed evidence, or have none.

    >>> decision = choose_thresholds([[0.9], [0.8], [0.4], [0.1]], [[1], [1], [0], [0]], min_positives=1)
    >>> decision.thresholds.round(4).tolist()
    [0.6]
    >>> choose_thresholds([[0.9], [0.8], [0.4], [0.1]], policy="match", proportions=[0.25]).thresholds.round(4).tolist()
    [0.85]
    """
    goal = Policy.parse(policy)
    if min_positives < 1:
        raise TagspreadError(
            f"min_positives is {min_positives}; a class needs at least 1 positive for its own threshold."
        )
    values = as_scores("scores", scores).double().cpu().numpy()
    _check_finite(values)
    labels = None if y is None else _labels(scores, y)
    if goal.name == "match":
        return _match(scores, values, labels, policy, proportions, min_positives, enough_positives)
    if labels is None or proportions is not None:
        mistake = "y is missing" if labels is None else "proportions are given"
        raise TagspreadError(
            f"{mistake} but the policy is {policy!r}; only 'match' works from proportions, without labels."
        )
    positives, has_label = (labels == 1).sum(axis=0), labels >= 0
    total = int(positives.sum())
    if not total:
        raise TagspreadError("y has no positive at all, so no threshold can be chosen; give rows that carry tags.")
    pool = _Entries(values[has_label], labels[has_label] == 1)
    pooled = _best_threshold([pool], _objective(goal, total))
    rare, few = positives < min_positives, positives < enough_positives

    def best(k: int) -> float:
        known = has_label[:, k]
        own, number = _Entries(values[known, k], labels[known, k] == 1), int(positives[k])
        if not few[k]:
            return _best_threshold([own], _objective(goal, number))
        borrowed = enough_positives - number  # positives' worth of pooled entries
        common = math.gcd(total, borrowed)
        parts = [own._replace(weight=total // common), pool._replace(weight=borrowed // common)]
        return _best_threshold(parts, _objective(goal, total // common * enough_positives))

    chosen = [pooled if rare[k] else best(k) for k in range(len(rare))]
    never = np.flatnonzero(np.isinf(chosen)) if goal.name == "precision" else ()
    return _decision(scores, chosen, pooled, policy, rare, few & ~rare, tuple(map(int, never)))


def decide(scores: ArrayLike, thresholds: ArrayLike) -> Array:
    """Apply decision thresholds: return 1 where a score is at least the threshold of its class, otherwise 0 (int8).

    >>> decide([[0.9, 0.2], [0.3, 0.6]], [0.5, 0.6]).tolist()
    [[1, 0], [0, 1]]
    """
    checked, limits = as_scores("scores", scores), as_tensor("thresholds", thresholds)
    if limits.ndim > 1 or (limits.ndim == 1 and len(limits) != checked.shape[1]):
        raise TagspreadError(
            f"thresholds have shape {tuple(limits.shape)} but there are {checked.shape[1]} classes; give one per "
            "class, or a single number."
        )
    return like((checked.double() >= limits.to(checked.device, torch.float64)).to(torch.int8), scores)


# (number of predicted rows, number of true positives) -> value to maximize, for each candidate threshold
Objective = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Entries(NamedTuple):
    """Scores with their labels, and how often each of them counts."""

    score: np.ndarray
    positive: np.ndarray
    weight: float = 1  # whole numbers where hits are compared exactly


def _objective(goal: Policy, positives: int) -> Objective:
    if goal.name == "fbeta":
        return lambda predicted, hits: hits / (goal.value**2 * positives + predicted)
    # compare in integers: 9 of 10 must count as a precision of 0.9
    part, whole = Fraction(str(goal.value)).limit_denominator(10**6).as_integer_ratio()
    return lambda predicted, hits: np.where(hits * whole >= part * predicted, hits, -1)


def _best_threshold(parts: Sequence[_Entries], objective: Objective) -> float:
    """Return the threshold that maximizes the objective; among equals, the one that predicts the fewest rows."""
    candidates = np.unique(np.concatenate([part.score for part in parts]))[::-1]  # equal scores stay together
    predicted = hits = np.zeros(len(candidates) + 1, np.int64)
    for score, positive, weight in parts:
        order = np.argsort(score, kind="stable")
        below = np.searchsorted(score[order], candidates)  # rows with a lower score than the candidate
        hits_below = np.append(0, np.cumsum(positive[order]))
        predicted = predicted + np.append(0, weight * (len(score) - below))
        hits = hits + np.append(0, weight * (hits_below[-1] - hits_below[below]))
    best = int(np.argmax(objective(predicted, hits)))
    if best == 0:
        return math.inf
    lowest_in = float(candidates[best - 1])
    if best == len(candidates):
        return lowest_in
    # take the midpoint to the next score: the last bit of a score differs between machines and batch sizes
    highest_out = float(candidates[best])
    middle = highest_out + (lowest_in - highest_out) / 2
    return middle if highest_out < middle else lowest_in


def _match(
    scores: ArrayLike,
    values: np.ndarray,
    labels: np.ndarray | None,
    policy: str,
    proportions: ArrayLike | None,
    min_positives: int,
    enough_positives: int,
) -> Decision:
    rows, classes = values.shape
    borrowed = np.zeros(classes)  # predicted rows that stand for further positives, from all classes together
    if proportions is not None:
        share = np.array(per_class("proportions", proportions, classes))
        if (wrong := np.flatnonzero((share < 0) | (share > 1))).size:
            raise TagspreadError(f"proportions is {share[wrong[0]]} for class {wrong[0]}; give a share from 0 to 1.")
        wanted, rare = share * rows, np.isnan(share)
    elif labels is not None:
        positives, n_labeled = (labels == 1).sum(axis=0), (labels >= 0).sum(axis=0)
        wanted = np.divide(positives * rows, n_labeled, out=np.full(classes, np.nan), where=n_labeled > 0)
        rare = positives < min_positives
        borrowed = np.maximum(0, enough_positives - positives) * rows / np.maximum(1, n_labeled)
    else:
        raise TagspreadError("the policy 'match' needs the frequency of each class; give proportions or y.")
    has_count = ~np.isnan(wanted)
    if not has_count.any():
        raise TagspreadError("proportions are unknown for every class; give at least one, or labeled rows.")
    pool, total = values[:, has_count].ravel(), float(wanted[has_count].sum())

    def best(*parts: tuple[np.ndarray, float], number: float) -> float:
        entries = [_Entries(score, np.zeros(len(score), bool), weight) for score, weight in parts]
        return _best_threshold(entries, lambda predicted, _: -np.abs(predicted - number))

    def own(k: int) -> float:
        weight = float(borrowed[k]) / max(total, 1e-9)
        parts = [(values[:, k], 1.0)] + ([(pool, weight)] if weight else [])
        return best(*parts, number=float(wanted[k] + borrowed[k]))

    pooled = best((pool, 1.0), number=total)
    chosen = [pooled if rare[k] else own(k) for k in range(classes)]
    return _decision(scores, chosen, pooled, policy, rare, (borrowed > 0) & ~rare, ())


def _decision(
    scores: ArrayLike, chosen: list[float], pooled: float, policy: str, rare: np.ndarray, shrunken: np.ndarray,
    never: tuple[int, ...],
) -> Decision:  # fmt: skip
    thresholds = like(torch.tensor(chosen, dtype=torch.float64), scores)
    rare_classes, shrunken_classes = (tuple(map(int, np.flatnonzero(mask))) for mask in (rare, shrunken))
    return Decision(thresholds, pooled, policy, rare_classes, never, shrunken_classes)


def _labels(scores: ArrayLike, y: ArrayLike) -> np.ndarray:
    labels = as_labels("y", y)
    check_same_shape("scores", as_scores("scores", scores), "y", labels)
    return labels.cpu().numpy()


def _check_finite(values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise TagspreadError(
            f"scores holds {values[row, column]} at row {row}, class {column}; thresholds need finite scores. "
            "Find out why the model returned it, or leave the row out."
        )
