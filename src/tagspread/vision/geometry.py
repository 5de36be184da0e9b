"""Shear, translate and rotate for whole batches, each image by its own amount, to the bit as Pillow does.

All of them work backwards: for every pixel of the result, where in the image does it come from? What
comes from outside is gray. Rotations and translations copy the nearest pixel, so that a second one after
any other of these operations asks the first one at whole pixels only: both together are one resampling.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FILL = 128  # the gray of what lies outside a image
ONE = 1 << 16  # Pillow finds the nearest pixel with 16 bits after the binary point
INT32_SIDE = 8192  # up to this side no position in 16.16 fixed point leaves int32

Matrix = npt.NDArray[np.int64]  # six numbers a, b, c, d, e, f in 16.16: x' = a x + b y + c, y' = d x + e y + f


def translation(dx: float, dy: float) -> Matrix:
    """Return the matrix that takes each pixel from ``dx`` to the right and ``dy`` below of it.

    >>> (translation(1.7, -0.2) / ONE).tolist()
    [1.0, 0.0, 2.0, 0.0, 1.0, 0.0]
    """
    # at a pixel's center, .5, rounded down: the shift is a whole number of pixels
    return np.array([ONE, 0, math.floor(dx + 0.5) * ONE, 0, ONE, math.floor(dy + 0.5) * ONE], np.int64)


def rotation(degrees: float, height: int, width: int) -> Matrix:
    """Return the matrix that turns a image counter-clockwise around its center.

    >>> rotation(90, 2, 2).tolist()  # the pixel at (0, 0) comes from (1, 0)
    [0, -65536, 98304, 65536, 0, 32768]
    """
    angle = -math.radians(degrees)
    # Pillow rounds here, which matters: the last bits decide which of two pixels is the nearest
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    c = cosine * -x + sine * -y + x
    f = -sine * -x + cosine * -y + y
    # the offsets are those of the first pixel's center
    exact = (cosine, sine, c + cosine * 0.5 + sine * 0.5, -sine, cosine, f + -sine * 0.5 + cosine * 0.5)
    return np.array([math.floor(value * ONE + 0.5) for value in exact], np.int64)


def nearest(images: Tensor, inner: Tensor, outer: Tensor | None = None) -> Tensor:
    """Resample each image with its matrix, taking the nearest pixel.

    Args:
        images: B x C x H x W.
        inner: B x 6, from `translation` or `rotation`.
        outer: B x 6, of a second resampling that follows the first; both are done as one.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> nearest(image, torch.from_numpy(translation(1, 0))[None]).tolist()
    [[[[2, 128], [4, 128]]]]
    """
    x, y, inside = _start(images, outer)
    x, y, within = _follow(inner, x, y, images.shape)
    inside = within if inside is None else inside & within
    return torch.where(inside[:, None], _take(images, y * images.shape[3] + x), FILL)


def shear(images: Tensor, amount: Tensor, horizontal: Tensor, outer: Tensor | None = None) -> Tensor:
    """Move the rows (or columns) of each image in proportion to their distance from the edge; bicubic.

    Args:
        images: B x C x H x W.
        amount: B, pixels per row; positive moves the bottom to the left (the right side upwards).
        horizontal: B, true to move rows, false to move columns.
        outer: B x 6, of a `nearest` resampling that follows; both are done as one.

    >>> image = torch.arange(4, dtype=torch.uint8).expand(1, 1, 4, 4)
    >>> shear(image, torch.tensor([1.0]), torch.tensor([True]))[0, 0, :, 0].tolist()
    [0, 1, 2, 128]
    """
    height, width = images.shape[2:]
    x, y, inside = _start(images, outer)
    rows = horizontal[:, None, None]
    along, across = torch.where(rows, x, y), torch.where(rows, y, x)
    side = torch.where(rows, width, height)
    # float64 and this order of operations, as in Pillow: the result is cut down to a whole number, where
    # the last bit can count
    position = (along + 0.5) + amount.to(torch.float64)[:, None, None] * (across + 0.5)
    within = (position >= 0) & (position < side)
    position = position - 0.5
    base = position.floor()
    fraction = (position - base)[:, None]
    first = base.to(x.dtype) - 1
    step, line = torch.where(rows, 1, width), across * torch.where(rows, width, 1)
    last = side - 1
    # whole numbers first, in 16 bits: a quarter of the memory of float64
    v1, v2, v3, v4 = (
        _take(images, (first + tap).clamp(min=0).minimum(last) * step + line).to(torch.int16) for tap in range(4)
    )
    cubic = v2 + fraction * ((v3 - v1) + fraction * ((2 * (v1 - v2) + v3 - v4) + fraction * (v2 - v1 - v3 + v4)))
    inside = within if inside is None else inside & within
    return torch.where(inside[:, None], cubic.clamp(0, 255).to(torch.uint8), FILL)


def _start(images: Tensor, outer: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the pixel (x, y) that each pixel of the result asks for, and whether it exists (None: they all do)."""
    height, width = images.shape[2:]
    kind = torch.int32 if max(height, width) <= INT32_SIDE else torch.int64
    x = torch.arange(width, dtype=kind, device=images.device).view(1, 1, width)
    y = torch.arange(height, dtype=kind, device=images.device).view(1, height, 1)
    return (x, y, None) if outer is None else _follow(outer, x, y, images.shape)


def _follow(matrix: Tensor, x: Tensor, y: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return where ``matrix`` leads from (x, y), moved to the border if outside, and whether it was inside."""
    a, b, c, d, e, f = matrix.to(x.dtype)[:, :, None, None].unbind(1)
    to_x, to_y = (a * x + (b * y + c)) >> 16, (d * x + (e * y + f)) >> 16
    safe_x, safe_y = to_x.clamp(0, shape[3] - 1), to_y.clamp(0, shape[2] - 1)
    return safe_x, safe_y, (safe_x == to_x) & (safe_y == to_y)


def _take(images: Tensor, index: Tensor) -> Tensor:
    """Return the pixels at ``index`` (B x H x W, counted row by row), the same ones of every channel."""
    flat = images.flatten(2)
    return flat.gather(2, index.to(torch.int64).flatten(1)[:, None].expand_as(flat)).view_as(images)
