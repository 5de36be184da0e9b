r"""Large loss matters (CVPR 2022): a negative that the student cannot believe was probably a positive.

The unlabeled set starts as if each image had one tag, its most probable class; every other entry is assumed negative.
Among these, per batch of B images, the :math:`\lceil B q\, r_t \rceil` entries with the largest loss (never one whose
loss is 0) are

* ``llr``: rejected, their loss is left out;
* ``llct``: corrected to positive for this step;
* ``llcp``: corrected for good.

.. math::
    r_t = \min\big((t - 1)\,\delta,\ r_{\max}\big), \qquad
    r_{\max} = \max\big(0, \textstyle\sum_k \gamma_k - 1\big) / q

at epoch t = 1, 2, ...; ``llcp`` corrects a share :math:`\delta` in every epoch but the first until :math:`r_{\max}` of
all entries are corrected. The cap is what one tag per image misses on average: without it a long training would end
by calling everything present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.errors import TagspreadError, check_choice
from tagspread.methods.base import EntryLoss, Labeled, Method, State, Targets, check_share
from tagspread.methods.top import top_targets


def largest(losses: Tensor, share: Tensor) -> Tensor:
    """Return where the largest losses are: the given share of all entries, by index, so that ties never add one.

    >>> largest(torch.tensor([[3.0, 1.0], [3.0, 0.0]]), torch.tensor(0.25)).tolist()
    [[True, False], [False, False]]
    """
    order = losses.flatten().sort(descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    # in tensors throughout, as this runs inside a recorded step; the step down keeps 0.1 * 30 at 3
    count = (share * losses.numel() - 1e-6).ceil()
    return (rank < count).view_as(losses) & (losses > 0)


@dataclass(frozen=True)
class LLR(Method):
    """Leave out the unobserved negatives with the largest loss.

    Attributes:
        step: how much of all entries is rejected more in each epoch (delta).
        most: the share never passed; by default what the labeled part's tags per image say is missed.
        observed: what is taken as seen: ``"top1"``, the most probable class of a image, or ``"none"``.
    """

    summary: ClassVar[str] = "one tag per image, then its unbelievable negatives are rejected"
    step: float = 0.001
    most: float | None = None
    observed: str = "top1"

    def __post_init__(self) -> None:
        check_share("step", self.step)
        if self.most is not None:
            check_share("most", self.most)
        check_choice("observed", self.observed, ("top1", "none"))

    def start(self, labeled: Labeled) -> State:
        """Keep the share where a recorded step can read it; in double, or rounding would add an entry to thousands."""
        return {"share": torch.zeros((), dtype=torch.float64)}

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Set this epoch's share, and the one observed tag of each image."""
        state["share"].fill_(min(labeled.epoch * self.step, self.cap(labeled)))
        return Targets(top_targets(scores, int(self.observed == "top1")))

    def cap(self, labeled: Labeled) -> float:
        """Return the largest share that is ever taken for false negatives."""
        missed = max(0.0, labeled.tags_per_item - int(self.observed == "top1"))
        return missed / len(labeled.classes) if self.most is None else self.most

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Drop the entries with a large loss."""
        entries = loss(output, targets.labels, targets.weight)
        return torch.where(unbelievable(entries, targets.labels, state), 0.0, entries)


class LLCt(LLR):
    """Call the unobserved negatives with the largest loss positive, for this step."""

    summary: ClassVar[str] = "one tag per image, then its unbelievable negatives count as positive for the step"

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Turn the entries with a large loss into positives."""
        entries = loss(output, targets.labels, targets.weight)
        flipped = unbelievable(entries, targets.labels, state)
        return loss(output, torch.where(flipped, 1, targets.labels), targets.weight)


class LLCp(LLR):
    """Call the unobserved negatives with the largest loss positive, for good."""

    summary: ClassVar[str] = "one tag per image, then its unbelievable negatives become positive for good"

    def start(self, labeled: Labeled) -> State:
        """Remember what was corrected, for every entry of the unlabeled set."""
        corrected = torch.zeros(labeled.unlabeled_size, len(labeled.classes), dtype=torch.bool)
        return {**super().start(labeled), "corrected": corrected}

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Add all corrections so far to the observed tags."""
        observed = super().targets(scores, labeled, state).labels
        left = self.cap(labeled) - float(state["corrected"].double().mean())
        state["share"].fill_(min(self.step, max(0.0, left)) if labeled.epoch else 0.0)
        return Targets(torch.where(state["corrected"], 1, observed).to(torch.int8))

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Turn the entries with a large loss into positives, and write that down."""
        if (places := targets.places) is None:
            raise TagspreadError(
                "llcp writes down what it corrects, and must be told which rows of the unlabeled set it sees."
            )
        corrected = state["corrected"][places]
        labels = torch.where(corrected & (targets.labels == 0), 1, targets.labels)
        flipped = unbelievable(loss(output, labels, targets.weight), labels, state)
        # a batch that reaches into the next pass may hold a row twice: both of them write what either has found
        twins = places.unsqueeze(0).eq(places.unsqueeze(1)).float()
        state["corrected"][places] = corrected | (twins @ flipped.float() > 0)
        return loss(output, torch.where(flipped, 1, labels), targets.weight)


def unbelievable(entries: Tensor, labels: Tensor, state: State) -> Tensor:
    """Return which assumed negatives have a loss so large that they are taken for positives."""
    return largest(torch.where(labels == 0, entries.detach(), 0.0), state["share"])
