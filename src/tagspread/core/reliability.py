r"""Score reliability: the share of positives per score bin, interpolated between bins.

DiCaP weights pseudo-labels by it. Scores between 0 and 1 fall into K bins of equal width; :math:`r_b` is the share of
positives in bin b. Between bins the share is interpolated linearly:

.. math:: w(s) = (1 - t)\, r_b + t\, r_{b+1}, \qquad b = \lfloor K s \rfloor,\ t = K s - b
"""

from __future__ import annotations

import torch
from torch import Tensor

from tagspread.errors import TagspreadError


def share_of_positives(logits: Tensor, y: Tensor, bins: int) -> Tensor:
    """Return the share of positives in each score bin, over entries with a known label.

    An empty bin takes the share of its nearest non-empty neighbor.

    >>> share_of_positives(torch.tensor([[-9.0], [9.0], [9.0]]), torch.tensor([[0], [1], [0]]), 4).tolist()
    [0.0, 0.0, 0.5, 0.5]
    """
    has_label = y >= 0
    bin_index = (logits[has_label].sigmoid() * bins).long().clamp(max=bins - 1)
    count = torch.bincount(bin_index, minlength=bins)
    positive = torch.bincount(bin_index[y[has_label] == 1], minlength=bins)
    filled = count.nonzero().flatten()
    if not len(filled):
        raise TagspreadError("no known label to measure correctness on; label more items, or set more of them apart.")
    nearest = (torch.arange(bins, device=logits.device)[:, None] - filled).abs().argmin(1)
    shares: Tensor = positive[filled] / count[filled]
    return shares[nearest]


def interpolate(f: Tensor, shares: Tensor) -> Tensor:
    """Return the share of positives at each score: linear between bins, constant in the last bin."""
    scaled = f * len(shares)
    bin_index = scaled.long().clamp(max=len(shares) - 1)
    next_bin = (bin_index + 1).clamp(max=len(shares) - 1)
    return torch.lerp(shares[bin_index], shares[next_bin], (scaled - bin_index).clamp(0, 1))
