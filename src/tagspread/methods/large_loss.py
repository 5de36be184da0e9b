r"""Large loss matters (CVPR 2022): reject or correct the assumed negatives with the largest loss (LL-R, LL-Ct, LL-Cp).

Each unlabeled image starts with one tag, its most probable class; every other entry is assumed negative. Assumed
negatives with a large loss are probably false negatives. In each batch of B images, the :math:`\lceil B q\, r_t \rceil`
assumed negatives with the largest loss (never one with a loss of 0) are

* ``llr``: rejected, so their loss is omitted;
* ``llct``: corrected to positive for this step;
* ``llcp``: corrected to positive permanently.

.. math::
    r_t = \min\big((t - 1)\,\delta,\ r_{\max}\big), \qquad
    r_{\max} = \max\big(0, \textstyle\sum_k \gamma_k - 1\big) / q

at epoch t = 1, 2, ...; ``llcp`` corrects a share :math:`\delta` in every epoch except the first, until :math:`r_{\max}`
of all entries are corrected. The limit :math:`r_{\max}` is the share of tags that one tag per image misses on average.
Without it, a long training would end with every class labeled present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from tagspread.errors import TagspreadError, check_choice
from tagspread.methods.base import EntryLoss, Labeled, Method, State, Targets, check_share
from tagspread.methods.top import top_targets

if TYPE_CHECKING:
    from tagspread.vision.backbones import TagNet


def largest(losses: Tensor, share: Tensor) -> Tensor:
    """Return a mask of the largest losses: the given share of all entries, by rank, so that ties never add one.

    >>> largest(torch.tensor([[3.0, 1.0], [3.0, 0.0]]), torch.tensor(0.25)).tolist()
    [[True, False], [False, False]]
    """
    order = losses.flatten().sort(descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    # use tensors only, as this runs inside a recorded step; subtracting 1e-6 keeps 0.1 * 30 at 3
    count = (share * losses.numel() - 1e-6).ceil()
    return (rank < count).view_as(losses) & (losses > 0)


@dataclass(frozen=True)
class LLR(Method):
    """LL-R: omit the assumed negatives with the largest loss.

    Attributes:
        step: by how much the rejected share of all entries grows in each epoch (delta).
        most: upper limit of that share; by default, the share of tags that one tag per image misses in the labeled set.
        observed: which tag is taken as observed: ``"top1"``, the most probable class of an image, or ``"none"``.
    """

    summary: ClassVar[str] = (
        "each unlabeled image is labeled with its most probable class; negatives with the largest loss are ignored"
    )
    step: float = 0.001
    most: float | None = None
    observed: str = "top1"

    def __post_init__(self) -> None:
        check_share("step", self.step)
        if self.most is not None:
            check_share("most", self.most)
        check_choice("observed", self.observed, ("top1", "none"))

    def start(self, labeled: Labeled) -> State:
        """Keep the share in a float64 tensor: a recorded step can read it, and float32 rounding would add an entry."""
        return {"share": torch.zeros((), dtype=torch.float64)}

    def combines_rows(self, network: TagNet) -> str | None:
        """Return the reason: the largest losses of a batch are those of all its rows."""
        del network
        return "it ranks the losses of all rows of a batch in every step"

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Set the share of this epoch, and the observed tag of each image."""
        state["share"].fill_(min(labeled.epoch * self.step, self.cap(labeled)))
        return Targets(top_targets(scores, int(self.observed == "top1")))

    def cap(self, labeled: Labeled) -> float:
        """Return the upper limit of the share of entries that are treated as false negatives."""
        missed = max(0.0, labeled.tags_per_item - int(self.observed == "top1"))
        return missed / len(labeled.classes) if self.most is None else self.most

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Omit the entries with a large loss."""
        entries = loss(output, targets.labels, targets.weight)
        return torch.where(false_negatives(entries, targets.labels, state), 0.0, entries)


class LLCt(LLR):
    """LL-Ct: treat the assumed negatives with the largest loss as positives, for this step."""

    summary: ClassVar[str] = "like llr, but negatives with the largest loss count as positive in this step"

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Turn the entries with a large loss into positives."""
        entries = loss(output, targets.labels, targets.weight)
        flipped = false_negatives(entries, targets.labels, state)
        return loss(output, torch.where(flipped, 1, targets.labels), targets.weight)


class LLCp(LLR):
    """LL-Cp: turn the assumed negatives with the largest loss into positives permanently."""

    summary: ClassVar[str] = "like llr, but negatives with the largest loss become positive permanently"

    def start(self, labeled: Labeled) -> State:
        """Allocate a flag for every entry of the unlabeled set that records whether it was corrected."""
        corrected = torch.zeros(labeled.unlabeled_size, len(labeled.classes), dtype=torch.bool)
        return {**super().start(labeled), "corrected": corrected}

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Add all corrections so far to the observed tags."""
        observed = super().targets(scores, labeled, state).labels
        remaining = self.cap(labeled) - float(state["corrected"].double().mean())
        state["share"].fill_(min(self.step, max(0.0, remaining)) if labeled.epoch else 0.0)
        return Targets(torch.where(state["corrected"], 1, observed).to(torch.int8))

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Turn the entries with a large loss into positives, and record the corrections."""
        if (places := targets.places) is None:
            raise TagspreadError(
                "llcp records its corrections by row; set Targets.places to the batch's rows of the unlabeled set."
            )
        corrected = state["corrected"][places]
        labels = torch.where(corrected & (targets.labels == 0), 1, targets.labels)
        flipped = false_negatives(loss(output, labels, targets.weight), labels, state)
        # a batch across two passes may hold a row twice: record the corrections of both copies for either
        same_row = places.unsqueeze(0).eq(places.unsqueeze(1)).float()
        state["corrected"][places] = corrected | (same_row @ flipped.float() > 0)
        return loss(output, torch.where(flipped, 1, labels), targets.weight)


def false_negatives(entries: Tensor, labels: Tensor, state: State) -> Tensor:
    """Return a mask of the assumed negatives with the largest loss, which are treated as false negatives."""
    return largest(torch.where(labels == 0, entries.detach(), 0.0), state["share"])
