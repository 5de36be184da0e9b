r"""FreeMatch (ICLR 2023), one binary question per class: thresholds that follow the teacher's own confidence.

Per class k, running averages over the batches B, with :math:`f` the teacher's probabilities and :math:`\mu` = 0.999:

.. math::
    \tau_k \leftarrow \mu \tau_k + (1-\mu)\, \overline{\max(f_{jk}, 1 - f_{jk})}, \qquad
    \tilde p_k \leftarrow \mu \tilde p_k + (1-\mu)\, \overline{f_{jk}}

.. math::
    T_{jk} = [f_{jk} \ge \tfrac12], \qquad \text{kept if } \max(f, 1-f) \ge \tau_k \cdot
    \begin{cases} \tilde p_k / \max(\tilde p_k, 1 - \tilde p_k) & T = 1 \\
                  (1 - \tilde p_k) / \max(\tilde p_k, 1 - \tilde p_k) & T = 0 \end{cases}

For a rare class the threshold of positives is far below 1/2: every predicted positive passes, and what is dropped are
doubtful negatives. The averages start from the first pass over the unlabeled set, not from 1/2.

With ``fairness`` > 0, per class, :math:`\sum_{c = \pm} a_c \log b_c` is added, where a compares the running mean
probability with the running share of predictions, and b the same in the student's kept entries of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.methods.base import EntryLoss, Labeled, Method, State, Targets, check_number, check_share

TINY = 1e-6  # a class without a kept entry would divide by zero


@dataclass(frozen=True)
class FreeMatch(Method):
    """Let each class's thresholds follow how sure the teacher is of it.

    Attributes:
        momentum: of the running averages.
        fairness: weight of the term that keeps classes from being forgotten; 0 leaves it out.
    """

    summary: ClassVar[str] = "class thresholds that follow the teacher's confidence, batch by batch"
    per_step: ClassVar[bool] = True
    momentum: float = 0.999
    fairness: float = 0.0

    def __post_init__(self) -> None:
        check_share("momentum", self.momentum)
        check_number("fairness", self.fairness, zero=True)

    def start(self, labeled: Labeled) -> State:
        """Make room for the averages; the first pass over the unlabeled set sets them."""
        return {name: torch.full((len(labeled.classes),), 0.5) for name in ("confidence", "mean", "predicted")}

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Begin with the averages over the whole unlabeled set."""
        for name, value in averages(scores).items():
            state[name].copy_(value)
        return self.keep(scores, state)

    def step_targets(self, scores: Tensor, targets: Targets, labeled: Labeled, state: State) -> Targets:
        """Move the averages by this batch, then label it."""
        for name, value in averages(scores).items():
            state[name].lerp_(value, 1 - self.momentum)
        return self.keep(scores, state)

    def keep(self, scores: Tensor, state: State) -> Targets:
        """Label by 1/2, and ignore what is less sure than its class's threshold."""
        f, mean = scores.sigmoid(), state["mean"]
        usual = torch.maximum(mean, 1 - mean)
        threshold = state["confidence"] * torch.where(f >= 0.5, mean, 1 - mean) / usual
        labels = torch.where(torch.maximum(f, 1 - f) >= threshold, (f >= 0.5).to(torch.int8), -1)
        return Targets(labels.to(torch.int8))

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Add the fairness term, if asked for, spread over the entries."""
        entries = loss(output, targets.labels, targets.weight)
        if not self.fairness:
            return entries
        f, kept = output.sigmoid(), (targets.labels >= 0).float()
        count = kept.sum(0).clamp(min=1)
        mean, predicted = (f * kept).sum(0) / count, ((f >= 0.5) * kept).sum(0) / count
        wanted = shares(state["mean"], state["predicted"])
        found = shares(mean, predicted.detach())
        term = (wanted * (found + TINY).log()).sum(0) * (kept.sum(0) > 0)
        return entries + self.fairness * term / len(entries)


def averages(scores: Tensor) -> dict[str, Tensor]:
    """Return per class the mean confidence, the mean probability and the share that is predicted positive."""
    f = scores.sigmoid()
    return {"confidence": torch.maximum(f, 1 - f).mean(0), "mean": f.mean(0), "predicted": (f >= 0.5).float().mean(0)}


def shares(mean: Tensor, predicted: Tensor) -> Tensor:
    """Return mean probability over share of predictions, present and absent, made to sum to one (2 x classes)."""
    ratio = torch.stack([mean, 1 - mean]) / (torch.stack([predicted, 1 - predicted]) + TINY)
    return ratio / ratio.sum(0)
