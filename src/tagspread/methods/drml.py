r"""DRML (AAAI 2020): two classifiers with maximal disagreement, and a network of label relations, on frozen features.

A projector P and two classifiers work on frozen features x; a relation network R works on the outer product of their
outputs:

.. math::
    c_i = C_i(P(x)), \qquad r = R(\mathrm{vec}(c_1 c_2^\top)), \qquad
    L = \lVert c_1 - y \rVert^2 + \lVert c_2 - y \rVert^2 + 0.2\, \lVert r - y \rVert^2, \qquad
    D = 10^{-5} \sum_{\text{unlabeled}} |c_1 - c_2|

(means over entries in L). One step is four updates, each with its own Adam optimizer: L over P, C1, C2; L - D over C1,
C2; D over P; L over R. After a third of the epochs, each epoch selects the tenth of the remaining unlabeled set on
which the classifiers agree best, by :math:`\lVert c_1 - c_2 \rVert^2`, and moves it to the labeled side permanently,
with r as soft target. The prediction is r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tagspread.aliases import SettingValues
from tagspread.methods.base import Labeled, Method, State, StudentStep, Targets, check_share
from tagspread.vision.backbones import TagNet, check_linear
from tagspread.vision.dual_relation import DualRelation

RATES = (1e-4, 1e-5, 1e-5, 1e-3)  # learning rates of the four updates
AIMS = ((1, 0), (1, -1), (0, 1), (1, 0))  # what each update minimizes, in multiples of L and D
RELATION, DISAGREEMENT = 0.2, 1e-5


class FourUpdates:
    """One training step: four losses, four optimizers; records how well the classifiers agree on each row."""

    def __init__(self, head: DualRelation, state: State) -> None:
        self.head, self.state = head, state
        pair = [*head.first.parameters(), *head.second.parameters()]
        projector, relation = list(head.projector.parameters()), list(head.relation.parameters())
        self.parts = ([*projector, *pair], pair, projector, relation)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(part, lr=rate) for part, rate in zip(self.parts, RATES, strict=True)
        ]

    def __call__(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Make the four updates; return the labeled loss before them."""
        has_label = labels >= 0  # moved rows count as labeled
        unlabeled = (~has_label.any(1)).float()[:, None]

        def losses() -> tuple[Tensor, Tensor]:
            first, second = self.head.both(images)
            predictions = (first, second, self.head.relate(first, second).sigmoid())
            n_labels = has_label.sum().clamp(min=1)
            errors = [((f - labels).square() * has_label * weight).sum() / n_labels for f in predictions]
            disagreement = DISAGREEMENT * ((first - second).abs() * unlabeled).sum()
            if len(places):
                self.state["distance"][places] = (first - second).detach().square().sum(1)[-len(places) :]
            return errors[0] + errors[1] + RELATION * errors[2], disagreement

        update_losses: list[Tensor] = []
        for part, optimizer, (of_labels, of_disagreement) in zip(self.parts, self.optimizers, AIMS, strict=True):
            labeled, disagreement = losses()
            loss = of_labels * labeled + of_disagreement * disagreement
            gradients = torch.autograd.grad(loss, part)  # only the gradients that this update needs
            for parameter, gradient in zip(part, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            update_losses.append(loss.detach())
        return update_losses[0]


@dataclass(frozen=True)
class DRML(Method):
    """DRML: two disagreeing classifiers and a relation network on frozen features; rows with agreement become labeled.

    Attributes:
        moved: share of the remaining unlabeled set that becomes labeled in each epoch.
        after: share of the epochs before the first rows move.
    """

    summary: ClassVar[str] = (
        "two classifiers and a relation network on frozen features; images on which both agree become labeled"
    )
    shares_warmup: ClassVar[bool] = False
    on_features: ClassVar[bool] = True
    recipe: ClassVar[SettingValues] = {
        "start": "warmup", "warmup_epochs": 0, "epochs": 150, "batch": 128, "batch_labeled": 64, "head": "linear",
        "ema_decay": 0.0, "evaluate_every": 10,
        "normalize": "weights",  # a frozen network cannot adapt to another normalization than it was pretrained with
    }  # fmt: skip
    moved: float = 0.1
    after: float = 0.34

    def __post_init__(self) -> None:
        check_share("moved", self.moved)
        check_share("after", self.after)

    def start(self, labeled: Labeled) -> State:
        """Allocate the soft targets of moved rows and the distance between the classifiers on each row."""
        shape = (labeled.unlabeled_size, len(labeled.classes))
        return {"soft": torch.full(shape, -1.0), "distance": torch.full(shape[:1], torch.inf)}

    def network(self, network: TagNet) -> TagNet:
        """Replace the head by the dual relation network."""
        check_linear(network, "drml")
        classes, channels = network.head.weight.shape
        network.head = DualRelation(channels, classes)  # type: ignore[assignment]
        return network

    def combines_rows(self, network: TagNet) -> str | None:
        """Return the reason: a step consists of four updates, each with gradients of its own."""
        del network
        return "its step makes four updates of a small head on features, which one process computes fast enough"

    def own_step(self, network: TagNet, state: State) -> StudentStep | None:
        """Make four updates per step."""
        return FourUpdates(network.head, state)  # type: ignore[arg-type]

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Move the rows on which the classifiers agree best, then train on all rows that have moved."""
        unlabeled = (state["soft"] < 0).all(1)
        if labeled.epoch > self.after * labeled.epochs:
            distance = torch.where(unlabeled, state["distance"], torch.inf)
            selected = distance.sort(stable=True).indices[: int(self.moved * int(unlabeled.sum()))]
            state["soft"][selected] = scores.sigmoid()[selected]
        return Targets(state["soft"].clone())
