"""Image operations for RandAugment on batches (color and geometry), bit for bit equal to Pillow's.

Images are B x C x H x W in uint8, with three channels (red, green, blue) or one (gray). Parameters hold one entry per
image and are on the images' device. No function waits for that device.

Geometric operations map backwards: they compute, for every pixel of the result, its position in the input. Pixels from
outside the input are gray. Rotations and translations copy the nearest pixel, so if one of them follows another
operation, it reads that operation's result at whole pixels only. Both can then be done in one resampling.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LUMA = (19595, 38470, 7471)  # the weights of red, green and blue in gray, in units of 1/65536
SMOOTH_CENTER, SMOOTH_SUM = 5, 13  # the blur behind `sharpness`: 5 in the center, 1 around it
FILL = 128  # gray level of pixels outside an image
ONE = 1 << 16  # Pillow computes the nearest pixel with 16 bits after the binary point
INT32_SIDE = 8192  # up to this side, positions in 16.16 fixed point fit int32
Matrix = npt.NDArray[np.int64]  # six numbers a, b, c, d, e, f in 16.16: x' = a x + b y + c, y' = d x + e y + f


def invert(images: Tensor) -> Tensor:
    """Invert all values.

    >>> invert(torch.tensor([[[[0, 100]]]], dtype=torch.uint8)).tolist()
    [[[[255, 155]]]]
    """
    return 255 - images


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values that are at least the threshold of their image.

    >>> solarize(torch.tensor([[[[10, 200]]]], dtype=torch.uint8), torch.tensor([128])).tolist()
    [[[[10, 55]]]]
    """
    return torch.where(images < _each(threshold), images, 255 - images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest 0 to 8 bits of every value.

    >>> posterize(torch.tensor([[[[15, 200]]]], dtype=torch.uint8), torch.tensor([2])).tolist()
    [[[[0, 192]]]]
    """
    # through int16: 256 steps (0 bits) do not fit uint8
    step = torch.pow(2, 8 - _each(bits).to(torch.int16))
    return (images & (256 - step)).to(torch.uint8)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black: factor 0 gives black, 1 the image, above 1 a brighter image.

    >>> brightness(torch.tensor([[[[10, 200]]]], dtype=torch.uint8), torch.tensor([1.5])).tolist()
    [[[[15, 255]]]]
    """
    return _blend(torch.zeros_like(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image's mean gray: factor 0 gives gray, 1 the image, above 1 more contrast.

    >>> contrast(torch.tensor([[[[10, 30]]]], dtype=torch.uint8), torch.tensor([0.5])).tolist()
    [[[[15, 25]]]]
    """
    pixels = images.shape[2] * images.shape[3]
    total = _gray(images).sum((1, 2, 3), keepdim=True)
    # the mean in integers, halves rounded up
    mean = (2 * total + pixels).div(2 * pixels, rounding_mode="floor")
    return _blend(mean, images, factor)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grayscale image: factor 0 gives gray, 1 the image, above 1 stronger colors.

    >>> color(torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1), torch.tensor([0.0])).flatten().tolist()
    [76, 76, 76]
    """
    return _blend(_gray(images), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a slight blur: factor 0 gives the blur, 1 the image, above 1 a sharper image.

    Border pixels do not change.

    >>> images = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    >>> images[0, 0, 1, 1] = 130
    >>> sharpness(images, torch.tensor([0.0]))[0, 0, 1].tolist()
    [0, 50, 0]
    """
    if min(images.shape[2:]) < 3:
        return images.clone()
    values = images.to(torch.int16)
    rows = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    total = total + (SMOOTH_CENTER - 1) * values[:, :, 1:-1, 1:-1]
    blurred = values.clone()
    # round in integers; the sum of weights is odd, so no value lies exactly halfway
    blurred[:, :, 1:-1, 1:-1] = (2 * total + SMOOTH_SUM).div(2 * SMOOTH_SUM, rounding_mode="floor")
    return _blend(blurred, images, factor)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch every channel so that its darkest value becomes 0 and its brightest 255.

    >>> autocontrast(torch.tensor([[[[10, 20, 30]]]], dtype=torch.uint8)).tolist()
    [[[[0, 127, 255]]]]
    """
    flat = images.flatten(2)
    low, high = flat.amin(2, keepdim=True).to(torch.float64), flat.amax(2, keepdim=True).to(torch.float64)
    levels = torch.arange(256, dtype=torch.float64, device=images.device)
    # compute per level in float64, as Pillow does; a constant channel divides by 0 and is excluded below.
    # 255 / tensor would be wrong: torch takes the reciprocal first, which rounds twice
    scale = torch.full_like(high, 255).div(high - low)
    stretched = (levels * scale + -low * scale).clamp(0, 255)
    return _look_up(images, torch.where(high > low, stretched, levels).to(torch.uint8))


def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of every channel.

    >>> equalize(torch.arange(100, 104, dtype=torch.uint8).repeat(256).view(1, 1, 32, 32)).unique().tolist()
    [0, 85, 171, 255]
    """
    flat = images.flatten(2).to(torch.int64)
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones((), dtype=torch.int64, device=images.device).expand_as(flat))
    levels = torch.arange(256, device=images.device)
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest).div(255, rounding_mode="floor")
    below = counts.cumsum(2) - counts
    # with too few pixels below the brightest value for a step of at least one, the channel does not change
    spread = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return _look_up(images, torch.where(step > 0, spread, levels).to(torch.uint8))


def cut_square(images: Tensor, center_x: Tensor, center_y: Tensor, side: Tensor, fill: Tensor) -> Tensor:
    """Cover one square of each image, clipped at the border (Cutout).

    Args:
        images: B x C x H x W.
        center_x: B, column of the center; the square starts ``side // 2`` to the left of it.
        center_y: B, row of the center; the square starts ``side // 2`` above it.
        side: B, in pixels; 0 covers nothing.
        fill: B x C, color of each square, in uint8.

    >>> one, two = torch.tensor([1]), torch.tensor([2])
    >>> cut_square(torch.zeros(1, 1, 3, 3, dtype=torch.uint8), one, one, two, torch.tensor([[7]]).byte())[0, 0].tolist()
    [[7, 7, 0], [7, 7, 0], [0, 0, 0]]
    """
    covered = []
    for center, dimension in ((center_y, 2), (center_x, 3)):
        shape = [1, 1, 1, 1]
        shape[dimension] = images.shape[dimension]
        position = torch.arange(images.shape[dimension], device=images.device).view(shape)
        start = _each(center - side // 2)
        covered.append((position >= start) & (position < start + _each(side)))
    return torch.where(covered[0] & covered[1], fill[:, :, None, None], images)


def _each(parameter: Tensor) -> Tensor:
    """Reshape one number per image so that it broadcasts to the image's pixels."""
    return parameter[:, None, None, None]


def _gray(images: Tensor) -> Tensor:
    """Return the luma of every pixel as integers, B x 1 x H x W."""
    if images.shape[1] == 1:
        return images.to(torch.int32)
    red, green, blue = images.to(torch.int32).unbind(1)
    gray = (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue + 32768) >> 16
    return gray[:, None]


def _blend(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    """Interpolate from ``start`` (factor 0) to ``end`` (factor 1) and beyond, truncated to integers in 0..255."""
    begin = start.to(torch.float32)
    # product and sum are rounded one after the other, in float32, as in Pillow: no fused multiply-add
    moved = begin + _each(factor.to(torch.float32)) * (end.to(torch.float32) - begin)
    return moved.clamp(0, 255).to(torch.uint8)


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace every value by its entry in the table (B x C x 256) of its channel."""
    return table.gather(2, images.flatten(2).to(torch.int64)).view_as(images)


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
