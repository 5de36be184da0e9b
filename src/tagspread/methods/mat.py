r"""MAT (with D2L, ECCV 2024): metric-adaptive thresholds, chosen per class by a metric on the labeled set.

.. math::
    \tau_k = \operatorname*{arg\,max}_{\tau \in \{0, 0.01, \dots, 0.99\}} M\big([f_{ik} \ge \tau], y_{ik}\big), \qquad
    T_{jk} = [f_{jk} \ge \tau_k], \qquad
    F_\beta = \frac{(1 + \beta^2)\, \mathrm{TP}}{(1 + \beta^2)\, \mathrm{TP} + \beta^2\, \mathrm{FN} + \mathrm{FP}}

The thresholds are chosen in every epoch from the teacher's scores of the labeled rows. Among equally good thresholds,
the lowest is taken (for recall the highest, because threshold 0 always has perfect recall). A class without labeled
positives gets no positive pseudo-labels. The teacher's scores are too good on rows that it was trained on. With
``apart``, a share of the labeled rows is used in training without labels, and the thresholds are chosen on those rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.errors import check_choice
from tagspread.methods.base import Labeled, Method, State, Targets, check_number, check_share

GRID = torch.arange(100) / 100
BLOCK = 4096  # rows compared with the whole grid at a time, to bound the memory


@dataclass(frozen=True)
class MAT(Method):
    """MAT: choose the threshold of each class by a metric on the labeled set.

    Attributes:
        metric: ``"fbeta"``, ``"precision"`` or ``"recall"``.
        beta: how much more recall counts than precision. The released code uses 0.5 in a formula without the square,
            which equals this default, the square root of 0.5.
        support: with ``"precision"``, the minimal number of rows a threshold must select; otherwise a threshold with a
            single correct row would win.
        apart: share of the labeled rows that is trained on without labels, to choose thresholds on.
    """

    summary: ClassVar[str] = "per class, the threshold with the best F-score on the labeled set"
    reads_labeled: ClassVar[bool] = True
    metric: str = "fbeta"
    beta: float = 0.5**0.5
    support: int = 3
    apart: float = 0.0

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, ("fbeta", "precision", "recall"))
        check_share("apart", self.apart)
        check_number("beta", self.beta)
        check_number("support", self.support, whole=True)

    @property
    def share_apart(self) -> float:
        """Share of the labeled rows that the thresholds are chosen on."""
        return self.apart

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Choose the thresholds, then apply them."""
        return Targets((scores.sigmoid() >= self.thresholds(labeled)).to(torch.int8))

    def thresholds(self, labeled: Labeled) -> Tensor:
        """Return each class's best threshold; infinite without a labeled positive or if ``support`` is not reached."""
        logits, y = labeled.scored()
        f, grid = logits.sigmoid(), GRID.to(logits.device)
        hit, selected = (torch.zeros(len(grid), f.shape[1], device=f.device) for _ in range(2))
        for at in range(0, len(f), BLOCK):
            part, truth = f[at : at + BLOCK], y[at : at + BLOCK]
            above = part >= grid[:, None, None]  # grid x items x classes
            hit += (above & (truth == 1)).sum(1)
            selected += (above & (truth >= 0)).sum(1)
        positives = (y == 1).sum(0)
        if self.metric == "precision":
            value = torch.where(selected >= self.support, hit / selected, -1.0)
        elif self.metric == "recall":
            value = hit / positives
        else:
            square = self.beta**2
            value = (1 + square) * hit / (square * positives + selected)
        value, best = value.nan_to_num(-1.0).max(0)  # the first among equals
        if self.metric == "recall":  # the last among equals: threshold 0 selects everything
            best = len(grid) - 1 - (hit / positives).flip(0).nan_to_num(-1.0).argmax(0)
        return torch.where((positives > 0) & (value >= 0), grid[best], torch.inf)
