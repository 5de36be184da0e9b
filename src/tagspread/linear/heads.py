"""What is fitted on features: anything that can be fitted on parts, warm-started, and asked for scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from tagspread.linear.feature_rows import Rows

Layers: TypeAlias = tuple[tuple[Tensor, Tensor], ...]  # (weight, bias) of each layer, the last gives the scores


class Part(NamedTuple):
    """Rows that are trained on.

    Attributes:
        rows: the features.
        labels: rows x classes: 1, 0, -1 ignored, or soft.
        weight: importance of each entry, if not all 1.
        share: importance of the whole part's rows against those of other parts.
    """

    rows: Rows
    labels: Tensor
    weight: Tensor | None = None
    share: float = 1.0


class Head(Protocol):
    """A family of functions from features to scores."""

    @property
    def convex(self) -> bool:
        """Whether a fit ends in the same place wherever it starts; else how long it was fitted matters, too."""

    def start(self, width: int, classes: int, device: torch.device) -> Layers:
        """Return the layers to begin with."""

    def fit(self, parts: Sequence[Part], start: Layers, ridge: float) -> Layers:
        """Return the layers that fit the parts' labels, looked for from ``start`` on."""

    def coarse(self) -> Head:
        """Return a hastier fitter of the same kind, good enough to compare settings."""


@torch.no_grad()
def scores(rows: Rows, layers: Layers) -> Tensor:
    """Return the logits of each row, the mean over its views."""
    total = torch.zeros(len(rows), len(layers[-1][1]), device=rows.device)
    (first, offset), *rest = layers
    for where, block in rows.blocks():
        out = block.times(first) + offset
        for weight, bias in rest:
            out = out.relu() @ weight.T + bias
        total[where] += out
    return total / rows.views


def total_share(parts: Sequence[Part]) -> float:
    """Return what the loss is divided by: how many rows there are, each as important as its part."""
    return sum(part.share * part.rows.views * len(part.rows) for part in parts)


def entry_losses(logits: Tensor, part: Part, where: slice) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of a block of one part, summed, and its derivative by the logits."""
    labels = part.labels[where].to(logits.dtype)
    weight = (labels >= 0).to(logits.dtype)
    if part.weight is not None:
        weight *= part.weight[where]
    loss = weight * (torch.nn.functional.softplus(logits) - labels * logits)
    return part.share * loss.sum(dtype=torch.float64), logits.sigmoid().sub_(labels).mul_(weight.mul_(part.share))
