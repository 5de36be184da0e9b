"""Feature scaling: standardize features for the solvers, and map fitted layers back to the original features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from tagspread.errors import TagspreadError
from tagspread.linear.heads import DenseRows, Layers, Rows, SparseRows
from tagspread.linear.stored import Piece, StoredRows

ROWS_AT_ONCE = 16_384
# Uncentered features are divided by at least a tenth of their root mean square: a nearly constant feature far from 0
# would otherwise dominate the others.
FARTHEST = 10.0
LARGEST = 1e150  # squares of larger features overflow in float64
LARGEST_SPARSE = 1e30  # sparse features are converted to float32 before they are scaled
LENGTH = 10.0  # mean length of rows that are not standardized, so that penalties have a comparable effect


def check_magnitude(argument: str, features: Any) -> Any:
    """Return features; raise if one is so large that computing with it overflows.

    >>> check_magnitude("X", np.array([[1.0, 2e200]]))
    Traceback (most recent call last):
    tagspread.errors.TagspreadError: X holds 2e+200 in row 0, feature 1, which is too large to compute with; ...
    """
    dense = isinstance(features, np.ndarray)
    values, largest = (features, LARGEST) if dense else (features.data, LARGEST_SPARSE)
    if values.size and max(float(values.max()), -float(values.min())) > largest:
        matrix = features if dense else features.tocoo()
        at = np.argwhere(np.abs(values.astype(np.float64)) > largest)[0]
        row, column = at.tolist() if dense else (int(matrix.row[at[0]]), int(matrix.col[at[0]]))
        raise TagspreadError(
            f"{argument} holds {values[tuple(at)]:g} in row {row}, feature {column}, which is too large to compute "
            "with; check where it comes from, scale the feature, or leave the row out."
        )
    return features


def check_memory_map(argument: str, features: np.memmap[Any, Any], width: int | None = None) -> np.memmap[Any, Any]:
    """Check a memory-mapped feature matrix block by block, and return it.

    Args:
        argument: name of the argument, for messages.
        features: the matrix.
        width: expected number of features.
    """
    if features.ndim != 2 or features.dtype.kind != "f":
        raise TagspreadError(
            f"{argument} is a memory map of {features.dtype} with shape {features.shape}; give rows x features of "
            "float16, float32 or float64."
        )
    if width is not None and features.shape[1] != width:
        raise TagspreadError(f"{argument} has {features.shape[1]} features but X has {width}; give the same features.")
    for at in range(0, len(features), ROWS_AT_ONCE):
        block = np.asarray(features[at : at + ROWS_AT_ONCE])
        if not np.isfinite(block).all():
            row, column = np.argwhere(~np.isfinite(block))[0].tolist()
            raise TagspreadError(
                f"{argument} holds {block[row, column]} in row {at + row}, feature {column}; replace it, or leave the "
                "row out."
            )
        check_magnitude(argument, block)
    return features


@dataclass(frozen=True)
class Scaling:
    """Offset and scale of every feature; the offset of sparse features is 0."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, matrices: list[Any], *, standardize: bool) -> Scaling:
        """Compute the scaling from all rows, labeled and unlabeled.

        Args:
            matrices: dense arrays, or scipy CSR matrices.
            standardize: scale each feature of dense rows to mean 0 and variance 1. Features of sparse rows are divided
                by their standard deviation and then, like all features that are not standardized, by one common number.
                Sparse rows of equal length, such as TF-IDF vectors, are divided by the common number only; otherwise
                rare words would dominate.
        """
        width, count = matrices[0].shape[1], sum(matrix.shape[0] for matrix in matrices)
        total, square = np.zeros(width), np.zeros(width)
        first = matrices[0][:1]
        # subtract the first row before squaring: otherwise rounding hides the variance of features far from 0
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
            tiny = 10 * np.finfo(np.float64).eps * np.abs(about + mean)  # constant up to rounding
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
        """Return the selected rows of each matrix, concatenated and scaled, in float32: the only copy of the data."""
        if sparse.issparse(pieces[0][0]):
            stacked = sparse.vstack([matrix[which] for matrix, which in pieces], format="csr", dtype=np.float32)
            stacked.data /= self.scale.astype(np.float32)[stacked.indices]
            return SparseRows(stacked)
        count, width = sum(len(which) for _, which in pieces), len(self.mean)
        scaled, done = torch.empty(count, width), 0
        for matrix, which in pieces:
            for at in range(0, len(which), ROWS_AT_ONCE):
                block = self._scaled(matrix[which[at : at + ROWS_AT_ONCE]])
                scaled[done : done + len(block)] = block
                done += len(block)
        return DenseRows(scaled.to(device))

    def stored_rows(self, pieces: Sequence[tuple[Any, np.ndarray]], device: torch.device) -> StoredRows:
        """Return the selected rows of memory-mapped matrices, to be read and scaled block by block."""

        def scale(block: Any) -> Tensor:
            return self._scaled(block).float()

        return StoredRows([Piece(matrix, which) for matrix, which in pieces], scale, len(self.mean), device)

    def _scaled(self, block: np.ndarray) -> Tensor:
        return torch.from_numpy((np.asarray(block) - self.mean) / self.scale)

    def undo(self, layers: Layers) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, in float64, the layers that give the same scores on the original features."""
        (first, offset), *rest = [(_numpy(weight), _numpy(bias)) for weight, bias in layers]
        first = first / self.scale
        return [(first, offset - first @ self.mean), *rest]


def _of_one_length(matrices: list[Any]) -> bool:
    """Return whether all non-empty rows of sparse matrices have the same length."""
    squares = np.concatenate([np.asarray(matrix.multiply(matrix).sum(1)).ravel() for matrix in matrices])
    lengths = np.sqrt(squares[squares > 0])
    return bool(len(lengths) and np.ptp(lengths) <= 1e-3 * lengths.max())


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().double().numpy()
    return array
