r"""ADSH (ICML 2022): every class lets through the same share of what it finds as the most frequent class does.

Of class k, let :math:`C_k` be the probabilities of at least 1/2 on the unlabeled set, in falling order. The reference
class r is the most frequent one of the labeled part; it keeps what reaches :math:`\tau_1`, a share :math:`\rho`:

.. math::
    \rho = \frac{|\{c \in C_r : c \ge \tau_1\}|}{|C_r|}, \qquad
    t_r = \tau_1, \qquad t_k = \min\big(\tau_1,\ C_k[\max(0, \mathrm{round}(|C_k|\,\rho - 1))]\big)

A class is present where :math:`f \ge t_k` and absent where :math:`f < 1/2`; between, it is ignored. A class of which
nothing reaches 1/2 keeps its threshold of the epoch before.
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
    """Adapt each class's threshold so that classes let through equal shares.

    Attributes:
        threshold: the threshold of the most frequent class, and the highest of all (tau_1).
        negatives: ``"all"`` below 1/2; ``"symmetric"``, the same construction for absent classes, so that only sure
            ones count; ``"complement"``, everything that is not positive.
    """

    summary: ClassVar[str] = "class thresholds that let through the same share as the most frequent class"
    threshold: float = 0.95
    negatives: str = "all"

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold, least=0.5)  # it counts among what is found, from 1/2 on
        check_choice("negatives", self.negatives, ("all", "symmetric", "complement"))

    def start(self, labeled: Labeled) -> State:
        """Every class begins with the highest threshold."""
        full = torch.full((len(labeled.classes),), self.threshold)
        return {"present": full, "absent": full.clone()}

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Adapt the thresholds to this epoch's scores, then apply them."""
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
        """Write each class's new threshold into ``thresholds``; one of which nothing is found keeps its old one."""
        found = (f >= 0.5).sum(0).tolist()
        falling = f.sort(dim=0, descending=True).values
        share = int((f[:, reference] >= self.threshold).sum()) / max(1, found[reference])
        for k, count in enumerate(found):
            if k == reference:
                thresholds[k] = self.threshold
            elif count:
                place = max(0, round(count * share - 1))  # never -1, which would be the least sure of all
                thresholds[k] = falling[place, k].clamp(max=self.threshold)
