"""Rules that were tried on the way to a better preset, for ``benchmarks/preset.py``; none is part of the package.

``growing``  CAP's interval of positives grows with the epochs.
``soft``     chances in place of yes and no, moved so that each class is expected as often as the labeled part says.
``taught``   the scores of finished runs, of other networks too, have a say beside the teacher's.
``joined``   several networks side by side, one head over all their features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tagspread.core.thresholds import cat_targets
from tagspread.methods import METHODS
from tagspread.methods.base import Labeled, State, Targets
from tagspread.methods.cap import CAP
from tagspread.vision.backbones import TagNet, build_network
from tagspread.vision.heads import LinearHead


@dataclass(frozen=True)
class Growing(CAP):
    """CAP whose reliable interval of positives grows with the epochs."""

    last_pos: float = 0.9

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Move from the first share to the last in a straight line."""
        keep = self.keep_pos + (self.last_pos - self.keep_pos) * labeled.epoch / max(1, labeled.epochs - 1)
        return Targets(cat_targets(scores, labeled.positives, labeled.known, keep, self.keep_neg))


def expected_as_labeled(scores: Tensor, labeled: Labeled, sharpness: float) -> Tensor:
    """Return sigmoid(sharpness * z + b_k), with the b_k that makes class k's mean its share in the labeled part."""
    shares = [c / max(1, n) for c, n in zip(labeled.positives, labeled.known, strict=True)]
    wanted = torch.tensor(shares, device=scores.device)
    z = sharpness * scores
    low, high = (torch.full_like(wanted, end) for end in (-60.0, 60.0))
    for _ in range(40):  # the mean grows with b: halve the interval that holds it
        middle = (low + high) / 2
        above = (z + middle).sigmoid().mean(0) > wanted
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (z + (low + high) / 2).sigmoid()


@dataclass(frozen=True)
class Soft(CAP):
    """Class-distribution-aware chances instead of labels."""

    sharpness: float = 1.0

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Move each class's scores until they expect as many positives as the labeled part."""
        return Targets(expected_as_labeled(scores, labeled, self.sharpness))


@dataclass(frozen=True)
class Taught(Soft):
    """CAP, or its soft form, on the mean of the teacher's logits and those of finished runs for the same images."""

    told: tuple[str, ...] = ()  # .npy files, as preset.py --scores leaves them
    own: float = 1.0  # how much the teacher counts beside each of them
    soft: bool = False

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Ask all of them."""
        others = [torch.from_numpy(np.load(file)).to(scores) for file in self.told]
        together = (self.own * scores + torch.stack(others).sum(0)) / (self.own + len(others))
        if self.soft:
            return super().targets(together, labeled, state)
        return CAP.targets(self, together, labeled, state)


class SideBySide(nn.Module):
    """Several networks that look at the same images, each normalized in its own way."""

    def __init__(self, networks: list[TagNet]) -> None:
        super().__init__()
        self.backbones = nn.ModuleList(network.backbone for network in networks)
        for i, network in enumerate(networks):
            self.register_buffer(f"scale{i}", network.scale.clone())
            self.register_buffer(f"shift{i}", network.shift.clone())

    def forward(self, images: Tensor) -> Tensor:
        """Return all their features, one after the other."""
        buffers = dict(self.named_buffers(recurse=False))
        seen = [
            backbone(torch.addcmul(buffers[f"shift{i}"], images, buffers[f"scale{i}"]))
            for i, backbone in enumerate(self.backbones)
        ]
        return torch.cat(seen, dim=1)


@dataclass(frozen=True)
class Joined(CAP):
    """CAP with further networks beside the first."""

    others: tuple[tuple[str, str], ...] = ()  # name and weights of each

    def network(self, network: TagNet) -> TagNet:
        """Put the others beside it, and one head over all."""
        classes, channels = network.head.weight.shape
        networks = [network, *(build_network(name, classes, weights=weights) for name, weights in self.others)]
        width = channels + sum(other.head.weight.shape[1] for other in networks[1:])
        network.backbone, network.head = SideBySide(networks), LinearHead(width, classes)
        network.scale.fill_(1.0)
        network.shift.fill_(0.0)
        return network.to(memory_format=torch.channels_last)


METHODS |= {"growing": Growing, "soft": Soft, "taught": Taught, "joined": Joined}
