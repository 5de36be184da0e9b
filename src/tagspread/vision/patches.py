"""Patch network (for ``d2l``): processes each image whole and as four patches, with four heads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tagspread.vision.augment import Views
from tagspread.vision.backbones import TagNet
from tagspread.vision.heads import LinearHead

PARTS = 5  # the whole image and four patches


class FourHeads(nn.Module):
    """Heads for whole images and patches, for true labels and pseudo-labels."""

    wants_map = False

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.whole_true, self.patch_true, self.whole_pseudo, self.patch_pseudo = (
            LinearHead(channels, classes) for _ in range(4)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map the features of the parts (B x 5 x channels) to four logits per class (B x 4 x classes)."""
        whole, patches = features[:, 0], features[:, 1:]
        return torch.stack(
            [self.whole_true(whole), fuse(self.patch_true(patches)),
             self.whole_pseudo(whole), fuse(self.patch_pseudo(patches))], dim=1
        )  # fmt: skip


class PatchNet(TagNet):
    """Map images (B x 3 x H x W) to logits, or their parts (B x 5 x 3 x H x W) to the logits of the four heads."""

    parts = PARTS

    @classmethod
    def of(cls, network: TagNet) -> PatchNet:
        """Replace the head of a network by four heads and return it."""
        classes, channels = network.head.weight.shape
        network.head = FourHeads(channels, classes)  # type: ignore[assignment]
        network.__class__ = cls  # the same backbone under the same names
        return network  # type: ignore[return-value]

    def show(self, views: Views, images: Tensor, rows: np.ndarray, epoch: int, cutout: bool) -> Tensor:
        """Return the strong views of the whole image and its patches, each with its own random parameters."""
        parts = with_patches(images)
        numbers = (rows[:, None] * PARTS + np.arange(PARTS)).ravel()
        return views.strong(parts.flatten(0, 1), numbers, epoch, cutout=cutout).view_as(parts)

    def forward(self, images: Tensor) -> Tensor:
        """Return the prediction for images, or the logits of the four heads for parts."""
        parts = with_patches(images) if images.ndim == 4 else images
        features = self.features(parts.flatten(0, 1)).view(*parts.shape[:2], -1)
        logits: Tensor = self.head(features)
        return logits[:, :2].mean(1) if images.ndim == 4 else logits


def fuse(logits: Tensor) -> Tensor:
    """Combine the logits of the patches (B x patches x classes) into one logit per class.

    >>> round(fuse(torch.tensor([[[4.0], [0.0], [0.0], [0.0]]])).item(), 4)
    3.7917
    """
    return (logits.softmax(1) * logits).sum(1)


def with_patches(images: Tensor) -> Tensor:
    """Return each image and its four quarters, enlarged to its size (B x 5 x 3 x H x W, uint8)."""
    size = images.shape[-2:]
    quarters = [half for row in images.tensor_split(2, -2) for half in row.tensor_split(2, -1)]
    enlarged = [functional.interpolate(q.float(), size, mode="bilinear").round().to(torch.uint8) for q in quarters]
    return torch.stack([images, *enlarged], dim=1)
