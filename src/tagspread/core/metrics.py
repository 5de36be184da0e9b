r"""Multi-label metrics: average precision (AP), mAP, precision, recall, F1, and bootstrap confidence intervals.

.. math:: \mathrm{AP}_k = \sum_j (R_j - R_{j-1})\, P_j

The sum runs over the distinct scores of class k in descending order. :math:`P_j` and :math:`R_j` are the precision and
recall of the rows that score at least as much. Tied scores form one step, and nothing is interpolated. Entries with an
unknown label (-1) are left out of their class.
"""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

from tagspread.aliases import Progress
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
from tagspread.core.threads import threads_for
from tagspread.errors import TagspreadError, check_choice

CELLS_AT_ONCE = 2**23  # entries processed together: bounds the memory for data of any size


def average_precision(scores: ArrayLike, y: ArrayLike) -> Array:
    """Compute the average precision (AP) of each class, between 0 and 1; NaN for a class without a positive.

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
    """Compute the mean average precision (mAP) over classes, between 0 and 1.

    Args:
        scores: rows x classes, higher means more likely present.
        y: rows x classes matrix of 1, 0 and -1 (unknown).
        absent: how to treat a class without a positive: ``"skip"`` leaves it out of the mean, ``"zero"`` counts it as
            0, as scikit-learn and CAP's released code do.
        return_skipped: also return the number of classes left out.

    Returns:
        The mean (NaN if no class has a positive and all are skipped); with ``return_skipped``, a pair of the mean and
            the
        number of skipped classes.

    >>> mean_average_precision([[0.9, 0.1], [0.8, 0.3]], [[1, 0], [0, 0]])
    1.0
    >>> mean_average_precision([[0.9, 0.1], [0.8, 0.3]], [[1, 0], [0, 0]], absent="zero")
    0.5
    >>> mean_average_precision([[0.9, 0.1], [0.8, 0.3]], [[1, 0], [0, 0]], return_skipped=True)
    (1.0, 1)
    """
    check_choice("absent", absent, ("skip", "zero"))
    per_class = as_tensor("scores", average_precision(scores, y))
    n_absent = int(per_class.isnan().sum())
    mean = (per_class.nanmean() if absent == "skip" else per_class.nan_to_num(0.0).mean()).item()
    return (mean, n_absent if absent == "skip" else 0) if return_skipped else mean


def mean_average_precision_interval(
    scores: ArrayLike,
    y: ArrayLike,
    absent: str = "skip",
    *,
    confidence: float = 0.9,
    samples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[float, float]:
    """Compute a confidence interval for the mAP by the basic bootstrap over rows.

    Args:
        scores: rows x classes, higher means more likely present.
        y: rows x classes matrix of 1, 0 and -1 (unknown).
        absent: as in :func:`mean_average_precision`, applied to each bootstrap sample.
        confidence: confidence level of the interval.
        samples: number of bootstrap samples.
        seed: seed of the bootstrap; the same seed gives the same interval on every device.
        progress: called with the number of finished and of all bootstrap samples.

    Returns:
        ``(low, high)``.

    >>> low, high = mean_average_precision_interval([[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]], seed=1)
    >>> 0 < low < mean_average_precision([[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]]) < high <= 1
    True
    """
    means = resampled_means(scores, y, absent, samples, seed, progress)
    return basic_interval(mean_average_precision(scores, y, absent), means, confidence)


def resampled_means(
    scores: ArrayLike, y: ArrayLike, absent: str, samples: int, seed: int, progress: Progress | None = None
) -> Tensor:
    """Compute the mAP of each bootstrap sample. The same seed draws the same rows, whatever the scores."""
    check_choice("absent", absent, ("skip", "zero"))
    checked, labels = _check(scores, y)
    samples_drawn = resampling_counts(len(checked), samples, seed, CELLS_AT_ONCE, checked.device)
    columns = [_RankedClass(column, label) for column, label in zip(checked.t(), labels.t(), strict=True)]
    means = []
    with threads_for(len(checked) * samples):
        for drawn in samples_drawn:
            per_class = torch.stack([column.average_precision(drawn) for column in columns])
            means.append(per_class.nanmean(0) if absent == "skip" else per_class.nan_to_num(0.0).mean(0))
            if progress is not None:
                progress(sum(map(len, means)), samples)
    return torch.cat(means)


def average_precision_interval(
    scores: ArrayLike,
    y: ArrayLike,
    *,
    confidence: float = 0.9,
    samples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Array, Array]:
    """Compute a confidence interval for the average precision of each class, by the basic bootstrap over rows.

    The arguments are those of :func:`mean_average_precision_interval`. Classes without a positive get NaN.

    >>> low, high = average_precision_interval([[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]], seed=1)
    >>> bool(0 < low[0] < average_precision([[0.9], [0.8], [0.4], [0.3]], [[1], [0], [1], [0]])[0] < high[0] <= 1)
    True
    """
    checked, labels = _check(scores, y)
    columns = [_RankedClass(column, label) for column, label in zip(checked.t(), labels.t(), strict=True)]
    samples_drawn = resampling_counts(len(checked), samples, seed, CELLS_AT_ONCE, checked.device)
    parts: list[Tensor] = []
    with threads_for(len(checked) * samples):
        for drawn in samples_drawn:
            parts.append(torch.stack([column.average_precision(drawn) for column in columns]))
            if progress is not None:
                progress(sum(part.shape[1] for part in parts), samples)
    values = torch.cat(parts, 1)
    estimates = as_tensor("scores", average_precision(scores, y)).tolist()
    ends = [
        (math.nan, math.nan) if math.isnan(estimate) else basic_interval(estimate, drawn, confidence)
        for estimate, drawn in zip(estimates, values, strict=True)
    ]
    low, high = torch.tensor(ends, dtype=torch.float64, device=checked.device).t()
    return like(low, scores), like(high, scores)


def multilabel_report(pred: ArrayLike, y: ArrayLike, *, undefined: str = "zero") -> dict[str, float]:
    """Compute overall and per-class precision, recall and F1 of hard decisions: OP, OR, OF1, CP, CR, CF1.

    CF1 is the harmonic mean of CP and CR, as in the literature, not the mean of the classes' F1.

    Args:
        pred: rows x classes decisions, 1 or 0.
        y: rows x classes matrix of 1, 0 and -1 (unknown, left out of its class).
        undefined: how to treat the precision of a class that occurs but is never predicted. ``"zero"`` counts it as 0.
            ``"skip"`` leaves the class out of CP, as CAP's released code does, which makes CP too high. Classes that
            never occur have no recall and are left out of CR in both cases.

    Returns:
        The six values by name, each between 0 and 1.

    >>> report = multilabel_report([[1, 0], [1, 0]], [[1, 1], [0, 0]])
    >>> {name: round(value, 3) for name, value in report.items()}
    {'OP': 0.5, 'OR': 0.5, 'OF1': 0.5, 'CP': 0.25, 'CR': 0.5, 'CF1': 0.333}
    """
    check_choice("undefined", undefined, ("zero", "skip"))
    truth, decisions = as_labels("y", y), as_labels("pred", pred)
    check_same_shape("pred", decisions, "y", truth)
    if bool((decisions < 0).any()):
        raise TagspreadError("pred holds -1; a decision is 1 or 0. Mask unknown entries in y instead.")
    has_label = truth >= 0
    hits, predicted, true = (
        mask.sum(0).to(torch.float64)
        for mask in ((decisions == 1) & (truth == 1), (decisions == 1) & has_label, truth == 1)
    )
    # 0 / 0 is NaN and is left out of the mean
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
    """Compute the average precision of each class as the mean, over its positives, of the precision at their score.

    A positive with score s adds 1 / positives of recall at precision (positives >= s) / (labeled >= s). Two sorted
    lists of scores are therefore enough: no index has to be sorted along, and ties need no special case.
    """
    rows = len(scores)
    positives, n_labeled = (labels == 1).sum(0).unsqueeze(1), (labels >= 0).sum(0).unsqueeze(1)
    by_class, label = scores.t().to(rank_dtype(scores)), labels.t()
    all_scores = sort_rows(torch.where(label >= 0, by_class, -torch.inf))

    # the scores of the positives of each class, ascending, padded with inf to one length
    class_index, row = (label == 1).nonzero(as_tuple=True)
    position = torch.arange(len(row), device=row.device) - (positives.cumsum(0) - positives)[class_index, 0]
    positive_scores = by_class.new_full((len(by_class), int(positives.max())), torch.inf)
    positive_scores[class_index, position] = by_class[class_index, row]
    positive_scores = sort_rows(positive_scores)

    hits = positives - torch.searchsorted(positive_scores, positive_scores)
    predicted = (rows - torch.searchsorted(all_scores, positive_scores)).minimum(n_labeled)  # unknown entries are -inf
    is_positive = torch.arange(positive_scores.shape[1], device=row.device) < positives  # not padding
    precision = torch.where(is_positive, hits.double() / predicted, 0.0)
    return precision.sum(1, dtype=torch.float64) / positives.squeeze(1)  # 0 / 0 is NaN: no positive


class _RankedClass:
    """One class, ranked once, whose average precision is then computed for many weightings of the rows."""

    def __init__(self, scores: Tensor, labels: Tensor) -> None:
        labeled_rows = (labels >= 0).nonzero().squeeze(1)
        ranked, order = scores[labeled_rows].to(rank_dtype(scores)).sort(descending=True)
        self.rows = labeled_rows[order]
        is_positive = labels[self.rows] == 1
        self.positive_rows = self.rows[is_positive]
        positive_scores = ranked[is_positive]
        # the last entry, and the last positive, that score at least as much as each positive
        self.last_entry = torch.searchsorted(-ranked, -positive_scores, right=True) - 1
        self.last_positive = torch.searchsorted(-positive_scores, -positive_scores, right=True) - 1

    def average_precision(self, times: Tensor) -> Tensor:
        """Return one average precision per row of ``times``, which holds how often each data row was drawn."""
        weight = times[:, self.positive_rows]
        hits = weight.cumsum(1)[:, self.last_positive]
        predicted = times[:, self.rows].cumsum(1)[:, self.last_entry]
        # a positive that was not drawn has weight 0; the clamp avoids 0 / 0 if no row above it was drawn either
        return (weight * hits / predicted.clamp(min=1)).sum(1, dtype=torch.float64) / weight.sum(1)
