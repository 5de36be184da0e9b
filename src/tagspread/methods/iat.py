r"""IAT: instance-aware thresholding, one fixed threshold for all classes and images (the paper's eq. 4).

.. math:: T_{jk} = [\, f_{jk} \ge \tau \,]

The paper does not state its threshold. Scores trained with the asymmetric loss are not probabilities, so the best value
depends on the data. Choose it on labeled images held out from training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.methods.base import Labeled, Method, State, Targets, check_share


@dataclass(frozen=True)
class IAT(Method):
    """IAT: label a class present where its probability reaches a fixed threshold.

    Attributes:
        threshold: the probability from which a class is labeled present.
    """

    summary: ClassVar[str] = "one fixed probability threshold for all classes"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold)

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Compare the probabilities with the threshold."""
        return Targets((scores.sigmoid() >= self.threshold).to(torch.int8))
