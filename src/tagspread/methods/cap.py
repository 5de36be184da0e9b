r"""CAP: class-distribution-aware pseudo-labeling (NeurIPS 2023).

.. math::
    T_{jk} = \begin{cases}
        1 & \text{among the } \lfloor \eta_1 \gamma_k m \rfloor \text{ highest scores of class } k \\
        0 & \text{among the } \lfloor \eta_0 (1 - \gamma_k) m \rfloor \text{ lowest} \\
        -1 \text{ (ignored)} & \text{between}
    \end{cases}

where :math:`\gamma_k` is how often class k occurs in the labeled part, or what the caller knows about the unlabeled
set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tagspread.core.thresholds import cat_targets
from tagspread.errors import TagspreadError
from tagspread.methods.base import Labeled, Method, State, Targets, check_share


@dataclass(frozen=True)
class CAP(Method):
    """Give each class as many pseudo-positives as its frequency in the labeled part says.

    Attributes:
        keep_pos: share of the expected positives that is used, the surest first (the paper's eta_1).
        keep_neg: the same for negatives (eta_0).
        priors: how often a class occurs in the unlabeled set, by class name, where you know better than the labeled
            part.
    """

    summary: ClassVar[str] = "as many pseudo-positives per class as its labeled frequency says"
    keep_pos: float = 1.0
    keep_neg: float = 1.0
    priors: dict[str, float] | None = None

    def __post_init__(self) -> None:
        check_share("keep_pos", self.keep_pos)
        check_share("keep_neg", self.keep_neg)
        if self.priors is not None and not isinstance(self.priors, dict):
            raise TagspreadError(f'priors is {self.priors!r}; give a share by class name, such as {{"cat": 0.2}}.')
        for name, value in (self.priors or {}).items():
            check_share(f"the prior of {name!r}", value)

    def start(self, labeled: Labeled) -> State:
        """Raise for a prior of a class that there is not, now rather than after the warm-up."""
        self._priors(labeled.classes)
        return super().start(labeled)

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Rank each class's scores and cut at its quotas."""
        return Targets(
            cat_targets(
                scores,
                labeled.positives,
                labeled.known,
                self.keep_pos,
                self.keep_neg,
                priors=self._priors(labeled.classes),
            )
        )

    def _priors(self, classes: tuple[str, ...]) -> list[float] | None:
        if self.priors is None:
            return None
        if unknown := set(self.priors) - set(classes):
            listed = ", ".join(classes)
            raise TagspreadError(f"priors names {min(unknown)!r}, which is no class; there are {listed}.")
        return [self.priors.get(name, float("nan")) for name in classes]
