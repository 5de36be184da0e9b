"""The bootstrap: how much would a figure move if other rows of the same kind had been drawn?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Integral

import torch
from torch import Tensor

from tagspread.errors import TagspreadError

FEWEST = 5  # positives for an interval: drawn anew, one that was ranked first always is so again, as if that were sure


def few_positives(positives: Sequence[int]) -> int:
    """Return how many classes occur, but too seldom for their figure to be worth much.

    >>> few_positives([0, 1, 4, 5, 80])
    2
    """
    return sum(0 < count < FEWEST for count in positives)


def few_in_words(few: int, classes: int) -> str | None:
    """Return what it means for a mean over classes that so many of them are rare; None if those are less than half."""
    if 2 * few < max(1, classes):
        return None
    return (
        f"{few} of {classes} tags are on fewer than {FEWEST} of these images; the mAP then comes out too high and "
        "its interval too narrow"
    )


def resampling_counts(rows: int, samples: int, seed: int, cells: int, device: torch.device) -> Iterator[Tensor]:
    """Yield, in batches of at most ``cells`` entries, how often each row was drawn in each resampled data set.

    Drawn on the CPU, so that a seed means the same on every device.
    """
    if not isinstance(samples, Integral) or samples < 1:
        raise TagspreadError(f"samples is {samples}; draw the rows at least once, better 1000 times.")
    generator = torch.Generator().manual_seed(seed)
    batch = max(1, cells // rows)
    for at in range(0, samples, batch):
        size = (min(batch, samples - at), rows)
        drawn = torch.randint(rows, size, generator=generator)
        yield torch.zeros(size).scatter_add_(1, drawn, torch.ones(size)).to(device)


def basic_interval(
    estimate: float, values: Tensor, confidence: float, bounds: tuple[float, float] = (0.0, 1.0)
) -> tuple[float, float]:
    """Return the basic bootstrap interval: the spread of the resampled values, mirrored at the estimate.

    Average precision comes out too high on few positives, and higher still on resampled ones, where fewer
    are distinct. Mirroring takes most of that bias out where classes have many positives; the plain percentiles of
    ``values`` would double it. With a handful of positives per class the interval stays too narrow. On a handful of
    rows mirroring can shift the interval past the estimate; it is then stretched to reach it.

    >>> basic_interval(0.5, torch.tensor([0.3, 0.4]), 0.9)[0]
    0.5
    """
    check_confidence(confidence)
    tail = (1 - confidence) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=values.dtype, device=values.device)
    low, high = torch.nanquantile(values, ends).tolist()
    if math.isnan(low):  # no resampled set had anything to measure
        return math.nan, math.nan
    low, high = min(estimate, 2 * estimate - high), max(estimate, 2 * estimate - low)
    return max(low, bounds[0]), min(high, bounds[1])


def check_confidence(confidence: float) -> None:
    """Raise unless ``confidence`` lies strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise TagspreadError(f"confidence is {confidence}; give a number between 0 and 1, such as 0.9.")
