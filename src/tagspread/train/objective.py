r"""Training objective of the student: the loss of labeled rows plus the loss of unlabeled rows with pseudo-labels.

A batch holds n labeled rows with labels :math:`y_i` and m unlabeled rows. Let :math:`\ell_1` be the loss of a class
that is present and :math:`\ell_0` that of a class that is absent (:mod:`tagspread.core.losses`). Let :math:`T_{jk}` be
the pseudo-label of row j and class k: 1, 0, or -1 if it is ignored. The loss of an unlabeled row is (the paper's eq. 5)

.. math::
    \mathcal{L}_u(f(x_j), T_j) = \sum_{k=1}^{q} [T_{jk} = 1]\, \ell_1(f_k(x_j)) + [T_{jk} = 0]\, \ell_0(f_k(x_j))

The loss of a labeled row, :math:`\mathcal{L}_l(f(x_i), y_i)`, is the same sum over its labels. The paper adds the two
means (eq. 6; ``reduction="mean_mean"``), with :math:`\lambda` = ``unlabeled_weight``, 1 in the paper:

.. math::
    \mathcal{L} = \frac{1}{n} \sum_{i=1}^{n} \mathcal{L}_l(f(x_i), y_i)
        + \frac{\lambda}{m} \sum_{j=1}^{m} \mathcal{L}_u(f(x_j), T_j)

The released code sums over the mixed batch instead (``reduction="sum"``, the default), so that all rows weigh the same:

.. math::
    \mathcal{L} = \sum_{i=1}^{n} \mathcal{L}_l(f(x_i), y_i) + \lambda \sum_{j=1}^{m} \mathcal{L}_u(f(x_j), T_j)

In the warm-up there are no unlabeled rows (m = 0), so the second term is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from tagspread.methods.base import Method, State, Targets
from tagspread.train.config import LOSSES, TrainConfig


@dataclass(frozen=True)
class Objective:
    """The loss of one batch of labeled and unlabeled rows.

    Attributes:
        method: the method, which may change the loss of each entry of labeled and unlabeled rows.
        state: the method's state, which its loss may read and change in place.
        loss: loss function of the entries, one of ``LOSSES``.
        loss_options: options of the loss function.
        reduction: ``"sum"`` or ``"mean_mean"``, see above.
        unlabeled_weight: weight of the unlabeled rows (lambda).
        batch: number of labeled and unlabeled rows in a batch of which this process has a part only.
    """

    method: Method
    state: State
    loss: Callable[..., Tensor]
    loss_options: dict[str, float] = field(default_factory=dict)
    reduction: str = "sum"
    unlabeled_weight: float = 1.0
    batch: tuple[int, int] | None = None

    @classmethod
    def from_config(cls, config: TrainConfig, method: Method, state: State) -> Objective:
        """Return the objective of a configuration. A method that is defined by its loss overrides ``config.loss``."""
        return cls(
            method,
            state,
            LOSSES[method.labeled_loss or config.loss],
            config.loss_options,
            config.reduction,
            1.0 if config.unlabeled_weight is None else config.unlabeled_weight,
        )

    @property
    def is_sum_over_rows(self) -> bool:
        """Whether the loss of a batch is the sum of the losses of its parts."""
        own = [getattr(type(self.method), name) is not getattr(Method, name) for name in ("loss", "loss_labeled")]
        return self.reduction == "sum" and not any(own)

    def __call__(self, logits: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Compute the loss of a batch, which holds n labeled rows first, then m = ``len(places)`` unlabeled rows.

        Args:
            logits: the student's outputs (rows x classes).
            labels: labels, then pseudo-labels: 1, 0, -1 unknown or ignored, or soft targets.
            weight: weight of each entry.
            places: indices of the unlabeled rows in the unlabeled set.
        """
        m = len(places)
        n = len(labels) - m
        n_of_batch, m_of_batch = self.batch or (n, m)
        total = self.method.loss_labeled(logits[:n], labels[:n], weight[:n], self.entry_loss).sum()
        if self.reduction == "mean_mean":
            total = total / n_of_batch
        if m:
            targets = Targets(labels[n:], weight[n:], places)
            unlabeled = self.unlabeled_weight * self.method.loss(logits[n:], targets, self.entry_loss, self.state).sum()
            total = total + (unlabeled / m_of_batch if self.reduction == "mean_mean" else unlabeled)
        return total

    def entry_loss(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """Compute the loss of each entry (rows x classes), without reduction."""
        return self.loss(logits, labels, weight=weight, reduction="none", **self.loss_options)
