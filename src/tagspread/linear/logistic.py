r"""Multi-label logistic regression (one-vs-rest) for all classes at once, by L-BFGS with a history per class.

.. math:: \min_{W, b} \frac1{\sum_i s_i} \sum_i s_i \sum_k v_{ik}\, \mathrm{BCE}(w_k \cdot x_i + b_k, T_{ik})
          + \frac\lambda2 \lVert W \rVert^2

over rows i of weight :math:`s_i` and entries of weight :math:`v_{ik}` (0 where the label is unknown). The bias is not
penalized. The problem is convex, so every starting point gives the same solution; a start close to it is faster. The
classes share only the features, so each is a problem of its own (:mod:`tagspread.linear.lbfgs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.core.threads import threads_for
from tagspread.linear.heads import DenseRows, Layers, Part, residuals, total_share
from tagspread.linear.lbfgs import minimize

COARSE = 15  # evaluations that are enough to tell good settings from bad ones


@dataclass(frozen=True)
class LogisticHead:
    """Logistic regression: one weight per feature and class, and a bias per class.

    Attributes:
        max_iter: maximal number of evaluations of the gradient.
        tolerance: the fit of a class ends when no entry of its gradient is larger.
    """

    convex: ClassVar[bool] = True
    max_iter: int = 200
    tolerance: float = 1e-5

    def start(self, width: int, classes: int, device: torch.device) -> Layers:
        """Return zeros: every class has a probability of 1/2 everywhere."""
        return ((torch.zeros(classes, width, device=device), torch.zeros(classes, device=device)),)

    def fit(self, parts: Sequence[Part], start: Layers, ridge: float) -> Layers:
        """Minimize the loss by L-BFGS."""
        ((weight, bias),) = start
        flat = torch.cat([weight, bias[:, None]], dim=1)
        with threads_for(sum(part.rows.numbers for part in parts)), torch.no_grad():
            fitted = minimize(
                lambda points, classes: gradient(parts, points, ridge, classes),
                flat,
                max_iter=self.max_iter,
                tolerance=self.tolerance,
            )
        return ((fitted[:, :-1].contiguous(), fitted[:, -1].contiguous()),)

    def coarse(self) -> LogisticHead:
        """Return the same head with fewer evaluations."""
        return replace(self, max_iter=min(self.max_iter, COARSE), tolerance=max(self.tolerance, 1e-4))


@torch.no_grad()
def gradient(parts: Sequence[Part], flat: Tensor, ridge: float, classes: Tensor | None = None) -> Tensor:
    """Return the gradient of the loss by ``flat`` (classes x features + 1, the last column is the bias).

    Args:
        parts: the rows and labels.
        flat: weights and biases of the classes.
        ridge: L2 penalty.
        classes: columns of the labels that ``flat`` is about; by default, all.
    """
    weight, bias = flat[:, :-1].contiguous(), flat[:, -1]
    total = torch.zeros_like(flat)
    for part in parts:
        for where, block in part.rows.blocks():
            residual = residuals(block.times(weight).add_(bias), part, where, block, classes)
            total[:, :-1].add_(block.transposed_times(residual), alpha=part.share)
            total[:, -1].add_(residual.sum(0), alpha=part.share)
    total /= total_share(parts)
    total[:, :-1].add_(weight, alpha=ridge)
    return total


def fit_logistic(
    features: Tensor, labels: Tensor, start: Tensor, ridge: float, entry_weight: Tensor | None = None
) -> Tensor:
    """Fit logistic regression from ``start``; return the weights (classes x features + 1, the last column is the bias).

    Args:
        features: rows x features, or views x rows x features; every view of a row has the row's labels.
        labels: rows x classes: 1, 0, -1 ignored.
        start: initial weights.
        ridge: L2 penalty on the weights; the bias is not penalized.
        entry_weight: weight of each entry.

    >>> x = torch.tensor([[-1.0], [1.0]])
    >>> fit_logistic(x, torch.tensor([[0], [1]]), torch.zeros(1, 2), ridge=0.1)[0, 0].item()  # sigmoid(-w) = 0.1 w
    1.63...
    """
    part = Part(DenseRows(features), labels, entry_weight)
    ((weight, bias),) = LogisticHead().fit([part], ((start[:, :-1], start[:, -1]),), ridge)
    return torch.cat([weight, bias[:, None]], dim=1)
