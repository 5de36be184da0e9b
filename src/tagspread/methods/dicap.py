r"""DiCaP (AAAI 2026): each pseudo-label weighs as much as labels of its score were right, where that can be checked.

A fifth of the labeled items is set apart: trained on without labels, like the unlabeled set. On these, scores fall into
K bins (all classes together); :math:`r_b` is the share of positives in bin b, an empty bin takes its nearest
neighbor's.

.. math::
    w_1(s) = (1 - t)\, r_b + t\, r_{b+1}, \qquad b = \lfloor K s \rfloor,\ t = K s - b, \qquad w_0(s) = 1 - w_1(s)

Per class, halfway thresholds between the extremes of the other labeled items:
:math:`\tau^+_k = \tfrac12 (\max + \min)` of the positives' scores, :math:`\tau^-_k` of the negatives', at most
:math:`\tau^+_k`. Above the first a class is present with weight :math:`w_1`, below the second absent with weight
:math:`w_0`, between ambiguous. Where the head has class embeddings (``ml_decoder``), ambiguous entries still teach:
the embeddings of one image and class in a weak and a strong view shall find each other among all others (InfoNCE).
With a linear head there is no such term.
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
    """Weigh pseudo-labels by how often their like were right.

    Attributes:
        apart: share of the labeled items on which that is measured.
        bins: of the score, on 0 to 1.
        contrast: weight of the term for ambiguous entries; it needs a head with class embeddings.
        temperature: of that term.
        pairs: at most so many ambiguous entries take part in a step.
    """

    summary: ClassVar[str] = "weights by measured correctness, two thresholds per class, contrast for the ambiguous"
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
        """What correctness is measured on."""
        return self.apart

    def network(self, network: TagNet) -> TagNet:
        """Let a head with class embeddings see two views of each image."""
        return PairNet.of(network) if self.contrast and hasattr(network.head, "embed") else network

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Compare with the two thresholds, weigh by the measured shares."""
        f = scores.sigmoid()
        present, absent = halfway(labeled)
        labels = torch.where(f > present, 1, torch.where(f < absent, 0, -1))
        right = interpolate(f, share_of_positives(*labeled.scored(), self.bins))
        return Targets(labels.to(torch.int8), torch.where(labels == 1, right, 1 - right))

    def loss_labeled(self, output: Tensor, y: Tensor, weight: Tensor, loss: EntryLoss) -> Tensor:
        """Train on the strong view's logits."""
        return loss(PairNet.logits(output), y, weight)

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Add to the weighted entries the contrast of the ambiguous ones."""
        entries = loss(PairNet.logits(output), targets.labels, targets.weight)
        if output.ndim == 2:
            return entries
        return entries + self.contrast * self.info_nce(output, targets.labels == -1) / entries.numel()

    def info_nce(self, output: Tensor, ambiguous: Tensor) -> Tensor:
        """Return the summed cost of telling each ambiguous entry's weak view among the others, from its strong one."""
        strong, weak = (part.flatten(0, 1) for part in PairNet.embeddings(output))
        # as many as there may be, ambiguous first, drawn at random: the shapes stay the same in every step
        urgency = torch.rand(len(strong), device=output.device) + ambiguous.flatten()
        chosen = urgency.topk(min(self.pairs, len(strong))).indices
        counts = ambiguous.flatten()[chosen]
        likeness = strong[chosen] @ weak[chosen].T / self.temperature
        likeness = likeness.masked_fill(~counts, -1e4)  # those that are not ambiguous are nobody's neighbors
        cost = functional.cross_entropy(likeness, torch.arange(len(chosen), device=output.device), reduction="none")
        return torch.where(counts, cost, 0.0).sum()


def halfway(labeled: Labeled) -> tuple[Tensor, Tensor]:
    """Return per class the middle of the positives' scores and of the negatives', the latter at most the former."""
    if labeled.scores is None:
        raise TagspreadError("dicap looks at the scores of the labeled part, and none were given.")
    f, y = labeled.scores.sigmoid(), labeled.y.to(labeled.scores.device)

    def middle(where: Tensor) -> Tensor:
        low, high = f.masked_fill(~where, torch.inf).amin(0), f.masked_fill(~where, -torch.inf).amax(0)
        return torch.where(where.any(0), (low + high) / 2, torch.nan)

    present = middle(y == 1).nan_to_num(torch.inf)
    return present, torch.minimum(middle(y == 0).nan_to_num(-torch.inf), present)
