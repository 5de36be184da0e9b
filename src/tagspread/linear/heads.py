"""Heads fitted on features: the protocol that heads implement, the data they are fitted on, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from tagspread.linear.feature_rows import Rows

Layers: TypeAlias = tuple[tuple[Tensor, Tensor], ...]  # (weight, bias) of each layer; the last layer outputs the scores


class Part(NamedTuple):
    """A set of rows to train on.

    Attributes:
        rows: features.
        labels: rows x classes: 1, 0, -1 ignored, or soft targets.
        weight: weight of each entry; None means 1 everywhere.
        share: weight of these rows relative to the rows of other parts.
    """

    rows: Rows
    labels: Tensor
    weight: Tensor | None = None
    share: float = 1.0


class Head(Protocol):
    """A family of functions from features to scores."""

    @property
    def convex(self) -> bool:
        """Whether the result of a fit does not depend on its starting point."""

    def start(self, width: int, classes: int, device: torch.device) -> Layers:
        """Return the initial layers."""

    def fit(self, parts: Sequence[Part], start: Layers, ridge: float) -> Layers:
        """Fit the layers to the labels of the parts, starting from ``start``."""

    def coarse(self) -> Head:
        """Return a faster, less exact head of the same kind, for comparing settings."""


@torch.no_grad()
def scores(rows: Rows, layers: Layers) -> Tensor:
    """Compute the logits of each row, averaged over its views."""
    total = torch.zeros(len(rows), len(layers[-1][1]), device=rows.device)
    (first, offset), *rest = layers
    for block_slice, block in rows.blocks():
        out = block.times(first) + offset
        for weight, bias in rest:
            out = out.relu() @ weight.T + bias
        total[block_slice] += out
    return total / rows.views


def total_share(parts: Sequence[Part]) -> float:
    """Return the divisor of the loss: the number of rows, each weighted by the share of its part."""
    return sum(part.share * part.rows.views * len(part.rows) for part in parts)


def entry_losses(logits: Tensor, part: Part, block_slice: slice) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of a block of one part, and its gradient with respect to the logits."""
    labels = part.labels[block_slice].to(logits.dtype)
    weight = (labels >= 0).to(logits.dtype)
    if part.weight is not None:
        weight *= part.weight[block_slice]
    loss = weight * (torch.nn.functional.softplus(logits) - labels * logits)
    return part.share * loss.sum(dtype=torch.float64), logits.sigmoid().sub_(labels).mul_(weight.mul_(part.share))
