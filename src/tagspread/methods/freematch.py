r"""FreeMatch (ICLR 2023), as one binary problem per class: thresholds that follow the teacher's confidence.

Each class k has running averages over the batches B, with :math:`f` the teacher's probabilities and :math:`\mu` =
0.999:

.. math::
    \tau_k \leftarrow \mu \tau_k + (1-\mu)\, \overline{\max(f_{jk}, 1 - f_{jk})}, \qquad
    \tilde p_k \leftarrow \mu \tilde p_k + (1-\mu)\, \overline{f_{jk}}

.. math::
    T_{jk} = [f_{jk} \ge \tfrac12], \qquad \text{kept if } \max(f, 1-f) \ge \tau_k \cdot
    \begin{cases} \tilde p_k / \max(\tilde p_k, 1 - \tilde p_k) & T = 1 \\
                  (1 - \tilde p_k) / \max(\tilde p_k, 1 - \tilde p_k) & T = 0 \end{cases}

For a rare class, the threshold of positives lies far below 1/2: every predicted positive is kept, and only uncertain
negatives are ignored. The averages start from the first pass over the unlabeled set, not from 1/2.

With ``fairness`` > 0, the mean loss of each class over the batch gets the term :math:`\sum_{c = \pm} a_c \log b_c`.
Here a is the running mean probability divided by the running share of predictions (normalized), and b is the same ratio
for the student on the kept entries of the batch. A class that is predicted for all rows, or for none, gets no term: its
ratios are not defined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from tagspread.methods.base import EntryLoss, Labeled, Method, State, Targets, check_number, check_share

if TYPE_CHECKING:
    from tagspread.vision.backbones import TagNet


@dataclass(frozen=True)
class FreeMatch(Method):
    """FreeMatch: class thresholds that follow the teacher's confidence.

    Attributes:
        momentum: momentum of the running averages.
        fairness: weight of the fairness term relative to the mean loss of a class over the batch; the term keeps
            classes from being forgotten. 0 omits it.
    """

    summary: ClassVar[str] = "class thresholds that follow the teacher's confidence, batch by batch"
    per_step: ClassVar[bool] = True
    momentum: float = 0.999
    fairness: float = 0.0

    def __post_init__(self) -> None:
        check_share("momentum", self.momentum)
        check_number("fairness", self.fairness, zero=True)

    def start(self, labeled: Labeled) -> State:
        """Allocate the averages; the first pass over the unlabeled set initializes them."""
        return {name: torch.full((len(labeled.classes),), 0.5) for name in ("confidence", "mean", "predicted")}

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Initialize the averages on the whole unlabeled set, then label it."""
        for name, value in averages(scores).items():
            state[name].copy_(value)
        return self.keep(scores, state)

    def step_targets(self, scores: Tensor, targets: Targets, labeled: Labeled, state: State) -> Targets:
        """Update the averages with this batch, then label it."""
        for name, value in averages(scores).items():
            state[name].lerp_(value, 1 - self.momentum)
        return self.keep(scores, state)

    def keep(self, scores: Tensor, state: State) -> Targets:
        """Label by 1/2, and ignore entries whose confidence is below the threshold of their class."""
        f, mean = scores.sigmoid(), state["mean"]
        larger = torch.maximum(mean, 1 - mean)
        threshold = state["confidence"] * torch.where(f >= 0.5, mean, 1 - mean) / larger
        labels = torch.where(torch.maximum(f, 1 - f) >= threshold, (f >= 0.5).to(torch.int8), -1)
        return Targets(labels.to(torch.int8))

    def combines_rows(self, network: TagNet) -> str | None:
        """Return the reason if the fairness term is enabled."""
        del network
        return "its fairness term compares the rows of a batch; set fairness to 0" if self.fairness else None

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Add the fairness term, if enabled, once per row: the losses of the rows are summed, not averaged."""
        entries = loss(output, targets.labels, targets.weight)
        if not self.fairness:
            return entries
        f, kept = output.sigmoid(), (targets.labels >= 0).float()
        count = kept.sum(0).clamp(min=1)
        mean, predicted = (f * kept).sum(0) / count, ((f >= 0.5) * kept).sum(0) / count
        defined = (predicted > 0) & (predicted < 1) & (state["predicted"] > 0) & (state["predicted"] < 1)
        # 1/2 where the shares are not defined, so that the gradient of what is not used is finite
        running = shares(state["mean"], torch.where(defined, state["predicted"], 0.5))
        current = shares(torch.where(defined, mean, 0.5), torch.where(defined, predicted, 0.5))
        term = (running * current.log()).sum(0) * defined
        return entries + self.fairness * term


def averages(scores: Tensor) -> dict[str, Tensor]:
    """Return, per class, the mean confidence, the mean probability and the share of positive predictions."""
    f = scores.sigmoid()
    return {"confidence": torch.maximum(f, 1 - f).mean(0), "mean": f.mean(0), "predicted": (f >= 0.5).float().mean(0)}


def shares(mean: Tensor, predicted: Tensor) -> Tensor:
    """Return mean probability / share of predictions, for present and absent, normalized to sum to 1 (2 x classes)."""
    ratio = torch.stack([mean, 1 - mean]) / torch.stack([predicted, 1 - predicted])
    return ratio / ratio.sum(0)
