"""Data augmentation: weak and strong views of image batches (random flip, Cutout, RandAugment).

A weak view is the image with a random horizontal flip. A strong view is a random flip, then Cutout, then up to two
operations of RandAugment. Each image has its own random parameters. Images are never changed in place.

The random numbers are counter-based: each is a hash of (seed, epoch, image, stream). An image therefore gets the same
view in any batch, process and device, and a run can be resumed without saving the state of a generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tagspread.errors import TagspreadError, check_choice
from tagspread.vision import operations, randaugment
from tagspread.vision.randaugment import OPERATIONS, Choices, Floats, Integers

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: consecutive multiples lie far apart
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of the splitmix64 finalizer
SHIFTS = (30, 27, 31)
__all__ = ["OPERATIONS", "Plan", "Views"]
# the streams of random numbers of an image in one epoch; three for the color, the rest for RandAugment
WEAK_FLIP, FLIP, CUT_X, CUT_Y, COLOR, RANDAUGMENT = 0, 1, 2, 3, 4, 8


def uniform(seed: int, epoch: int, rows: npt.ArrayLike, stream: int) -> npt.NDArray[np.float64]:
    """Return one uniform random number in [0, 1) per image.

    Args:
        seed: seed of the run; any integer.
        epoch: epoch number; each epoch has its own numbers.
        rows: index of each image in its dataset, a vector of integers.
        stream: number of the stream; separates the random numbers that one image needs in one epoch.

    >>> uniform(0, 3, [5, 6], stream=1).round(4).tolist()
    [0.8985, 0.7264]
    >>> uniform(0, 3, [6], stream=1).round(4).tolist()
    [0.7264]
    """
    index = check_rows(rows)
    key = 0
    for part in (seed, epoch, stream):
        # mix after every part, so that (1, 2) and (2, 1) give unrelated keys
        key = int(_mix(np.array([(key + (part + 1) * GOLDEN) & MASK], np.uint64))[0])
    counter = index.view(np.uint64) * np.uint64(GOLDEN) + np.array([key], np.uint64)
    # a float64 holds 53 bits, so the largest number stays below 1
    return (_mix(counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def check_rows(rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return ``rows`` as a vector of integers, or raise.

    >>> check_rows([3, 1])
    array([3, 1])
    """
    index = np.asarray(rows)
    if index.ndim != 1 or (index.size > 0 and index.dtype.kind not in "iu"):
        raise TagspreadError(
            f"rows is an array of {index.dtype} with shape {index.shape}; "
            "give a vector with the integer index of each image in its dataset."
        )
    return index.astype(np.int64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the splitmix64 finalizer, a bijection in which each input bit changes about half of the output bits."""
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(multiplier)
    return values ^ (values >> np.uint64(SHIFTS[-1]))


@dataclass(frozen=True)
class Plan:
    """The random parameters of the strong views of B images."""

    flip: npt.NDArray[np.bool_]  # B
    cutout_at: Floats  # B x 2: center (x, y) of the square, as a share of width and height
    cutout_color: npt.NDArray[np.uint8]  # B x 3
    randaugment: Choices


@dataclass(frozen=True)
class Views:
    """Weak and strong augmentation for training.

    Attributes:
        seed: seed of all random parameters.
        flip: flip each image left to right with a probability of 1/2.
        cutout: side of the Cutout square of strong views, as a share of the image's shorter side; 0 disables it.
        operations: operations that RandAugment draws from, out of `OPERATIONS`; () disables it.

    >>> views = Views(seed=1)
    >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    >>> views.strong(images, np.array([7, 12]), epoch=0).shape
    torch.Size([2, 3, 32, 32])
    """

    seed: int = 0
    flip: bool = True
    cutout: float = 0.5
    operations: tuple[str, ...] = OPERATIONS

    def __post_init__(self) -> None:
        if not 0 <= self.cutout <= 1:
            raise TagspreadError(
                f"cutout is {self.cutout}; give the square's side as a share of the image's, from 0 (none) to 1."
            )
        if isinstance(self.operations, str):
            raise TagspreadError(f"operations is the text {self.operations!r}; give a tuple of names.")
        for name in self.operations:
            check_choice("an entry of operations", name, OPERATIONS)

    def weak(self, images: Tensor, rows: npt.ArrayLike, epoch: int) -> Tensor:
        """Return weak views: each image flipped with a probability of 1/2, independently of its strong view.

        Args:
            images: B x 3 x H x W (or B x 1 x H x W) in uint8, on any device.
            rows: index of each image in its dataset.
            epoch: epoch; each epoch has its own random parameters.

        >>> image = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)
        >>> [Views().weak(image, [5], epoch).flatten().tolist() for epoch in (0, 1)]
        [[3, 2, 1], [1, 2, 3]]
        """
        index = _check(images, rows)
        return _mirror(images, uniform(self.seed, epoch, index, WEAK_FLIP) < 0.5) if self.flip else images

    def strong(self, images: Tensor, rows: npt.ArrayLike, epoch: int, *, cutout: bool = True) -> Tensor:
        """Return strong views: random flip, Cutout, then up to two operations of RandAugment.

        Args:
            images: B x 3 x H x W (or B x 1 x H x W) in uint8, on any device.
            rows: index of each image in its dataset.
            epoch: epoch; each epoch has its own random parameters.
            cutout: False omits Cutout, as in the warm-up; RandAugment's own smaller Cutout stays.

        >>> image = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
        >>> Views(flip=False, cutout=0, operations=("Invert",)).strong(image, [8], epoch=0)[0, 0].tolist()
        [[255, 254, 253], [252, 251, 250], [249, 248, 247]]
        """
        plan = self.plan(_check(images, rows), epoch)
        views = _mirror(images, plan.flip) if self.flip else images
        if cutout and self.cutout > 0:
            views = _cut_out(views, plan, self.cutout)
        if self.operations:
            views = randaugment.apply(views, plan.randaugment)
        return views

    def plan(self, rows: npt.ArrayLike, epoch: int) -> Plan:
        """Return the random parameters of the strong views of these images, which do not depend on the batch.

        >>> Views().plan([3, 4], epoch=0).randaugment.names()
        [('TranslateX', 'AutoContrast'), ('Solarize', 'Contrast')]
        """
        index = check_rows(rows)

        def draw(stream: int) -> Floats:
            return uniform(self.seed, epoch, index, stream)

        return Plan(
            flip=draw(FLIP) < 0.5,
            cutout_at=np.stack([draw(CUT_X), draw(CUT_Y)], axis=1),
            cutout_color=np.stack([draw(COLOR + k) * 256 for k in range(3)], axis=1).astype(np.uint8),
            randaugment=randaugment.choose(self.operations, lambda stream: draw(RANDAUGMENT + stream)),
        )


def _check(images: Tensor, rows: npt.ArrayLike) -> Integers:
    """Return ``rows`` as a vector; raise unless images are uint8, B x C x H x W, with one row per image."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.ndim != 4:
        given = type(images).__name__
        if isinstance(images, Tensor):
            given = f"{images.dtype} of shape {tuple(images.shape)}"
        raise TagspreadError(f"images are {given}; give a uint8 tensor, images x channels x height x width.")
    if images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise TagspreadError(
            f"images have shape {tuple(images.shape)}; give 3 channels (or 1), and at least one pixel."
        )
    index = check_rows(rows)
    if len(index) != len(images):
        raise TagspreadError(f"rows has {len(index)} entries for {len(images)} images; give one row per image.")
    return index


def _upload(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)


def _mirror(images: Tensor, flip: npt.NDArray[np.bool_]) -> Tensor:
    return torch.where(_upload(flip, images.device)[:, None, None, None], images.flip(3), images)


def _cut_out(images: Tensor, plan: Plan, share: float) -> Tensor:
    channels, height, width = images.shape[1:]
    side = np.full(len(images), round(share * min(height, width)))
    center = np.floor(plan.cutout_at * (width, height)).astype(np.int64)
    x, y, sides, *fill = _upload(np.column_stack([center, side, plan.cutout_color]), images.device).unbind(1)
    return operations.cut_square(images, x, y, sides, torch.stack(fill[:channels], dim=1).to(torch.uint8))
