"""Exact confidence interval of a proportion (Clopper and Pearson), without PyTorch: small processes use it too."""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv


def clopper_pearson(positives: np.ndarray, total: np.ndarray, confidence: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Invert the binomial tails, using that the binomial distribution function is an incomplete beta function.

    Args:
        positives: number of positives of each proportion.
        total: number of observations of each proportion, at least 1.
        confidence: confidence level of each interval.

    >>> low, high = clopper_pearson(np.array([6]), np.array([285]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.009], [0.041])
    """
    tail = (1 - confidence) / 2
    low = np.where(positives == 0, 0.0, betaincinv(np.maximum(positives, 1), total - positives + 1, tail))
    high = np.where(positives == total, 1.0, betaincinv(positives + 1, np.maximum(total - positives, 1), 1 - tail))
    return low, high
