r"""D2L (ECCV 2024): two decouplings; heads that give pseudo-labels never see any, and patches have heads of their own.

Each image is seen whole (x) and as a 2 x 2 grid of patches, enlarged and changed independently. Four linear heads
share one network: h1 (whole) and h2 (patches) learn from true labels, h3 and h4 from pseudo-labels. Per class, the
four patch logits v become one in which the largest speaks loudest:

.. math::
    \phi(v) = \sum_p \mathrm{softmax}(v)_p\, v_p, \qquad
    L = \sum_{\text{labeled}} \ell(h_1) + \ell(\phi(h_2)) + \sum_{\text{unlabeled}} \ell(h_3) + \ell(\phi(h_4))

Pseudo-labels are :math:`[\sigma(\tfrac12 (h_1 + \phi(h_2))) \ge \tau_k]` of the teacher, batch by batch, with MAT's
thresholds; the same mean of h1 and h2 is the prediction. After the warm-up, h3 and h4 begin as copies of h1 and h2. A
step sees five images for every one, and costs accordingly.
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
    """MAT's thresholds with four heads on whole images and patches; its options are MAT's."""

    summary: ClassVar[str] = "MAT with patches, and with heads for giving and for taking pseudo-labels"
    per_step: ClassVar[bool] = True
    shares_warmup: ClassVar[bool] = False
    recipe: ClassVar[SettingValues] = {"start": "warmup", "warmup_epochs": 12, "head": "linear"}

    def start(self, labeled: Labeled) -> State:
        """Make room for the thresholds of an epoch."""
        return {"thresholds": torch.full((len(labeled.classes),), torch.inf)}

    def network(self, network: TagNet) -> TagNet:
        """Put four heads where one was."""
        check_linear(network, "d2l")
        return PatchNet.of(network)

    def begin_unlabeled(self, network: TagNet) -> None:
        """Begin the heads for pseudo-labels as copies of those for true ones."""
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

    def loss_labeled(self, output: Tensor, y: Tensor, weight: Tensor, loss: EntryLoss) -> Tensor:
        """True labels reach h1 and h2."""
        return sum_of_two(output[:, :2], y, weight, loss)

    def loss(self, output: Tensor, targets: Targets, loss: EntryLoss, state: State) -> Tensor:
        """Pseudo-labels reach h3 and h4."""
        return sum_of_two(output[:, 2:], targets.labels, targets.weight, loss)


def sum_of_two(logits: Tensor, labels: Tensor, weight: Tensor | None, loss: EntryLoss) -> Tensor:
    """Return the loss of whole plus the loss of patches, entry by entry."""
    return loss(logits[:, 0], labels, weight) + loss(logits[:, 1], labels, weight)
