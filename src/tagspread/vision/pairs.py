"""Pair network (for ``dicap``): processes a strong and a weak view of each image and embeds each class in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tagspread.vision.augment import Views
from tagspread.vision.backbones import TagNet

WIDTH = 128


class PairNet(TagNet):
    """Map images (B x 3 x H x W) to logits, or pairs of views (B x 2 x 3 x H x W) to logits and embeddings.

    The output for pairs is one tensor (B x classes x 1 + 2 * 128). Its first number is the logit of the strong view,
    followed by the embeddings of the strong and of the weak view, each of length one.
    """

    @classmethod
    def of(cls, network: TagNet) -> PairNet:
        """Add a projection of the class embeddings to a network and return it."""
        network.head.add_module("project_pairs", nn.Linear(network.head.weight.shape[1], WIDTH))
        network.__class__ = cls  # the same parameters under the same names, and one more layer
        return network  # type: ignore[return-value]

    def show(self, views: Views, images: Tensor, rows: np.ndarray, epoch: int, cutout: bool) -> Tensor:
        """Return the strong and the weak view of each image."""
        strong = super().show(views, images, rows, epoch, cutout)
        return torch.stack([strong, views.weak(images, rows, epoch)], dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images, or logits and embeddings for pairs."""
        if images.ndim == 4:
            return super().forward(images)
        maps = self.backbone.forward_features(self.prepare(images.flatten(0, 1)))  # type: ignore[operator]
        head: Any = self.head  # an ML-Decoder and its projection
        embedded = head.embed(maps)
        strong, weak = embedded.view(*images.shape[:2], *embedded.shape[1:]).unbind(1)
        logits = (strong * head.weight).sum(-1) + head.bias
        projected = [functional.normalize(head.project_pairs(x).float(), dim=-1) for x in (strong, weak)]
        return torch.cat([logits[..., None].float(), *projected], dim=-1)

    @staticmethod
    def logits(output: Tensor) -> Tensor:
        """Return the logits of either kind of output."""
        return output if output.ndim == 2 else output[..., 0]

    @staticmethod
    def embeddings(output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the strong and of the weak view (B x classes x 128 each)."""
        return output[..., 1 : 1 + WIDTH], output[..., 1 + WIDTH :]
