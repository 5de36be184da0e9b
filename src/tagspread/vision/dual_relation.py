"""Dual relation head (for ``drml``): two classifiers on one projection, and a network on their outer product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tagspread.vision.heads import full_precision


class DualRelation(nn.Module):
    """Map features (B x channels) to logits of the relation network (B x classes)."""

    wants_map = False

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(channels))  # mean of the labeled features, set before training
        self.register_buffer("spread", torch.ones(channels))
        self.center: Tensor
        self.spread: Tensor
        self.projector = nn.Sequential(nn.Linear(channels, 1024), nn.LeakyReLU(0.1), nn.Linear(1024, 1024))
        self.first, self.second = (
            nn.Sequential(nn.Linear(1024, 800), nn.ReLU(), nn.Linear(800, classes), nn.Sigmoid()) for _ in range(2)
        )
        self.relation = nn.Sequential(nn.Linear(classes**2, 1000), nn.ReLU(), nn.Linear(1000, classes))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    @torch.no_grad()
    def standardize(self, features: Tensor) -> None:
        """Center and scale what comes in by these features, those of the labeled images."""
        self.center.copy_(features.mean(0))
        spread = features.std(0, correction=0)
        # a feature that is silent in all of them may speak in the unlabeled set
        self.spread.copy_(torch.where(spread > 1e-6, spread, 1.0))

    def both(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of both classifiers."""
        projected = self.projector((features - self.center) / self.spread)
        return self.first(projected), self.second(projected)

    def relate(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the logits of the relation network."""
        return self.relation((first[:, :, None] * second[:, None, :]).flatten(1))  # type: ignore[no-any-return]

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of the prediction."""
        with full_precision(features):
            return self.relate(*self.both(features.to(self.center.dtype)))
