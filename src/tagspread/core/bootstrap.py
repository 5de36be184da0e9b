"""Bootstrap confidence intervals: resample rows with replacement, return the basic (reverse percentile) interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Integral

import torch
from torch import Tensor

from tagspread.errors import TagspreadError

# Positives that a class needs for an interval. With fewer, the bootstrap underestimates the spread: a single positive
# that is ranked first is ranked first in every sample.
MIN_POSITIVES = 5


def count_rare_classes(positives: Sequence[int]) -> int:
    """Count the classes that occur, but on fewer than ``MIN_POSITIVES`` rows: too few for a reliable metric.

    >>> count_rare_classes([0, 1, 4, 5, 80])
    2
    """
    return sum(0 < count < MIN_POSITIVES for count in positives)


def rare_classes_warning(few: int, classes: int) -> str | None:
    """Return a warning about a mean over classes if at least half of them are rare; otherwise None."""
    if 2 * few < max(1, classes):
        return None
    return (
        f"{few} of {classes} tags are on fewer than {MIN_POSITIVES} of these images, so the mAP is too high and its "
        "interval too narrow"
    )


def resampling_counts(rows: int, samples: int, seed: int, cells: int, device: torch.device) -> Iterator[Tensor]:
    """Yield, in batches of at most ``cells`` entries, how often each row was drawn in each bootstrap sample.

    The rows are drawn on the CPU, so that a seed gives the same samples on every device.
    """
    if not isinstance(samples, Integral) or samples < 1:
        raise TagspreadError(f"samples is {samples}; draw at least 1 bootstrap sample, better 1000.")
    generator = torch.Generator().manual_seed(seed)
    batch = max(1, cells // rows)
    for at in range(0, samples, batch):
        size = (min(batch, samples - at), rows)
        drawn = torch.randint(rows, size, generator=generator)
        yield torch.zeros(size).scatter_add_(1, drawn, torch.ones(size)).to(device)


def basic_interval(
    estimate: float, values: Tensor, confidence: float, bounds: tuple[float, float] = (0.0, 1.0)
) -> tuple[float, float]:
    """Return the basic bootstrap interval: the quantiles of the resampled values, mirrored at the estimate.

    Average precision is biased upwards on few positives, and more so on bootstrap samples, which hold fewer distinct
    positives. Mirroring removes most of this bias for classes with many positives; the percentile interval would
    double it. With a handful of positives per class the interval is still too narrow. With a handful of rows,
    mirroring can move the interval past the estimate; it is then extended to include the estimate.

    >>> basic_interval(0.5, torch.tensor([0.3, 0.4]), 0.9)[0]
    0.5
    """
    check_confidence(confidence)
    tail = (1 - confidence) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=values.dtype, device=values.device)
    low, high = torch.nanquantile(values, ends).tolist()
    if math.isnan(low):  # no bootstrap sample held a positive
        return math.nan, math.nan
    low, high = min(estimate, 2 * estimate - high), max(estimate, 2 * estimate - low)
    return max(low, bounds[0]), min(high, bounds[1])


def check_confidence(confidence: float) -> None:
    """Raise unless ``confidence`` lies strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise TagspreadError(f"confidence is {confidence}; give a number between 0 and 1, such as 0.9.")
