"""Heads fitted on features: the protocol that heads implement, the feature rows they are fitted on, and their scores.

Feature matrices, dense or sparse, are read block by block, so that the solvers never copy them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from tagspread.core.threads import threads_for

NUMBERS_PER_BLOCK = 2**20  # 4 MB: the second pass over a block finds it in the processor's cache
Layers: TypeAlias = tuple[tuple[Tensor, Tensor], ...]  # (weight, bias) of each layer; the last layer outputs the scores


class Block(Protocol):
    """Some rows of one view."""

    def times(self, weight: Tensor) -> Tensor:
        """Return rows x outputs for a weight of outputs x features."""

    def transposed_times(self, residual: Tensor) -> Tensor:
        """Return outputs x features for a residual of rows x outputs."""


class Rows(Protocol):
    """Rows with ``width`` features each, in one or more ``views``."""

    width: int
    views: int
    device: torch.device

    def __len__(self) -> int: ...

    @property
    def numbers(self) -> int:
        """How many numbers one pass over the rows reads."""

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Yield, view by view, the slice of the rows and the block that holds them."""

    def take(self, rows: Tensor) -> Rows:
        """Return the selected rows."""


@dataclass(frozen=True)
class DenseBlock:
    """Some rows of a matrix."""

    matrix: Tensor

    def times(self, weight: Tensor) -> Tensor:
        """Return rows x outputs."""
        return self.matrix @ weight.T

    def transposed_times(self, residual: Tensor) -> Tensor:
        """Return outputs x features."""
        return residual.T @ self.matrix


class DenseRows:
    """A tensor of rows x features or views x rows x features, on any device."""

    def __init__(self, features: Tensor) -> None:
        self.features = features if features.ndim == 3 else features[None]
        self.views, _, self.width = self.features.shape
        self.device = features.device

    def __len__(self) -> int:
        return self.features.shape[1]

    @property
    def numbers(self) -> int:
        """Views x rows x features."""
        return self.features.numel()

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Yield blocks of about ``NUMBERS_PER_BLOCK`` numbers; blocks are larger on an accelerator."""
        numbers = NUMBERS_PER_BLOCK * (1 if self.device.type == "cpu" else 64)
        step = max(1, numbers // max(1, self.width))
        for view in self.features:
            for at in range(0, len(self), step):
                yield slice(at, at + step), DenseBlock(view[at : at + step])

    def take(self, rows: Tensor) -> DenseRows:
        """Return the selected rows."""
        return DenseRows(self.features[:, rows.to(self.device)])


@dataclass(frozen=True)
class SparseBlock:
    """Some rows of a scipy matrix."""

    matrix: Any

    def times(self, weight: Tensor) -> Tensor:
        """Return rows x outputs."""
        return torch.from_numpy(self.matrix @ weight.T.contiguous().numpy())

    def transposed_times(self, residual: Tensor) -> Tensor:
        """Return outputs x features."""
        return torch.from_numpy(self.matrix.T @ residual.numpy()).T


class SparseRows:
    """A scipy CSR matrix in float32. It stays sparse, so its features cannot be centered."""

    views = 1
    device = torch.device("cpu")

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.width = int(matrix.shape[1])

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def numbers(self) -> int:
        """The entries that are stored."""
        return int(self.matrix.nnz)

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Yield blocks of rows that hold about ``NUMBERS_PER_BLOCK`` numbers."""
        per_row = max(1, self.matrix.nnz // max(1, len(self)))
        step = max(1, NUMBERS_PER_BLOCK // (16 * per_row))  # with few numbers per row, the outputs dominate the memory
        for at in range(0, len(self), step):
            yield slice(at, at + step), SparseBlock(self.matrix[at : at + step])

    def take(self, rows: Tensor) -> SparseRows:
        """Return the selected rows."""
        return SparseRows(self.matrix[rows.cpu().numpy()])


class BlockLabels(Protocol):
    """Labels that are computed block by block, where those of all rows would not fit in memory."""

    def of(self, where: slice, block: Block) -> tuple[Tensor, Tensor | None]:
        """Return the labels of a block, and the weight of each entry."""


class Part(NamedTuple):
    """A set of rows to train on.

    Attributes:
        rows: features.
        labels: rows x classes: 1, 0, -1 ignored, or soft targets.
        weight: weight of each entry; None means 1 everywhere.
        share: weight of these rows relative to the rows of other parts.
    """

    rows: Rows
    labels: Tensor | BlockLabels
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
    with threads_for(rows.numbers):
        for block_slice, block in rows.blocks():
            out = block.times(first) + offset
            for weight, bias in rest:
                out = out.relu() @ weight.T + bias
            total[block_slice] += out
        return total / rows.views


def total_share(parts: Sequence[Part]) -> float:
    """Return the divisor of the loss: the number of rows, each weighted by the share of its part."""
    return sum(part.share * part.rows.views * len(part.rows) for part in parts)


def residuals(logits: Tensor, part: Part, block_slice: slice, block: Block, classes: Tensor | None = None) -> Tensor:
    """Return the gradient of the cross-entropy of a block of one part with respect to its logits.

    The share of the part is not included. The logits are overwritten.

    Args:
        logits: rows x classes.
        part: the part that the block belongs to.
        block_slice: rows of the block.
        block: the block.
        classes: columns of the labels; by default, all.
    """
    if isinstance(part.labels, Tensor):
        labels, weight = part.labels[block_slice], None if part.weight is None else part.weight[block_slice]
    else:
        labels, weight = part.labels.of(block_slice, block)
    if classes is not None:
        labels, weight = labels[:, classes], None if weight is None else weight[:, classes]
    found = logits.sigmoid_().sub_(labels).masked_fill_(labels < 0, 0.0)
    return found if weight is None else found.mul_(weight)
