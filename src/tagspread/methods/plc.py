r"""PLC: pseudo-label consistency (from LAC, NeurIPS 2022): two thresholds, mirror images of each other.

.. math::
    T_{jk} = \begin{cases}
        1 & f_{jk} \ge \tau \\
        0 & f_{jk} < 1 - \tau \\
        -1 \text{ (ignored)} & \text{between}
    \end{cases}

Its companion term on class embeddings (LAC) is not part of the row of that name in the CAP paper, nor of this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.methods.base import Labeled, Method, State, Targets, check_share


@dataclass(frozen=True)
class PLC(Method):
    """Believe what is surely present and what is surely absent; ignore the rest.

    Attributes:
        threshold: from which probability a class is present; below one minus it, it is absent.
    """

    summary: ClassVar[str] = "surely present or surely absent by one threshold and its mirror image"
    threshold: float = 0.6

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold, least=0.5)  # below, the two would overlap

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Compare probabilities with both thresholds."""
        f = scores.sigmoid()
        labels = torch.where(f >= self.threshold, 1, torch.where(f < 1 - self.threshold, 0, -1))
        return Targets(labels.to(torch.int8))
