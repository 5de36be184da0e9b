r"""Instance-aware baselines by count: the same number of tags for every image.

.. math:: T_{jk} = [\, k \text{ is among the } l \text{ highest of } f_{j1}, \dots, f_{jq} \,]

``top1``: l = 1 (the paper's eq. 2). ``topk``: l is the labeled part's average number of tags, rounded up (eq. 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.errors import TagspreadError
from tagspread.methods.base import Labeled, Method, State, Targets


def top_targets(scores: Tensor, count: int) -> Tensor:
    """Return 1 for the ``count`` highest classes of each row, else 0; equal scores go to the lower class.

    >>> top_targets(torch.tensor([[0.5, 0.5, 0.1]]), 1).tolist()
    [[1, 0, 0]]
    """
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices  # by index: ties never add a tag
    return torch.zeros_like(scores, dtype=torch.int8).scatter_(1, order[:, :count], 1)


@dataclass(frozen=True)
class Top1(Method):
    """One tag per image: its most probable class; all others are negative."""

    summary: ClassVar[str] = "one tag per image, its most probable class"

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Take the highest class of each row."""
        return Targets(top_targets(scores, 1))


@dataclass(frozen=True)
class TopK(Method):
    """The same number of tags for every image.

    Attributes:
        k: how many; by default the labeled part's average, rounded up.
    """

    summary: ClassVar[str] = "k tags per image, k the labeled average rounded up"
    k: int | None = None

    def __post_init__(self) -> None:
        if self.k is not None and (not isinstance(self.k, Integral) or self.k < 1):
            raise TagspreadError(
                f"k is {self.k!r}; give each image a whole number of tags, at least one, or leave it to the average."
            )

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Take the k highest classes of each row."""
        # the small step down keeps a mean that is whole but for rounding, such as 2.0000000001, at 2
        k = self.k or max(1, math.ceil(labeled.tags_per_item - 1e-9))
        return Targets(top_targets(scores, min(k, scores.shape[1])))
