r"""D2L (ECCV 2024): dual decoupling, with separate heads for true labels and pseudo-labels, and image patches.

Each image is seen whole (x) and as a 2 x 2 grid of patches, enlarged and augmented independently. Four linear heads
share one network: h1 (whole image) and h2 (patches) learn from true labels, h3 and h4 from pseudo-labels. For each
class, the four patch logits v are combined by a softmax-weighted sum:

.. math::
    \phi(v) = \sum_p \mathrm{softmax}(v)_p\, v_p, \qquad
    L = \sum_{\text{labeled}} \ell(h_1) + \ell(\phi(h_2)) + \sum_{\text{unlabeled}} \ell(h_3) + \ell(\phi(h_4))

Pseudo-labels are :math:`[\sigma(\tfrac12 (h_1 + \phi(h_2))) \ge \tau_k]` of the teacher, computed batch by batch with
MAT's thresholds. The same mean of h1 and h2 is the prediction. After the warm-up, h3 and h4 start as copies of h1 and
h2. Every step passes five inputs per image through the network and costs accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.aliases import SettingValues
from tagspread.methods.base import EntryLoss, Labeled, State, Targets
from tagspread.methods.mat import MAT
from tagspread.vision.backbones import TagNet, check_linear
from tagspread.vision.patches import PatchNet


@dataclass(frozen=True)
class D2L(MAT):
    """D2L: MAT's thresholds, with four heads on whole images and patches. The options are those of MAT."""

    summary: ClassVar[str] = "MAT with image patches, and separate heads for true labels and pseudo-labels"
    per_step: ClassVar[bool] = True
    shares_warmup: ClassVar[bool] = False
    recipe: ClassVar[SettingValues] = {"start": "warmup", "warmup_epochs": 12, "head": "linear"}

    def start(self, labeled: Labeled) -> State:
        """Allocate the thresholds of an epoch."""
        return {"thresholds": torch.full((len(labeled.classes),), torch.inf)}

    def network(self, network: TagNet) -> TagNet:
        """Replace the head by four heads."""
        check_linear(network, "d2l")
        return PatchNet.of(network)

    def begin_unlabeled(self, network: TagNet) -> None:
        """Initialize the heads for pseudo-labels with copies of the heads for true labels."""
        heads = network.head
        for name in ("whole", "patch"):
            getattr(heads, f"{name}_pseudo").load_state_dict(getattr(heads, f"{name}_true").state_dict())

    def new_epoch(self, labeled: Labeled, state: State) -> None:
        """Choose the thresholds."""
        state["thresholds"].copy_(self.thresholds(labeled))

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Apply the thresholds."""
        return Targets((scores.sigmoid() >= state["thresholds"]).to(torch.int8))

    def step_targets(self, scores: Tensor, targets: Targets, labeled: Labeled, state: State) -> Targets:
        """Apply the thresholds to fresh scores."""
        return self.targets(scores, labeled, state)

    def combines_rows(self, network: TagNet) -> str | None:
        """Return None: the loss of each row depends on that row only."""
        del network
        return None

    def loss_labeled(self, output: Tensor, y: Tensor, weight: Tensor, loss: EntryLoss) -> Tensor:
        """Train h1 and h2 on true labels."""
        return sum_of_two(output[:, :2], y, weight, loss)

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Train h3 and h4 on pseudo-labels."""
        return sum_of_two(output[:, 2:], targets.labels, targets.weight, loss)


def sum_of_two(logits: Tensor, labels: Tensor, weight: Tensor | None, loss: EntryLoss) -> Tensor:
    """Return, for each entry, the loss on the whole image plus the loss on the patches."""
    return loss(logits[:, 0], labels, weight) + loss(logits[:, 1], labels, weight)
