r"""How often a score is right: the share of positives among items of about that score.

Scores in 0..1 fall into K equal bins; :math:`r_b` is the share of positives in bin b. Between bins it is interpolated:

.. math:: w(s) = (1 - t)\, r_b + t\, r_{b+1}, \qquad b = \lfloor K s \rfloor,\ t = K s - b
"""

from __future__ import annotations

import torch
from torch import Tensor

from tagspread.errors import TagspreadError


def share_of_positives(logits: Tensor, y: Tensor, bins: int) -> Tensor:
    """Return per bin of the score how many of the known entries are positive; empty bins ask their nearest neighbor.

    >>> share_of_positives(torch.tensor([[-9.0], [9.0], [9.0]]), torch.tensor([[0], [1], [0]]), 4).tolist()
    [0.0, 0.0, 0.5, 0.5]
    """
    known = y >= 0
    place = (logits[known].sigmoid() * bins).long().clamp(max=bins - 1)
    count = torch.bincount(place, minlength=bins)
    positive = torch.bincount(place[y[known] == 1], minlength=bins)
    filled = count.nonzero().flatten()
    if not len(filled):
        raise TagspreadError("no label is known to measure correctness on; label more items, or set more apart.")
    nearest = (torch.arange(bins, device=logits.device)[:, None] - filled).abs().argmin(1)
    shares: Tensor = positive[filled] / count[filled]
    return shares[nearest]


def interpolate(f: Tensor, shares: Tensor) -> Tensor:
    """Return the share at each score: straight lines from bin to bin, level in the last."""
    scaled = f * len(shares)
    place = scaled.long().clamp(max=len(shares) - 1)
    following = (place + 1).clamp(max=len(shares) - 1)
    return torch.lerp(shares[place], shares[following], (scaled - place).clamp(0, 1))
