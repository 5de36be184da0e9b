r"""DRML (AAAI 2020): two classifiers that look for what they disagree about, and a network of their relations.

On frozen features x, a projector P, two classifiers and a relation network R over their outer product:

.. math::
    c_i = C_i(P(x)), \qquad r = R(\mathrm{vec}(c_1 c_2^\top)), \qquad
    L = \lVert c_1 - y \rVert^2 + \lVert c_2 - y \rVert^2 + 0.2\, \lVert r - y \rVert^2, \qquad
    D = 10^{-5} \sum_{\text{unlabeled}} |c_1 - c_2|

(means over entries in L). One step is four updates, each by an Adam of its own: L over P, C1, C2; L - D over C1, C2;
D over P; L over R. When a third of the epochs is over, each epoch moves the tenth of the remaining unlabeled set on
which the classifiers agree best, by :math:`\lVert c_1 - c_2 \rVert^2`, to the labeled side for good, with r as soft
target. The prediction is r.
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

RATES = (1e-4, 1e-5, 1e-5, 1e-3)  # of the four updates
AIMS = ((1, 0), (1, -1), (0, 1), (1, 0))  # what each of them minimizes, in multiples of L and D
RELATION, DISAGREEMENT = 0.2, 1e-5


class FourUpdates:
    """One step: four losses, four optimizers, and a note of how well the classifiers agree on each row."""

    def __init__(self, head: DualRelation, state: State) -> None:
        self.head, self.state = head, state
        pair = [*head.first.parameters(), *head.second.parameters()]
        projector, relation = list(head.projector.parameters()), list(head.relation.parameters())
        self.parts = ([*projector, *pair], pair, projector, relation)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(part, lr=rate) for part, rate in zip(self.parts, RATES, strict=True)
        ]

    def __call__(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Update four times; return the labeled loss before."""
        known = labels >= 0  # what was moved counts as labeled
        free = (~known.any(1)).float()[:, None]

        def losses() -> tuple[Tensor, Tensor]:
            first, second = self.head.both(images)
            found = (first, second, self.head.relate(first, second).sigmoid())
            errors = [((f - labels).square() * known * weight).sum() / known.sum().clamp(min=1) for f in found]
            disagreement = DISAGREEMENT * ((first - second).abs() * free).sum()
            if len(places):
                self.state["distance"][places] = (first - second).detach().square().sum(1)[-len(places) :]
            return errors[0] + errors[1] + RELATION * errors[2], disagreement

        found: list[Tensor] = []
        for part, optimizer, (of_labels, of_disagreement) in zip(self.parts, self.optimizers, AIMS, strict=True):
            labeled, disagreement = losses()
            loss = of_labels * labeled + of_disagreement * disagreement
            slopes = torch.autograd.grad(loss, part)  # those of the other parts would be work for nothing
            for parameter, slope in zip(part, slopes, strict=True):
                parameter.grad = slope
            optimizer.step()
            found.append(loss.detach())
        return found[0]


@dataclass(frozen=True)
class DRML(Method):
    """Two disagreeing classifiers and their relations, on frozen features; sure rows move over.

    Attributes:
        moved: share of the remaining unlabeled set that moves in each epoch.
        after: share of the epochs before the first moves.
    """

    summary: ClassVar[str] = "two classifiers and a relation network on frozen features, agreed rows move over"
    shares_warmup: ClassVar[bool] = False
    on_features: ClassVar[bool] = True
    recipe: ClassVar[SettingValues] = {
        "start": "warmup", "warmup_epochs": 0, "epochs": 150, "batch": 128, "batch_labeled": 64, "head": "linear",
        "ema_decay": 0.0, "evaluate_every": 10,
        "normalize": "weights",  # a frozen network cannot get used to images unlike those it was trained on
    }  # fmt: skip
    moved: float = 0.1
    after: float = 0.34

    def __post_init__(self) -> None:
        check_share("moved", self.moved)
        check_share("after", self.after)

    def start(self, labeled: Labeled) -> State:
        """Remember who moved with which targets, and how far the classifiers were apart on each row."""
        shape = (labeled.unlabeled_size, len(labeled.classes))
        return {"soft": torch.full(shape, -1.0), "distance": torch.full(shape[:1], torch.inf)}

    def network(self, network: TagNet) -> TagNet:
        """Put the dual relation network on top."""
        check_linear(network, "drml")
        classes, channels = network.head.weight.shape
        network.head = DualRelation(channels, classes)  # type: ignore[assignment]
        return network

    def own_step(self, network: TagNet, state: State) -> StudentStep | None:
        """Update four times per step."""
        return FourUpdates(network.head, state)  # type: ignore[arg-type]

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Move the rows that the classifiers agree on best, then train on all that moved."""
        waiting = (state["soft"] < 0).all(1)
        if labeled.epoch > self.after * labeled.epochs:
            distance = torch.where(waiting, state["distance"], torch.inf)
            chosen = distance.sort(stable=True).indices[: int(self.moved * int(waiting.sum()))]
            state["soft"][chosen] = scores.sigmoid()[chosen]
        return Targets(state["soft"].clone())
