r"""PLC: pseudo-label consistency (from LAC, NeurIPS 2022), two thresholds symmetric about 1/2.

.. math::
    T_{jk} = \begin{cases}
        1 & f_{jk} \ge \tau \\
        0 & f_{jk} < 1 - \tau \\
        -1 \text{ (ignored)} & \text{between}
    \end{cases}

The CAP paper's row named PLC does not include LAC's companion term on class embeddings, and neither does this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.methods.base import Labeled, Method, State, Targets, check_share


@dataclass(frozen=True)
class PLC(Method):
    """PLC: label confident positives and confident negatives; ignore the rest.

    Attributes:
        threshold: the probability from which a class is labeled present; below ``1 - threshold``, it is labeled absent.
    """

    summary: ClassVar[str] = (
        "positive if the probability is at least t, negative if it is below 1 - t, ignored in between"
    )
    threshold: float = 0.6

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold, least=0.5)  # below, the two would overlap

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Compare the probabilities with both thresholds."""
        f = scores.sigmoid()
        labels = torch.where(f >= self.threshold, 1, torch.where(f < 1 - self.threshold, 0, -1))
        return Targets(labels.to(torch.int8))
