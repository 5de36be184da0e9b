r"""Top-1 and top-k: instance-aware baselines that give every image the same number of tags.

.. math:: T_{jk} = [\, k \text{ is among the } l \text{ highest of } f_{j1}, \dots, f_{jq} \,]

``top1``: l = 1 (the paper's eq. 2). ``topk``: l is the average number of tags in the labeled set, rounded up (eq. 3).
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
    """Return 1 for the ``count`` highest classes of each row, else 0; ties go to the lower class index.

    >>> top_targets(torch.tensor([[0.5, 0.5, 0.1]]), 1).tolist()
    [[1, 0, 0]]
    """
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices  # by rank: ties never add a tag
    return torch.zeros_like(scores, dtype=torch.int8).scatter_(1, order[:, :count], 1)


@dataclass(frozen=True)
class Top1(Method):
    """Top-1: label the most probable class of each image positive, all others negative."""

    summary: ClassVar[str] = "one tag per image: the most probable class"

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Label the highest class of each row."""
        return Targets(top_targets(scores, 1))


@dataclass(frozen=True)
class TopK(Method):
    """Top-k: label the same number of tags in every image.

    Attributes:
        k: number of tags; by default, the average in the labeled set, rounded up.
    """

    summary: ClassVar[str] = "k tags per image; k is the average number of tags per labeled image, rounded up"
    k: int | None = None

    def __post_init__(self) -> None:
        if self.k is not None and (not isinstance(self.k, Integral) or self.k < 1):
            raise TagspreadError(
                f"k is {self.k!r}; give a whole number of tags per image, at least 1, or None for the labeled average."
            )

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Label the k highest classes of each row."""
        # subtracting 1e-9 keeps a mean that is an integer up to rounding, such as 2.0000000001, at 2
        k = self.k or max(1, math.ceil(labeled.tags_per_item - 1e-9))
        return Targets(top_targets(scores, min(k, scores.shape[1])))
