r"""IAT: one threshold for all classes and images (the paper's eq. 4).

.. math:: T_{jk} = [\, f_{jk} \ge \tau \,]

The paper does not give its threshold. Scores trained with the asymmetric loss are no probabilities, so the best value
depends on the data: choose it on labeled images held out from training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.methods.base import Labeled, Method, State, Targets, check_share


@dataclass(frozen=True)
class IAT(Method):
    """Call a class present where its score passes a fixed threshold.

    Attributes:
        threshold: the probability from which a class counts as present.
    """

    summary: ClassVar[str] = "one fixed probability threshold for every class"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold)

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Compare probabilities with the threshold."""
        return Targets((scores.sigmoid() >= self.threshold).to(torch.int8))
