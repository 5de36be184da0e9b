r"""Multilayer perceptron (MLP) head with one hidden layer, trained by Adam.

The scores are :math:`z = W_2 \max(W_1 x + b_1, 0) + b_2`. The loss is that of :mod:`tagspread.linear.logistic`, with
the penalty on both weights. It is not convex: the seed determines the starting point, and the same seed gives the same
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.core.threads import threads_for
from tagspread.linear.heads import Block, Layers, Part, residuals, total_share


@dataclass(frozen=True)
class PerceptronHead:
    """An MLP with one small hidden layer.

    Attributes:
        hidden: number of hidden units.
        steps: number of Adam steps; each uses one block of rows of every part.
        lr: initial learning rate; it decreases to 0 by a cosine schedule.
        seed: seed of the initial weights.
    """

    convex: ClassVar[bool] = False
    hidden: int = 64
    steps: int = 300
    lr: float = 0.01
    seed: int = 0

    def start(self, width: int, classes: int, device: torch.device) -> Layers:
        """Return small random weights for the hidden layer and zeros for the output layer."""
        generator = torch.Generator().manual_seed(self.seed)
        first = torch.randn(self.hidden, width, generator=generator) / max(1, width) ** 0.5
        return (
            (first.to(device), torch.zeros(self.hidden, device=device)),
            (torch.zeros(classes, self.hidden, device=device), torch.zeros(classes, device=device)),
        )

    def fit(self, parts: Sequence[Part], start: Layers, ridge: float) -> Layers:
        """Minimize the loss by Adam."""
        layers = [tensor.clone().requires_grad_() for layer in start for tensor in layer]
        optimizer = torch.optim.Adam(layers, lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        blocks = [(part, list(part.rows.blocks())) for part in parts]
        with threads_for(sum(part.rows.numbers for part in parts)):
            for step in range(self.steps):
                now = [(part, *found[step % len(found)], len(found)) for part, found in blocks if found]
                for tensor, slope in zip(layers, _slopes(now, layers, ridge, total_share(parts)), strict=True):
                    tensor.grad = slope
                optimizer.step()
                schedule.step()
        first, offset, last, bias = (tensor.detach() for tensor in layers)
        return (first, offset), (last, bias)

    def coarse(self) -> PerceptronHead:
        """Return the same head with a third of the steps."""
        return replace(self, steps=max(1, self.steps // 3))


@torch.no_grad()
def _slopes(
    now: Sequence[tuple[Part, slice, Block, int]], layers: Sequence[Tensor], ridge: float, size: float
) -> list[Tensor]:
    """Return the gradients of the loss on these blocks, each of which stands for all ``count`` blocks of its part."""
    first, offset, last, bias = (layer.detach() for layer in layers)
    slopes = [ridge * first, torch.zeros_like(offset), ridge * last, torch.zeros_like(bias)]
    for part, where, block, count in now:
        inside = block.times(first).add_(offset).relu_()
        residual = residuals(inside @ last.T + bias, part, where, block).mul_(part.share * count / size)
        below = (residual @ last).mul_(inside > 0)
        for slope, more in zip(
            slopes,
            (block.transposed_times(below), below.sum(0), residual.T @ inside, residual.sum(0)),
            strict=True,
        ):
            slope.add_(more)
    return slopes
