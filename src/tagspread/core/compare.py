r"""Paired model comparison: the difference of two models' mAP with a paired bootstrap interval.

.. math:: d = \mathrm{mAP}(S, Y) - \mathrm{mAP}(S', Y), \qquad
          d_b = \mathrm{mAP}(S_{I_b}, Y_{I_b}) - \mathrm{mAP}(S'_{I_b}, Y_{I_b})

Both models are evaluated on the same bootstrap samples :math:`I_b`. Variation that comes from the rows affects both and
cancels, so the paired interval shows a difference long before the two separate intervals stop overlapping.
"""

from __future__ import annotations

from tagspread.core.arrays import ArrayLike
from tagspread.core.bootstrap import basic_interval
from tagspread.core.metrics import mean_average_precision, resampled_means


def paired_difference_interval(
    scores: ArrayLike,
    other: ArrayLike,
    y: ArrayLike,
    absent: str = "skip",
    *,
    confidence: float = 0.9,
    samples: int = 1000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Return how much the mAP of ``scores`` exceeds that of ``other``, with a confidence interval.

    Args:
        scores: rows x classes scores of one model, higher means more likely present.
        other: rows x classes scores of the other model.
        y: rows x classes matrix of 1, 0 and -1 (unknown).
        absent: as in :func:`~tagspread.core.metrics.mean_average_precision`.
        confidence: confidence level of the interval.
        samples: number of bootstrap samples.
        seed: seed of the bootstrap; the same seed gives the same interval on every device.

    Returns:
        ``(difference, low, high)`` by the basic bootstrap over rows; NaN if no class has a positive.

    >>> better, worse = [[0.9], [0.8], [0.4], [0.3]], [[0.1], [0.8], [0.4], [0.9]]
    >>> difference, low, high = paired_difference_interval(better, worse, [[1], [1], [0], [0]], seed=1)
    >>> round(difference, 3), low < difference <= high
    (0.5, True)
    """
    difference = mean_average_precision(scores, y, absent) - mean_average_precision(other, y, absent)
    resampled = resampled_means(scores, y, absent, samples, seed) - resampled_means(other, y, absent, samples, seed)
    return difference, *basic_interval(difference, resampled, confidence, bounds=(-1.0, 1.0))
