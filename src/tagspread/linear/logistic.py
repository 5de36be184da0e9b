r"""Multi-label logistic regression (one-vs-rest) for all classes at once, by L-BFGS.

.. math:: \min_{W, b} \frac1{\sum_i s_i} \sum_i s_i \sum_k v_{ik}\, \mathrm{BCE}(w_k \cdot x_i + b_k, T_{ik})
          + \frac\lambda2 \lVert W \rVert^2

over rows i of weight :math:`s_i` and entries of weight :math:`v_{ik}` (0 where the label is unknown). The bias is not
penalized. The problem is convex, so every starting point gives the same solution; a start close to it is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.core.threads import threads_for
from tagspread.linear.heads import DenseRows, Layers, Part, entry_losses, total_share

COARSE = 15  # steps that are enough to tell good settings from bad ones


@dataclass(frozen=True)
class LogisticHead:
    """Logistic regression: one weight per feature and class, and a bias per class.

    Attributes:
        max_iter: maximal number of L-BFGS steps.
        tolerance: the fit stops when no entry of the gradient is larger.
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
        flat = torch.cat([weight, bias[:, None]], dim=1).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [flat],
            max_iter=self.max_iter,
            tolerance_grad=self.tolerance,
            tolerance_change=1e-9,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def objective() -> Tensor:
            loss, flat.grad = loss_and_gradient(parts, flat.detach(), ridge)
            return loss

        with threads_for(sum(part.rows.numbers for part in parts)):
            optimizer.step(objective)  # type: ignore[no-untyped-call]
        fitted = flat.detach()
        return ((fitted[:, :-1].contiguous(), fitted[:, -1].contiguous()),)

    def coarse(self) -> LogisticHead:
        """Return the same head with fewer steps."""
        return replace(self, max_iter=min(self.max_iter, COARSE), tolerance=max(self.tolerance, 1e-4))


@torch.no_grad()
def loss_and_gradient(parts: Sequence[Part], flat: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient by ``flat`` (classes x features + 1, the last column is the bias)."""
    weight, bias = flat[:, :-1].contiguous(), flat[:, -1]
    gradient, loss = torch.zeros_like(flat), torch.zeros((), dtype=torch.float64, device=flat.device)
    for part in parts:
        for where, block in part.rows.blocks():
            value, residual = entry_losses(block.times(weight).add_(bias), part, where)
            loss += value
            gradient[:, :-1] += block.transposed_times(residual)
            gradient[:, -1] += residual.sum(0)
    size = total_share(parts)
    gradient /= size
    gradient[:, :-1] += ridge * weight
    return (loss / size + ridge / 2 * weight.square().sum()).to(flat.dtype), gradient


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
