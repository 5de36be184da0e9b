r"""How good are scores and decisions? Average precision, its mean, and the six multi-label figures.

.. math:: \mathrm{AP}_k = \sum_j (R_j - R_{j-1})\, P_j

over the distinct scores of class k from the highest down, with precision :math:`P_j` and recall
:math:`R_j` of what scores at least that much: ties are one step, nothing is interpolated. Entries whose
label is unknown (-1) take no part in their class.
"""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

from tagspread.core.arrays import (
    Array,
    ArrayLike,
    as_labels,
    as_scores,
    as_tensor,
    check_no_nan,
    check_same_shape,
    like,
)
from tagspread.core.bootstrap import basic_interval, resampling_counts
from tagspread.core.ranking import rank_dtype, sort_rows
from tagspread.errors import TagspreadError, check_choice

CELLS_AT_ONCE = 2**23  # how many entries are worked on together: bounds the memory, whatever the data's size


def average_precision(scores: ArrayLike, y: ArrayLike) -> Array:
    """Return the average precision of each class, in 0..1; NaN for a class without a positive.

    Args:
        scores: rows x classes, higher means more likely present.
        y: rows x classes matrix of 1 (present), 0 (absent) and -1 (unknown, left out of its class).

    >>> average_precision([[0.9, 0.1], [0.8, 0.3], [0.1, 0.2]], [[1, 0], [0, 0], [1, 0]]).round(4).tolist()
    [0.8333, nan]
    """
    checked, labels = _check(scores, y)
    step = max(1, CELLS_AT_ONCE // len(checked))
    parts = [
        _mean_precision_at_positives(checked[:, at : at + step], labels[:, at : at + step])
        for at in range(0, checked.shape[1], step)
    ]
    return like(torch.cat(parts), scores)


@overload
def mean_average_precision(
    scores: ArrayLike, y: ArrayLike, absent: str = ..., *, return_skipped: Literal[False] = ...
) -> float: ...
@overload
def mean_average_precision(
    scores: ArrayLike, y: ArrayLike, absent: str = ..., *, return_skipped: Literal[True]
) -> tuple[float, int]: ...
def mean_average_precision(
    scores: ArrayLike, y: ArrayLike, absent: str = "skip", *, return_skipped: bool = False
) -> float | tuple[float, int]:
    """Return the mean over classes of the average precision (mAP), in 0..1.

    Args:
        scores: rows x classes, higher means more likely present.
        y: rows x classes matrix of 1, 0 and -1 (unknown).
        absent: what a class without a positive does: ``"skip"`` leaves it out of the mean, ``"zero"`` counts it
            as 0, as scikit-learn and CAP's released code do.
        return_skipped: also return how many classes were left out.

    Returns:
        The mean (NaN if no class has a positive and all are skipped), and with ``return_skipped`` their number.

    >>> mean_average_precision([[0.9, 0.1], [0.8, 0.3]], [[1, 0], [0, 0]])
    1.0
    >>> mean_average_precision([[0.9, 0.1], [0.8, 0.3]], [[1, 0], [0, 0]], absent="zero")
    0.5
    >>> mean_average_precision([[0.9, 0.1], [0.8, 0.3]], [[1, 0], [0, 0]], return_skipped=True)
    (1.0, 1)
    """
    check_choice("absent", absent, ("skip", "zero"))
    per_class = as_tensor("scores", average_precision(scores, y))
    missing = int(per_class.isnan().sum())
    mean = (per_class.nanmean() if absent == "skip" else per_class.nan_to_num(0.0).mean()).item()
    return (mean, missing if absent == "skip" else 0) if return_skipped else mean


def mean_average_precision_interval(
    scores: ArrayLike,
    y: ArrayLike,
    absent: str = "skip",
    *,
    confidence: float = 0.9,
    samples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the interval that holds the mAP on all data of this kind (basic bootstrap over rows).

    Args:
        scores: rows x classes, higher means more likely present.
        y: rows x classes matrix of 1, 0 and -1 (unknown).
        absent: as in :func:`mean_average_precision`, applied to each resampled data set.
        confidence: how sure the interval is to be.
        samples: how many times the rows are drawn anew.
        seed: the same seed gives the same interval, on every device.

    >>> low, high = mean_average_precision_interval([[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]], seed=1)
    >>> 0 < low < mean_average_precision([[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]]) < high <= 1
    True
    """
    means = resampled_means(scores, y, absent, samples, seed)
    return basic_interval(mean_average_precision(scores, y, absent), means, confidence)


def resampled_means(scores: ArrayLike, y: ArrayLike, absent: str, samples: int, seed: int) -> Tensor:
    """Return the mAP of each of ``samples`` resampled data sets; a seed draws the same rows whatever the scores."""
    check_choice("absent", absent, ("skip", "zero"))
    checked, labels = _check(scores, y)
    drawings = resampling_counts(len(checked), samples, seed, CELLS_AT_ONCE, checked.device)
    columns = [_RankedClass(column, label) for column, label in zip(checked.t(), labels.t(), strict=True)]
    means = []
    for drawn in drawings:
        per_class = torch.stack([column.average_precision(drawn) for column in columns])
        means.append(per_class.nanmean(0) if absent == "skip" else per_class.nan_to_num(0.0).mean(0))
    return torch.cat(means)


def average_precision_interval(
    scores: ArrayLike, y: ArrayLike, *, confidence: float = 0.9, samples: int = 1000, seed: int = 0
) -> tuple[Array, Array]:
    """Return, per class, the interval that holds its average precision on all data of this kind.

    The arguments are those of :func:`mean_average_precision_interval`; NaN for a class without a positive.

    >>> low, high = average_precision_interval([[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]], seed=1)
    >>> bool(0 < low[0] < average_precision([[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]])[0] < high[0] <= 1)
    True
    """
    checked, labels = _check(scores, y)
    columns = [_RankedClass(column, label) for column, label in zip(checked.t(), labels.t(), strict=True)]
    drawings = resampling_counts(len(checked), samples, seed, CELLS_AT_ONCE, checked.device)
    values = torch.cat([torch.stack([column.average_precision(drawn) for column in columns]) for drawn in drawings], 1)
    estimates = as_tensor("scores", average_precision(scores, y)).tolist()
    nothing = (math.nan, math.nan)
    ends = [
        nothing if math.isnan(estimate) else basic_interval(estimate, drawn, confidence)
        for estimate, drawn in zip(estimates, values, strict=True)
    ]
    low, high = torch.tensor(ends, dtype=torch.float64, device=checked.device).t()
    return like(low, scores), like(high, scores)


def multilabel_report(pred: ArrayLike, y: ArrayLike, *, undefined: str = "zero") -> dict[str, float]:
    """Return overall and per-class precision, recall and F1 of hard decisions: OP, OR, OF1, CP, CR, CF1.

    CF1 is the harmonic mean of CP and CR, as in the literature, not the mean of the classes' F1.

    Args:
        pred: rows x classes decisions, 1 or 0.
        y: rows x classes matrix of 1, 0 and -1 (unknown, left out of its class).
        undefined: ``"zero"`` counts a class that occurs but is never predicted as precision 0; ``"skip"`` drops it
            from CP, as CAP's released code does, which flatters. Classes that never occur have no recall and
            are left out of CR either way.

    >>> report = multilabel_report([[1, 0], [1, 0]], [[1, 1], [0, 0]])
    >>> {name: round(value, 3) for name, value in report.items()}
    {'OP': 0.5, 'OR': 0.5, 'OF1': 0.5, 'CP': 0.25, 'CR': 0.5, 'CF1': 0.333}
    """
    check_choice("undefined", undefined, ("zero", "skip"))
    truth, decisions = as_labels("y", y), as_labels("pred", pred)
    check_same_shape("pred", decisions, "y", truth)
    if bool((decisions < 0).any()):
        raise TagspreadError("pred holds -1; a decision is 1 or 0. Mask unknown entries in y instead.")
    known = truth >= 0
    hits, predicted, true = (
        mask.sum(0).to(torch.float64)
        for mask in ((decisions == 1) & (truth == 1), (decisions == 1) & known, truth == 1)
    )
    # 0 / 0 is NaN and drops out of the mean: the class says nothing
    precision = hits / predicted
    if undefined == "zero":
        precision = torch.where((predicted == 0) & (true > 0), 0.0, precision)
    op, o_r = _ratio(hits.sum(), predicted.sum()), _ratio(hits.sum(), true.sum())
    cp, cr = (value.nanmean().nan_to_num(0.0).item() for value in (precision, hits / true))
    return {"OP": op, "OR": o_r, "OF1": _f1(op, o_r), "CP": cp, "CR": cr, "CF1": _f1(cp, cr)}


def _ratio(part: Tensor, whole: Tensor) -> float:
    return (part / whole).item() if whole > 0 else 0.0


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _check(scores: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor]:
    checked, labels = as_scores("scores", scores), as_labels("y", y)
    check_same_shape("scores", checked, "y", labels)
    check_no_nan("scores", checked)
    return checked, labels.to(checked.device)


def _mean_precision_at_positives(scores: Tensor, labels: Tensor) -> Tensor:
    """Sum (R_j - R_{j-1}) P_j, written as a mean over the positives of the precision at each one's score.

    A positive with score s adds 1 / positives of recall at precision (positives >= s) / (known >= s), so two
    sorted lists answer everything: no index is carried along, and ties need no special care.
    """
    rows = len(scores)
    positives, known = (labels == 1).sum(0).unsqueeze(1), (labels >= 0).sum(0).unsqueeze(1)
    by_class, label = scores.t().to(rank_dtype(scores)), labels.t()
    everything = sort_rows(torch.where(label >= 0, by_class, -torch.inf))

    # the positives of each class, ascending, in rows of one length: filled up with inf at the end
    of_class, row = (label == 1).nonzero(as_tuple=True)
    place = torch.arange(len(row), device=row.device) - (positives.cumsum(0) - positives)[of_class, 0]
    present = by_class.new_full((len(by_class), int(positives.max())), torch.inf)
    present[of_class, place] = by_class[of_class, row]
    present = sort_rows(present)

    hits = positives - torch.searchsorted(present, present)
    seen = (rows - torch.searchsorted(everything, present)).minimum(known)  # unknown entries lie at -inf
    precision = torch.where(torch.arange(present.shape[1], device=row.device) < positives, hits.double() / seen, 0.0)
    return precision.sum(1, dtype=torch.float64) / positives.squeeze(1)  # 0 / 0 is NaN: no positive


class _RankedClass:
    """One class, ranked once, whose average precision is then asked for many weightings of the rows."""

    def __init__(self, scores: Tensor, labels: Tensor) -> None:
        known = (labels >= 0).nonzero().squeeze(1)
        ranked, order = scores[known].to(rank_dtype(scores)).sort(descending=True)
        self.rows = known[order]
        is_positive = labels[self.rows] == 1
        self.positive_rows = self.rows[is_positive]
        at = ranked[is_positive]
        # how many entries, and how many positives, score at least as much as each positive
        self.last_seen = torch.searchsorted(-ranked, -at, right=True) - 1
        self.last_hit = torch.searchsorted(-at, -at, right=True) - 1

    def average_precision(self, times: Tensor) -> Tensor:
        """Return one figure per line of ``times``, which says how often each row counts."""
        weight = times[:, self.positive_rows]
        hits = weight.cumsum(1)[:, self.last_hit]
        seen = times[:, self.rows].cumsum(1)[:, self.last_seen]
        # a positive that was not drawn has weight 0; it may also have nothing above it
        return (weight * hits / seen.clamp(min=1)).sum(1, dtype=torch.float64) / weight.sum(1)
