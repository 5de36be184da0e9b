r"""The loss that the student minimizes at each step: labels on one side, pseudo-labels on the other.

A batch holds n labeled rows with labels :math:`y_i` and m unlabeled rows. With :math:`\ell_1, \ell_0` the loss of a
class that is present or absent (:mod:`tagspread.core.losses`) and :math:`T_{jk}` the method's target of row j and class
k, -1 where it is ignored, an unlabeled row costs what its pseudo-labels say (the paper's eq. 5):

.. math::
    \mathcal{L}_u(f(x_j), T_j) = \sum_{k=1}^{q} [T_{jk} = 1]\, \ell_1(f_k(x_j)) + [T_{jk} = 0]\, \ell_0(f_k(x_j))

and a labeled row the same by its labels, :math:`\mathcal{L}_l(f(x_i), y_i)`. The whole is the sum of two means
(eq. 6; ``reduction="mean_mean"``), with :math:`\lambda` = ``unlabeled_weight``, 1 in the paper:

.. math::
    \mathcal{L} = \frac{1}{n} \sum_{i=1}^{n} \mathcal{L}_l(f(x_i), y_i)
        + \frac{\lambda}{m} \sum_{j=1}^{m} \mathcal{L}_u(f(x_j), T_j)

The released code sums over the mixed batch instead (``reduction="sum"``, the default), so that every row counts alike:

.. math::
    \mathcal{L} = \sum_{i=1}^{n} \mathcal{L}_l(f(x_i), y_i) + \lambda \sum_{j=1}^{m} \mathcal{L}_u(f(x_j), T_j)

In the warm-up there are no unlabeled rows (m = 0) and the second term is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from tagspread.methods.base import Method, State, Targets
from tagspread.train.config import LOSSES, TrainConfig


@dataclass(frozen=True)
class Objective:
    """The loss of one batch.

    Attributes:
        method: may change the loss of either part, entry by entry.
        state: the method's state, which its loss may read and change in place.
        loss: the loss of an entry, one of ``LOSSES``.
        loss_options: options of that loss.
        reduction: ``"sum"`` or ``"mean_mean"``.
        unlabeled_weight: weight of the unlabeled rows.
    """

    method: Method
    state: State
    loss: Callable[..., Tensor]
    loss_options: dict[str, float] = field(default_factory=dict)
    reduction: str = "sum"
    unlabeled_weight: float = 1.0

    @classmethod
    def from_config(cls, config: TrainConfig, method: Method, state: State) -> Objective:
        """Return the objective that the settings ask for; a method that is defined by its loss brings its own."""
        return cls(
            method,
            state,
            LOSSES[method.labeled_loss or config.loss],
            config.loss_options,
            config.reduction,
            1.0 if config.unlabeled_weight is None else config.unlabeled_weight,
        )

    def __call__(self, logits: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Return the loss of a batch: its labeled rows first, then ``len(places)`` unlabeled ones.

        Args:
            logits: what the student says of each row (rows x classes).
            labels: labels, then targets: 1, 0, -1 unknown or ignored, or soft targets.
            weight: importance of each entry.
            places: which rows of the unlabeled set the batch holds.
        """
        m = len(places)
        n = len(labels) - m
        total = self.method.loss_labeled(logits[:n], labels[:n], weight[:n], self.entry_loss).sum()
        if self.reduction == "mean_mean":
            total = total / n
        if m:
            targets = Targets(labels[n:], weight[n:], places)
            unlabeled = self.unlabeled_weight * self.method.loss(logits[n:], targets, self.entry_loss, self.state).sum()
            total = total + (unlabeled / m if self.reduction == "mean_mean" else unlabeled)
        return total

    def entry_loss(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """Return the loss of each entry."""
        return self.loss(logits, labels, weight=weight, reduction="none", **self.loss_options)
