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
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch

from tagspread.core.arrays import Array, ArrayLike, as_labels, as_scores, as_tensor, check_same_shape, like
from tagspread.core.per_class import per_class
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
        rare: classes with too few positives for their own threshold; they take the pooled one.
        unreachable: classes in which no threshold reaches the required precision; they are never predicted.
    """

    thresholds: Array
    pooled: float
    policy: str
    rare: tuple[int, ...] = ()
    unreachable: tuple[int, ...] = ()


def choose_thresholds(
    scores: ArrayLike,
    y: ArrayLike | None = None,
    policy: str = "f1",
    *,
    proportions: ArrayLike | None = None,
    min_positives: int = 5,
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

    Returns:
        The thresholds, with the classes that took the pooled one or have none.

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
        return _match(scores, values, labels, policy, proportions, min_positives)
    if labels is None or proportions is not None:
        mistake = "y is missing" if labels is None else "proportions are given"
        raise TagspreadError(
            f"{mistake} but the policy is {policy!r}; only 'match' works from proportions, without labels."
        )
    positives = (labels == 1).sum(axis=0)
    if not positives.any():
        raise TagspreadError("y has no positive at all, so no threshold can be chosen; give rows that carry tags.")

    def best(score: np.ndarray, label: np.ndarray) -> float:
        has_label = label >= 0
        return _best_threshold(score[has_label], label[has_label] == 1, _objective(goal, int((label == 1).sum())))

    pooled = best(values.ravel(), labels.ravel())
    rare = positives < min_positives
    chosen = [pooled if rare[k] else best(values[:, k], labels[:, k]) for k in range(len(rare))]
    never = np.flatnonzero(np.isinf(chosen)) if goal.name == "precision" else ()
    return _decision(scores, chosen, pooled, policy, rare, tuple(map(int, never)))


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


def _objective(goal: Policy, positives: int) -> Objective:
    if goal.name == "fbeta":
        return lambda predicted, hits: hits / (goal.value**2 * positives + predicted)
    # compare in integers: 9 of 10 must count as a precision of 0.9
    part, whole = Fraction(str(goal.value)).limit_denominator(10**6).as_integer_ratio()
    return lambda predicted, hits: np.where(hits * whole >= part * predicted, hits, -1)


def _best_threshold(score: np.ndarray, positive: np.ndarray, objective: Objective) -> float:
    """Return the threshold that maximizes the objective; among equals, the one that predicts the fewest rows."""
    order = np.argsort(-score, kind="stable")
    ranked = score[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)  # equal scores stay together
    predicted = np.concatenate([[0], last + 1])
    hits = np.concatenate([[0], np.cumsum(positive[order])[last]])
    best = int(np.argmax(objective(predicted, hits)))
    if best == 0:
        return math.inf
    lowest_in = float(ranked[last[best - 1]])
    if best == len(last):
        return lowest_in
    # take the midpoint to the next score: the last bit of a score differs between machines and batch sizes
    highest_out = float(ranked[last[best]])
    middle = highest_out + (lowest_in - highest_out) / 2
    return middle if highest_out < middle else lowest_in


def _match(
    scores: ArrayLike,
    values: np.ndarray,
    labels: np.ndarray | None,
    policy: str,
    proportions: ArrayLike | None,
    min_positives: int,
) -> Decision:
    rows, classes = values.shape
    if proportions is not None:
        share = np.array(per_class("proportions", proportions, classes))
        if (wrong := np.flatnonzero((share < 0) | (share > 1))).size:
            raise TagspreadError(f"proportions is {share[wrong[0]]} for class {wrong[0]}; give a share from 0 to 1.")
        wanted, rare = share * rows, np.isnan(share)
    elif labels is not None:
        positives, n_labeled = (labels == 1).sum(axis=0), (labels >= 0).sum(axis=0)
        wanted = np.divide(positives * rows, n_labeled, out=np.full(classes, np.nan), where=n_labeled > 0)
        rare = positives < min_positives
    else:
        raise TagspreadError("the policy 'match' needs the frequency of each class; give proportions or y.")
    has_count = ~np.isnan(wanted)
    if not has_count.any():
        raise TagspreadError("proportions are unknown for every class; give at least one, or labeled rows.")

    def best(score: np.ndarray, number: float) -> float:
        return _best_threshold(score, np.zeros(len(score), bool), lambda predicted, _: -np.abs(predicted - number))

    pooled = best(values[:, has_count].ravel(), float(wanted[has_count].sum()))
    chosen = [pooled if rare[k] else best(values[:, k], float(wanted[k])) for k in range(classes)]
    return _decision(scores, chosen, pooled, policy, rare, ())


def _decision(
    scores: ArrayLike, chosen: list[float], pooled: float, policy: str, rare: np.ndarray, never: tuple[int, ...]
) -> Decision:
    thresholds = like(torch.tensor(chosen, dtype=torch.float64), scores)
    return Decision(thresholds, pooled, policy, tuple(map(int, np.flatnonzero(rare))), never)


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
