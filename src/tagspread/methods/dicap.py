r"""DiCaP (AAAI 2026): pseudo-labels weighted by the measured probability that they are correct.

A fifth of the labeled rows is set apart: it is trained on without labels, like the unlabeled set. On these rows, scores
fall into K bins (all classes together); :math:`r_b` is the share of positives in bin b. An empty bin takes the share of
its nearest neighbor.

.. math::
    w_1(s) = (1 - t)\, r_b + t\, r_{b+1}, \qquad b = \lfloor K s \rfloor,\ t = K s - b, \qquad w_0(s) = 1 - w_1(s)

Each class has two thresholds, midway between the extreme scores of the other labeled rows: :math:`\tau^+_k = \tfrac12
(\max + \min)` over the positives' scores, and :math:`\tau^-_k` likewise over the negatives' scores, but at most
:math:`\tau^+_k`. A class is present above the first with weight :math:`w_1`, absent below the second with weight
:math:`w_0`, and ambiguous between. If the head has class embeddings (``ml_decoder``), ambiguous entries are trained
with a contrastive loss (InfoNCE): the embeddings of one image and class in a weak and a strong view should match each
other among all others. With a linear head there is no such term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tagspread.core.reliability import interpolate, share_of_positives
from tagspread.errors import TagspreadError
from tagspread.methods.base import EntryLoss, Labeled, Method, State, Targets, check_number, check_share
from tagspread.vision.backbones import TagNet
from tagspread.vision.pairs import PairNet


@dataclass(frozen=True)
class DiCaP(Method):
    """DiCaP: weight pseudo-labels by the measured correctness of scores like theirs.

    Attributes:
        apart: share of the labeled rows that correctness is measured on.
        bins: number of score bins on 0 to 1.
        contrast: weight of the contrastive term for ambiguous entries; it needs a head with class embeddings.
        temperature: temperature of the contrastive term.
        pairs: maximal number of ambiguous entries per step.
    """

    summary: ClassVar[str] = (
        "pseudo-labels weighted by how often such labels are right; two thresholds per class; a contrastive loss for "
        "the entries between them"
    )
    reads_labeled: ClassVar[bool] = True
    shares_warmup: ClassVar[bool] = False
    apart: float = 0.2
    bins: int = 20
    contrast: float = 1.0
    temperature: float = 0.1
    pairs: int = 1024

    def __post_init__(self) -> None:
        check_share("apart", self.apart)
        check_number("bins", self.bins, whole=True)
        check_number("contrast", self.contrast, zero=True)
        check_number("temperature", self.temperature)
        check_number("pairs", self.pairs, whole=True)

    @property
    def share_apart(self) -> float:
        """Share of the labeled rows that correctness is measured on."""
        return self.apart

    def network(self, network: TagNet) -> TagNet:
        """Make a head with class embeddings process two views of each image."""
        return PairNet.of(network) if self.contrast and hasattr(network.head, "embed") else network

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Label by the two thresholds and weight by the measured shares."""
        f = scores.sigmoid()
        present, absent = midpoint_thresholds(labeled)
        labels = torch.where(f > present, 1, torch.where(f < absent, 0, -1))
        correctness = interpolate(f, share_of_positives(*labeled.scored(), self.bins))
        return Targets(labels.to(torch.int8), torch.where(labels == 1, correctness, 1 - correctness))

    def combines_rows(self, network: TagNet) -> str | None:
        """Return the reason if the network has class embeddings, which the contrastive term compares."""
        is_pair = isinstance(network, PairNet)
        return "its contrastive term compares the images of a batch; set contrast to 0" if is_pair else None

    def loss_labeled(self, output: Tensor, y: Tensor, weight: Tensor, loss: EntryLoss) -> Tensor:
        """Train on the logits of the strong view."""
        return loss(PairNet.logits(output), y, weight)

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Add the contrastive term of the ambiguous entries to the weighted loss."""
        entries = loss(PairNet.logits(output), targets.labels, targets.weight)
        if output.ndim == 2:
            return entries
        return entries + self.contrast * self.info_nce(output, targets.labels == -1) / entries.numel()

    def info_nce(self, output: Tensor, ambiguous: Tensor) -> Tensor:
        """Return the summed InfoNCE loss, which matches the strong view of each ambiguous entry to its weak view."""
        strong, weak = (part.flatten(0, 1) for part in PairNet.embeddings(output))
        # draw a fixed number of entries at random, ambiguous ones first, so that shapes are the same in every step
        priority = torch.rand(len(strong), device=output.device) + ambiguous.flatten()
        selected = priority.topk(min(self.pairs, len(strong))).indices
        is_ambiguous = ambiguous.flatten()[selected]
        similarity = strong[selected] @ weak[selected].T / self.temperature
        similarity = similarity.masked_fill(~is_ambiguous, -1e4)  # entries that are not ambiguous are no candidates
        losses = functional.cross_entropy(
            similarity, torch.arange(len(selected), device=output.device), reduction="none"
        )
        return torch.where(is_ambiguous, losses, 0.0).sum()


def midpoint_thresholds(labeled: Labeled) -> tuple[Tensor, Tensor]:
    """Return, per class, the midpoint of the positives' scores and of the negatives'; the latter at most the former."""
    if labeled.scores is None:
        raise TagspreadError("dicap needs the scores of the labeled set; give them as Labeled(..., scores=...).")
    f, y = labeled.scores.sigmoid(), labeled.y.to(labeled.scores.device)

    def midpoint(mask: Tensor) -> Tensor:
        low, high = f.masked_fill(~mask, torch.inf).amin(0), f.masked_fill(~mask, -torch.inf).amax(0)
        return torch.where(mask.any(0), (low + high) / 2, torch.nan)

    present = midpoint(y == 1).nan_to_num(torch.inf)
    return present, torch.minimum(midpoint(y == 0).nan_to_num(-torch.inf), present)
