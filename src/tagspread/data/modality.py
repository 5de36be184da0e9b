"""Modality of the items in a store: images or feature vectors, with their views, mirror images and batch sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

GPU_BATCH = 512
CPU_BATCH = 128
CPU_PIXELS = 8 * 224 * 224  # activations should fit into the CPU cache; 32 such images take twice as long


@dataclass(frozen=True)
class Modality(ABC):
    """Kind of the items in a store.

    Attributes:
        shape: shape of one item, such as (3, 224, 224).
        noun: plural noun for messages.
        has_views: whether items have weak and strong views; otherwise training uses them unchanged.
        has_mirror: whether an item has a mirror image with the same labels.
    """

    shape: tuple[int, ...]
    noun: ClassVar[str]
    has_views: ClassVar[bool]
    has_mirror: ClassVar[bool]

    def mirror(self, items: Tensor) -> Tensor:
        """Return the mirror images of a batch; items without mirror images are returned unchanged."""
        return items.flip(-1) if self.has_mirror else items

    @abstractmethod
    def suitable_batch(self, device: torch.device) -> int:
        """Return the fastest batch size for scoring items on a device."""


@dataclass(frozen=True)
class ImageModality(Modality):
    """Images: channels x height x width."""

    noun = "images"
    has_views = True
    has_mirror = True

    def suitable_batch(self, device: torch.device) -> int:
        """Return a large batch size for a GPU, and one that depends on the image size for a CPU.

        >>> cpu = torch.device("cpu")
        >>> [ImageModality((3, side, side)).suitable_batch(cpu) for side in (288, 224, 24)]
        [4, 8, 128]
        """
        if device.type != "cpu":
            return GPU_BATCH
        _, height, width = self.shape
        return max(4, min(CPU_BATCH, CPU_PIXELS // (height * width)))


@dataclass(frozen=True)
class FeatureModality(Modality):
    """Feature vectors, such as the outputs of a frozen network."""

    noun = "feature vectors"
    has_views = False
    has_mirror = False

    def suitable_batch(self, device: torch.device) -> int:
        """Return a large batch size for every device: a head has no large activations."""
        return GPU_BATCH


def modality_of(shape: tuple[int, ...]) -> Modality:
    """Return the modality of items of a shape; items with three dimensions are images.

    >>> modality_of((3, 24, 24)).noun, modality_of((512,)).noun
    ('images', 'feature vectors')
    """
    return ImageModality(shape) if len(shape) == 3 else FeatureModality(shape)
