"""A network that sees each image twice, in a strong and a weak view, and gives each class an embedding of both."""

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
    """Images (B x 3 x H x W) to logits; pairs of views (B x 2 x 3 x H x W) to logits and embeddings in one tensor.

    Of the latter (B x classes x 1 + 2 * 128), the first number is the strong view's logit, the rest its embedding and
    the weak view's, each of length one.
    """

    @classmethod
    def of(cls, network: TagNet) -> PairNet:
        """Return the network with a projection of its class embeddings."""
        network.head.add_module("project_pairs", nn.Linear(network.head.weight.shape[1], WIDTH))
        network.__class__ = cls  # the same parameters under the same names, and one more layer
        return network  # type: ignore[return-value]

    def show(self, views: Views, images: Tensor, rows: np.ndarray, epoch: int, cutout: bool) -> Tensor:
        """Return each image's strong and weak view."""
        strong = super().show(views, images, rows, epoch, cutout)
        return torch.stack([strong, views.weak(images, rows, epoch)], dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, or logits and embeddings of pairs."""
        if images.ndim == 4:
            return super().forward(images)
        maps = self.backbone.forward_features(self.prepare(images.flatten(0, 1)))  # type: ignore[operator]
        head: Any = self.head  # an ML-Decoder and its projection
        seen = head.embed(maps)
        strong, weak = seen.view(*images.shape[:2], *seen.shape[1:]).unbind(1)
        logits = (strong * head.weight).sum(-1) + head.bias
        projected = [functional.normalize(head.project_pairs(x).float(), dim=-1) for x in (strong, weak)]
        return torch.cat([logits[..., None].float(), *projected], dim=-1)

    @staticmethod
    def logits(output: Tensor) -> Tensor:
        """Return the logits of either kind of output."""
        return output if output.ndim == 2 else output[..., 0]

    @staticmethod
    def embeddings(output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the strong and the weak view's embeddings (B x classes x 128 each)."""
        return output[..., 1 : 1 + WIDTH], output[..., 1 + WIDTH :]
