"""Experimental methods for ``benchmarks/preset.py``, tried for a better preset; none is part of the package.

``growing``  CAP with a share of positives (keep_pos) that grows with the epochs.
``soft``     soft targets, shifted so that the mean of each class equals its frequency in the labeled set.
``taught``   targets from the mean of the teacher's logits and those of other finished runs.
``joined``   several networks in parallel, with one head on all their features.
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
    """CAP with a share of positives that grows linearly with the epochs."""

    last_pos: float = 0.9

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Interpolate the share between its first and last value."""
        keep = self.keep_pos + (self.last_pos - self.keep_pos) * labeled.epoch / max(1, labeled.epochs - 1)
        return Targets(cat_targets(scores, labeled.positives, labeled.known, keep, self.keep_neg))


def expected_as_labeled(scores: Tensor, labeled: Labeled, sharpness: float) -> Tensor:
    """Return sigmoid(sharpness * z + b_k), where b_k makes the mean of class k its frequency in the labeled set."""
    shares = [c / max(1, n) for c, n in zip(labeled.positives, labeled.known, strict=True)]
    wanted = torch.tensor(shares, device=scores.device)
    z = sharpness * scores
    low, high = (torch.full_like(wanted, end) for end in (-60.0, 60.0))
    for _ in range(40):  # bisection: the mean increases with b
        middle = (low + high) / 2
        above = (z + middle).sigmoid().mean(0) > wanted
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (z + (low + high) / 2).sigmoid()


@dataclass(frozen=True)
class Soft(CAP):
    """Class-distribution-aware soft targets."""

    sharpness: float = 1.0

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Shift the scores of each class so that their mean equals its frequency in the labeled set."""
        return Targets(expected_as_labeled(scores, labeled, self.sharpness))


@dataclass(frozen=True)
class Taught(Soft):
    """CAP, or its soft form, on the mean of the teacher's logits and the logits of other finished runs."""

    files: tuple[str, ...] = ()  # logits of other runs: .npy files written by preset.py --scores
    own: float = 1.0  # weight of the teacher relative to each other run
    soft: bool = False

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Average the logits and compute the targets."""
        others = [torch.from_numpy(np.load(file)).to(scores) for file in self.files]
        mean = (self.own * scores + torch.stack(others).sum(0)) / (self.own + len(others))
        if self.soft:
            return super().targets(mean, labeled, state)
        return CAP.targets(self, mean, labeled, state)


class SideBySide(nn.Module):
    """Several backbones in parallel, each with its own normalization."""

    def __init__(self, networks: list[TagNet]) -> None:
        super().__init__()
        self.backbones = nn.ModuleList(network.backbone for network in networks)
        for i, network in enumerate(networks):
            self.register_buffer(f"scale{i}", network.scale.clone())
            self.register_buffer(f"shift{i}", network.shift.clone())

    def forward(self, images: Tensor) -> Tensor:
        """Return the concatenated features of all backbones."""
        buffers = dict(self.named_buffers(recurse=False))
        features = [
            backbone(torch.addcmul(buffers[f"shift{i}"], images, buffers[f"scale{i}"]))
            for i, backbone in enumerate(self.backbones)
        ]
        return torch.cat(features, dim=1)


@dataclass(frozen=True)
class Joined(CAP):
    """CAP on several networks with one common head."""

    others: tuple[tuple[str, str], ...] = ()  # name and weights of each

    def network(self, network: TagNet) -> TagNet:
        """Add the other backbones, and one head on the features of all."""
        classes, channels = network.head.weight.shape
        networks = [network, *(build_network(name, classes, weights=weights) for name, weights in self.others)]
        width = channels + sum(other.head.weight.shape[1] for other in networks[1:])
        network.backbone, network.head = SideBySide(networks), LinearHead(width, classes)
        network.scale.fill_(1.0)
        network.shift.fill_(0.0)
        return network.to(memory_format=torch.channels_last)


METHODS |= {"growing": Growing, "soft": Soft, "taught": Taught, "joined": Joined}
