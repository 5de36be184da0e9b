r"""CAP: class-distribution-aware pseudo-labeling (NeurIPS 2023).

Every epoch, the teacher scores the m unlabeled rows. CAP turns the scores into pseudo-labels: it ranks the rows
separately for each class k and labels them by quota,

.. math::
    T_{jk} = \begin{cases}
        1 & \text{among the } \lfloor \eta_1 \gamma_k m \rfloor \text{ highest scores of class } k \\
        0 & \text{among the } \lfloor \eta_0 (1 - \gamma_k) m \rfloor \text{ lowest} \\
        -1 \text{ (ignored)} & \text{between}
    \end{cases}

where :math:`\gamma_k` is the frequency of class k in the labeled set, or a prior that the caller knows for the
unlabeled set. The quotas and the ranking are in :mod:`tagspread.core.thresholds`. The loss of the pseudo-labels is in
:mod:`tagspread.train.objective`; CAP uses it unchanged, as most methods do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tagspread.core.sharded_ranking import Shard, cat_targets_of_shard
from tagspread.core.thresholds import cat_targets
from tagspread.errors import TagspreadError
from tagspread.methods.base import Labeled, Method, State, Targets, check_share


@dataclass(frozen=True)
class CAP(Method):
    """CAP: the share of positive pseudo-labels of each class is its frequency in the labeled set.

    Attributes:
        keep_pos: share of the expected positives to use, highest scores first (the paper's eta_1).
        keep_neg: share of the expected negatives to use, lowest scores first (the paper's eta_0).
        priors: class frequencies in the unlabeled set by class name, where you know them better than the labeled set
            does.
    """

    summary: ClassVar[str] = "the share of positive pseudo-labels of each class is its frequency in the labeled set"
    keep_pos: float = 1.0
    keep_neg: float = 1.0
    priors: dict[str, float] | None = None

    def __post_init__(self) -> None:
        check_share("keep_pos", self.keep_pos)
        check_share("keep_neg", self.keep_neg)
        if self.priors is not None and not isinstance(self.priors, dict):
            raise TagspreadError(
                f'priors is {self.priors!r}; give a dict of frequencies by class, such as {{"cat": 0.2}}.'
            )
        for name, value in (self.priors or {}).items():
            check_share(f"the prior of {name!r}", value)

    def start(self, labeled: Labeled) -> State:
        """Check the class names in ``priors`` before the warm-up."""
        self.priors_of(labeled.classes)
        return super().start(labeled)

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Rank the scores of each class and label by its quotas."""
        return Targets(
            cat_targets(
                scores,
                labeled.positives,
                labeled.known,
                self.keep_pos,
                self.keep_neg,
                priors=self.priors_of(labeled.classes),
            )
        )

    def targets_of_shard(self, scores: Tensor, shard: Shard, labeled: Labeled, state: State) -> Targets:
        """Rank the scores of all processes; only counts are exchanged (:mod:`tagspread.core.sharded_ranking`)."""
        return Targets(
            cat_targets_of_shard(
                scores,
                shard,
                labeled.positives,
                labeled.known,
                self.keep_pos,
                self.keep_neg,
                priors=self.priors_of(labeled.classes),
            )
        )

    def priors_of(self, classes: tuple[str, ...]) -> list[float] | None:
        """Return the prior of each class, NaN where none was given; None without priors."""
        if self.priors is None:
            return None
        if unknown := set(self.priors) - set(classes):
            listed = ", ".join(classes)
            raise TagspreadError(f"priors names {min(unknown)!r}, which is not a class; the classes are {listed}.")
        return [self.priors.get(name, float("nan")) for name in classes]
