"""A network that sees each image whole and as four patches, with heads for true and for pseudo-labels."""

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
    """Heads for whole images and patches, for true and for pseudo-labels."""

    wants_map = False

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.whole_true, self.patch_true, self.whole_pseudo, self.patch_pseudo = (
            LinearHead(channels, classes) for _ in range(4)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Turn the features of the parts (B x 5 x channels) into four logits per class (B x 4 x classes)."""
        whole, patches = features[:, 0], features[:, 1:]
        return torch.stack(
            [self.whole_true(whole), fuse(self.patch_true(patches)),
             self.whole_pseudo(whole), fuse(self.patch_pseudo(patches))], dim=1
        )  # fmt: skip


class PatchNet(TagNet):
    """Images (B x 3 x H x W) to logits; parts of them (B x 5 x 3 x H x W) to the four heads' logits."""

    parts = PARTS

    @classmethod
    def of(cls, network: TagNet) -> PatchNet:
        """Return the network with four heads where one was."""
        classes, channels = network.head.weight.shape
        network.head = FourHeads(channels, classes)  # type: ignore[assignment]
        network.__class__ = cls  # the same backbone under the same names
        return network  # type: ignore[return-value]

    def show(self, views: Views, images: Tensor, rows: np.ndarray, epoch: int, cutout: bool) -> Tensor:
        """Return the strong views of whole and patches, each with a draw of its own."""
        parts = with_patches(images)
        numbers = (rows[:, None] * PARTS + np.arange(PARTS)).ravel()
        return views.strong(parts.flatten(0, 1), numbers, epoch, cutout=cutout).view_as(parts)

    def forward(self, images: Tensor) -> Tensor:
        """Return the prediction of images as they are, or what the four heads say of parts."""
        parts = with_patches(images) if images.ndim == 4 else images
        features = self.features(parts.flatten(0, 1)).view(*parts.shape[:2], -1)
        logits: Tensor = self.head(features)
        return logits[:, :2].mean(1) if images.ndim == 4 else logits


def fuse(logits: Tensor) -> Tensor:
    """Make one logit of those of the patches (B x patches x classes).

    >>> round(fuse(torch.tensor([[[4.0], [0.0], [0.0], [0.0]]])).item(), 4)
    3.7917
    """
    return (logits.softmax(1) * logits).sum(1)


def with_patches(images: Tensor) -> Tensor:
    """Return the image and its four quarters, enlarged to its size (B x 5 x 3 x H x W, bytes)."""
    size = images.shape[-2:]
    quarters = [half for row in images.tensor_split(2, -2) for half in row.tensor_split(2, -1)]
    enlarged = [functional.interpolate(q.float(), size, mode="bilinear").round().to(torch.uint8) for q in quarters]
    return torch.stack([images, *enlarged], dim=1)
