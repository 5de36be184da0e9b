"""From a feature matrix, as a user has it, to rows for the engine, and from its head to one for the user's features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from tagspread.linear.feature_rows import DenseRows, Rows, SparseRows
from tagspread.linear.heads import Layers

ROWS_AT_ONCE = 16_384
FARTHEST = 10.0  # spreads from 0, where nothing is taken off; divided by its spread, such a feature would drown others
LENGTH = 10.0  # rows that are not standardized get this length on average, so that penalties mean much the same


@dataclass(frozen=True)
class Scaling:
    """What is taken off every feature and what it is divided by; nothing is taken off sparse ones."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, matrices: list[Any], *, standardize: bool) -> Scaling:
        """Look at all rows, labeled or not.

        Args:
            matrices: dense arrays, or scipy matrices of compressed rows.
            standardize: bring each feature of dense rows to mean 0 and variance 1. Features of sparse rows are divided
                by their spread and then, like all that are not standardized, by one number. Sparse rows of one
                common length, such as those of TF-IDF, are only divided by that: a rare word would outweigh all others.
        """
        width, count = matrices[0].shape[1], sum(matrix.shape[0] for matrix in matrices)
        total, square = np.zeros(width), np.zeros(width)
        first = matrices[0][:1]
        # squares are taken about the first row: features far from 0 would drown their variance in rounding
        about = np.asarray(first, np.float64)[0] if isinstance(first, np.ndarray) and standardize else np.zeros(width)
        for matrix in matrices:
            for at in range(0, matrix.shape[0], ROWS_AT_ONCE):
                block = matrix[at : at + ROWS_AT_ONCE].astype(np.float64)
                if isinstance(block, np.ndarray):
                    block -= about
                    total += block.sum(0)
                    square += np.einsum("ij,ij->j", block, block)
                else:
                    total += np.asarray(block.sum(0)).ravel()
                    square += np.asarray(block.multiply(block).sum(0)).ravel()
        if standardize and isinstance(first, np.ndarray):
            mean = total / count
            spread = np.sqrt(np.maximum(square / count - mean**2, 0))
            tiny = 10 * np.finfo(np.float64).eps * np.abs(about + mean)  # a constant feature, but for rounding
            return cls(about + mean, np.where(spread > tiny, spread, 1.0))
        scale = np.ones(width)
        if standardize and not _of_one_length(matrices):
            level = np.sqrt(square / count)
            spread = np.sqrt(np.maximum(square / count - (total / count) ** 2, 0))
            scale = np.maximum(spread, level / FARTHEST)
            scale[level == 0] = 1.0
        length = np.sqrt((square / scale**2).sum() / count)
        return cls(np.zeros(width), scale * (length / LENGTH if length > 0 else 1.0))

    def rows(self, pieces: Sequence[tuple[Any, np.ndarray]], device: torch.device) -> Rows:
        """Return the rows named of each matrix, one after the other, scaled, in float32: the only copy that is made."""
        if not isinstance(pieces[0][0], np.ndarray):
            stacked = sparse.vstack([matrix[which] for matrix, which in pieces], format="csr", dtype=np.float32)
            stacked.data /= self.scale.astype(np.float32)[stacked.indices]
            return SparseRows(stacked)
        count, width = sum(len(which) for _, which in pieces), len(self.mean)
        scaled, done = torch.empty(count, width), 0
        for matrix, which in pieces:
            for at in range(0, len(which), ROWS_AT_ONCE):
                block = (matrix[which[at : at + ROWS_AT_ONCE]] - self.mean) / self.scale
                scaled[done : done + len(block)] = torch.from_numpy(block)
                done += len(block)
        return DenseRows(scaled.to(device))

    def undo(self, layers: Layers) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the layers that give the same scores for features as they came, in float64."""
        (first, offset), *rest = [(_numpy(weight), _numpy(bias)) for weight, bias in layers]
        first = first / self.scale
        return [(first, offset - first @ self.mean), *rest]


def _of_one_length(matrices: list[Any]) -> bool:
    """Return whether all rows of sparse matrices that hold anything are equally long."""
    squares = np.concatenate([np.asarray(matrix.multiply(matrix).sum(1)).ravel() for matrix in matrices])
    lengths = np.sqrt(squares[squares > 0])
    return bool(len(lengths) and np.ptp(lengths) <= 1e-3 * lengths.max())


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().double().numpy()
    return array
