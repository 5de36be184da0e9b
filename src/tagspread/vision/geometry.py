"""Geometric operations on image batches (shear, translate, rotate), bit for bit equal to Pillow's.

Each image has its own parameters. Operations map backwards: they compute, for every pixel of the result, its position
in the input. Pixels from outside the input are gray. Rotations and translations copy the nearest pixel, so if one of
them follows another operation, it reads that operation's result at whole pixels only. Both can then be done in one
resampling.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FILL = 128  # gray level of pixels outside an image
ONE = 1 << 16  # Pillow computes the nearest pixel with 16 bits after the binary point
INT32_SIDE = 8192  # up to this side, positions in 16.16 fixed point fit int32

Matrix = npt.NDArray[np.int64]  # six numbers a, b, c, d, e, f in 16.16: x' = a x + b y + c, y' = d x + e y + f


def translation(dx: float, dy: float) -> Matrix:
    """Return the matrix of a translation: pixels are taken from ``dx`` to their right and ``dy`` below them.

    >>> (translation(1.7, -0.2) / ONE).tolist()
    [1.0, 0.0, 2.0, 0.0, 1.0, 0.0]
    """
    # evaluate at the pixel center, .5, and round down: the shift is a whole number of pixels
    return np.array([ONE, 0, math.floor(dx + 0.5) * ONE, 0, ONE, math.floor(dy + 0.5) * ONE], np.int64)


def rotation(degrees: float, height: int, width: int) -> Matrix:
    """Return the matrix that rotates an image counter-clockwise around its center.

    >>> rotation(90, 2, 2).tolist()  # the pixel at (0, 0) comes from (1, 0)
    [0, -65536, 98304, 65536, 0, 32768]
    """
    angle = -math.radians(degrees)
    # Pillow rounds here; the last bits decide which of two pixels is the nearest
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    c = cosine * -x + sine * -y + x
    f = -sine * -x + cosine * -y + y
    # the offsets are those of the first pixel's center
    exact = (cosine, sine, c + cosine * 0.5 + sine * 0.5, -sine, cosine, f + -sine * 0.5 + cosine * 0.5)
    return np.array([math.floor(value * ONE + 0.5) for value in exact], np.int64)


def nearest(images: Tensor, inner: Tensor, outer: Tensor | None = None) -> Tensor:
    """Resample each image by its matrix, with the nearest pixel.

    Args:
        images: B x C x H x W.
        inner: B x 6, from `translation` or `rotation`.
        outer: B x 6, of a second resampling that follows the first; both are done at once.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> nearest(image, torch.from_numpy(translation(1, 0))[None]).tolist()
    [[[[2, 128], [4, 128]]]]
    """
    x, y, inside = _start(images, outer)
    x, y, within = _follow(inner, x, y, images.shape)
    inside = within if inside is None else inside & within
    return torch.where(inside[:, None], _take(images, y * images.shape[3] + x), FILL)


def shear(images: Tensor, amount: Tensor, horizontal: Tensor, outer: Tensor | None = None) -> Tensor:
    """Shear each image: shift rows (or columns) in proportion to their distance from the edge; bicubic.

    Args:
        images: B x C x H x W.
        amount: B, pixels per row; positive values move the bottom to the left (or the right side upwards).
        horizontal: B, True to shift rows, False to shift columns.
        outer: B x 6, of a `nearest` resampling that follows; both are done at once.

    >>> image = torch.arange(4, dtype=torch.uint8).expand(1, 1, 4, 4)
    >>> shear(image, torch.tensor([1.0]), torch.tensor([True]))[0, 0, :, 0].tolist()
    [0, 1, 2, 128]
    """
    height, width = images.shape[2:]
    x, y, inside = _start(images, outer)
    rows = horizontal[:, None, None]
    along, across = torch.where(rows, x, y), torch.where(rows, y, x)
    side = torch.where(rows, width, height)
    # float64 and this order of operations, as in Pillow: the result is truncated to an integer, so the last bit can
    # matter
    position = (along + 0.5) + amount.to(torch.float64)[:, None, None] * (across + 0.5)
    within = (position >= 0) & (position < side)
    position = position - 0.5
    base = position.floor()
    fraction = (position - base)[:, None]
    first = base.to(x.dtype) - 1
    step, line = torch.where(rows, 1, width), across * torch.where(rows, width, 1)
    last = side - 1
    # integers in 16 bits first: a quarter of the memory of float64
    v1, v2, v3, v4 = (
        _take(images, (first + tap).clamp(min=0).minimum(last) * step + line).to(torch.int16) for tap in range(4)
    )
    cubic = v2 + fraction * ((v3 - v1) + fraction * ((2 * (v1 - v2) + v3 - v4) + fraction * (v2 - v1 - v3 + v4)))
    inside = within if inside is None else inside & within
    return torch.where(inside[:, None], cubic.clamp(0, 255).to(torch.uint8), FILL)


def _start(images: Tensor, outer: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the pixel (x, y) that each pixel of the result reads, and whether it is inside (None: all are)."""
    height, width = images.shape[2:]
    kind = torch.int32 if max(height, width) <= INT32_SIDE else torch.int64
    x = torch.arange(width, dtype=kind, device=images.device).view(1, 1, width)
    y = torch.arange(height, dtype=kind, device=images.device).view(1, height, 1)
    return (x, y, None) if outer is None else _follow(outer, x, y, images.shape)


def _follow(matrix: Tensor, x: Tensor, y: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return where ``matrix`` maps (x, y), clamped to the image, and whether it was inside."""
    a, b, c, d, e, f = matrix.to(x.dtype)[:, :, None, None].unbind(1)
    to_x, to_y = (a * x + (b * y + c)) >> 16, (d * x + (e * y + f)) >> 16
    safe_x, safe_y = to_x.clamp(0, shape[3] - 1), to_y.clamp(0, shape[2] - 1)
    return safe_x, safe_y, (safe_x == to_x) & (safe_y == to_y)


def _take(images: Tensor, index: Tensor) -> Tensor:
    """Return the pixels at ``index`` (B x H x W, in row-major order), the same positions for every channel."""
    flat = images.flatten(2)
    return flat.gather(2, index.to(torch.int64).flatten(1)[:, None].expand_as(flat)).view_as(images)
