"""Fewer features for few rows: coordinates in the space that the rows span.

A linear head with an L2 penalty is a combination of the rows it is fitted on: whatever is orthogonal to all of them
costs penalty and changes no score. With fewer rows than features, an orthonormal basis of their span therefore gives
the same solution with one feature per row; 30 rows of 1,280 features become 30 x 30 numbers. One factorization serves
all classes, folds and settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tagspread.core.threads import threads_for
from tagspread.linear.heads import DenseRows, Layers, Rows

LARGEST_SHARE = 0.5  # rows per feature: with more of them, the factorization costs more than it saves


@dataclass(frozen=True)
class RowSpace:
    """An orthonormal basis: features x coordinates."""

    basis: Tensor

    @classmethod
    def of(cls, *sets: Rows) -> RowSpace | None:
        """Return the space of all rows; None if they are sparse, or not much fewer than their features."""
        dense = [rows for rows in sets if isinstance(rows, DenseRows)]
        count = sum(rows.views * len(rows) for rows in sets)
        if len(dense) < len(sets) or not 0 < count <= LARGEST_SHARE * dense[0].width:
            return None
        stacked = torch.cat([rows.features.flatten(0, 1) for rows in dense])
        with threads_for(stacked.numel()):
            return cls(torch.linalg.qr(stacked.T)[0])

    def reduce(self, rows: Rows) -> Rows:
        """Return rows in coordinates of the basis."""
        if not isinstance(rows, DenseRows):
            raise TypeError("only dense rows have coordinates")
        return DenseRows(rows.features @ self.basis)

    def expand(self, layers: Layers) -> Layers:
        """Return a linear head on the original features that gives the same scores."""
        ((weight, bias),) = layers
        return ((weight @ self.basis.T, bias),)
