r"""ADSH (ICML 2022): adaptive thresholds that select the same share in every class as in the most frequent class.

For class k, let :math:`C_k` be the probabilities of at least 1/2 on the unlabeled set, in descending order. The
reference class r is the most frequent class of the labeled set. It keeps the probabilities of at least :math:`\tau_1`,
a share :math:`\rho`:

.. math::
    \rho = \frac{|\{c \in C_r : c \ge \tau_1\}|}{|C_r|}, \qquad
    t_r = \tau_1, \qquad t_k = \min\big(\tau_1,\ C_k[\max(0, \mathrm{round}(|C_k|\,\rho - 1))]\big)

A class is present where :math:`f \ge t_k` and absent where :math:`f < 1/2`; entries between are ignored. A class
without a probability of at least 1/2 keeps its threshold of the previous epoch. If no probability of the reference
class reaches :math:`\tau_1`, :math:`\rho = 1`, as in the original code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.errors import check_choice
from tagspread.methods.base import Labeled, Method, State, Targets, check_share


@dataclass(frozen=True)
class ADSH(Method):
    """ADSH: adapt the threshold of each class so that all classes select equal shares.

    Attributes:
        threshold: threshold of the most frequent class, and the maximum for all classes (tau_1).
        negatives: which entries are negative. ``"all"``: those below 1/2. ``"symmetric"``: confident ones only, by the
            same construction on ``1 - f``. ``"complement"``: everything that is not positive.
    """

    summary: ClassVar[str] = (
        "class thresholds that make the same share of the probabilities above 1/2 positive as in the most frequent "
        "class"
    )
    threshold: float = 0.95
    negatives: str = "all"

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold, least=0.5)  # only probabilities of at least 1/2 are considered
        check_choice("negatives", self.negatives, ("all", "symmetric", "complement"))

    def start(self, labeled: Labeled) -> State:
        """Start every class with the maximal threshold."""
        full = torch.full((len(labeled.classes),), self.threshold)
        return {"present": full, "absent": full.clone()}

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Adapt the thresholds to the scores of this epoch, then apply them."""
        f = scores.sigmoid()
        shares = [c / n if n else 0.0 for c, n in zip(labeled.positives, labeled.known, strict=True)]
        reference = shares.index(max(shares))
        self.adapt(f, reference, state["present"])
        if self.negatives == "symmetric":
            self.adapt(1 - f, reference, state["absent"])
        absent = {"all": f < 0.5, "symmetric": (1 - f >= state["absent"]) & (f < 0.5), "complement": f <= 1}
        labels = torch.where(f >= state["present"], 1, torch.where(absent[self.negatives], 0, -1))
        return Targets(labels.to(torch.int8))

    def adapt(self, f: Tensor, reference: int, thresholds: Tensor) -> None:
        """Update ``thresholds`` in place; a class without a probability of at least 1/2 keeps its old threshold."""
        counts = (f >= 0.5).sum(0).tolist()
        descending = f.sort(dim=0, descending=True).values
        reached = int((f[:, reference] >= self.threshold).sum())
        share = reached / counts[reference] if reached else 1.0
        for k, count in enumerate(counts):
            if k == reference:
                thresholds[k] = self.threshold
            elif count:
                rank = max(0, round(count * share - 1))  # never -1, which would index the lowest probability
                thresholds[k] = descending[rank, k].clamp(max=self.threshold)
