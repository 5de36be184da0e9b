"""What changes the colours of pictures but moves nothing, for whole batches, to the bit as Pillow does.

Pictures are B x C x H x W in uint8, with three channels (red, green, blue) or one (grey). Parameters hold
one entry per picture and lie on the pictures' device; nothing here waits for that device.
"""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (19595, 38470, 7471)  # the weights of red, green and blue in grey, of 65536
SMOOTH_CENTRE, SMOOTH_SUM = 5, 13  # the blur behind `sharpness`: 5 in the centre, 1 around it


def invert(pictures: Tensor) -> Tensor:
    """Return the negatives.

    >>> invert(torch.tensor([[[[0, 100]]]], dtype=torch.uint8)).tolist()
    [[[[255, 155]]]]
    """
    return 255 - pictures


def solarize(pictures: Tensor, threshold: Tensor) -> Tensor:
    """Invert what is at least as bright as the picture's threshold.

    >>> solarize(torch.tensor([[[[10, 200]]]], dtype=torch.uint8), torch.tensor([128])).tolist()
    [[[[10, 55]]]]
    """
    return torch.where(pictures < _each(threshold), pictures, 255 - pictures)


def posterize(pictures: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest 0 to 8 bits of every value.

    >>> posterize(torch.tensor([[[[15, 200]]]], dtype=torch.uint8), torch.tensor([2])).tolist()
    [[[[0, 192]]]]
    """
    # through int16: 256 steps (0 bits) do not fit uint8
    step = torch.pow(2, 8 - _each(bits).to(torch.int16))
    return (pictures & (256 - step)).to(torch.uint8)


def brightness(pictures: Tensor, factor: Tensor) -> Tensor:
    """Scale towards black (factor 0) or away from it (above 1).

    >>> brightness(torch.tensor([[[[10, 200]]]], dtype=torch.uint8), torch.tensor([1.5])).tolist()
    [[[[15, 255]]]]
    """
    return _blend(torch.zeros_like(pictures), pictures, factor)


def contrast(pictures: Tensor, factor: Tensor) -> Tensor:
    """Draw towards the picture's mean grey (factor 0) or away from it (above 1).

    >>> contrast(torch.tensor([[[[10, 30]]]], dtype=torch.uint8), torch.tensor([0.5])).tolist()
    [[[[15, 25]]]]
    """
    pixels = pictures.shape[2] * pictures.shape[3]
    total = _grey(pictures).sum((1, 2, 3), keepdim=True)
    # the mean, halves rounded up, in whole numbers
    mean = (2 * total + pixels).div(2 * pixels, rounding_mode="floor")
    return _blend(mean, pictures, factor)


def colour(pictures: Tensor, factor: Tensor) -> Tensor:
    """Draw towards grey (factor 0) or to stronger colours (above 1); a grey picture stays as it is.

    >>> colour(torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1), torch.tensor([0.0])).flatten().tolist()
    [76, 76, 76]
    """
    return _blend(_grey(pictures), pictures, factor)


def sharpness(pictures: Tensor, factor: Tensor) -> Tensor:
    """Draw towards a slight blur (factor 0) or away from it (above 1); the outermost pixels stay as they are.

    >>> pictures = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    >>> pictures[0, 0, 1, 1] = 130
    >>> sharpness(pictures, torch.tensor([0.0]))[0, 0, 1].tolist()
    [0, 50, 0]
    """
    if min(pictures.shape[2:]) < 3:
        return pictures.clone()
    values = pictures.to(torch.int16)
    rows = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    total = total + (SMOOTH_CENTRE - 1) * values[:, :, 1:-1, 1:-1]
    blurred = values.clone()
    # rounded in whole numbers; the sum of weights is odd, so there are no halves to argue about
    blurred[:, :, 1:-1, 1:-1] = (2 * total + SMOOTH_SUM).div(2 * SMOOTH_SUM, rounding_mode="floor")
    return _blend(blurred, pictures, factor)


def autocontrast(pictures: Tensor) -> Tensor:
    """Stretch every channel so that its darkest value becomes 0 and its brightest 255.

    >>> autocontrast(torch.tensor([[[[10, 20, 30]]]], dtype=torch.uint8)).tolist()
    [[[[0, 127, 255]]]]
    """
    flat = pictures.flatten(2)
    low, high = flat.amin(2, keepdim=True).to(torch.float64), flat.amax(2, keepdim=True).to(torch.float64)
    levels = torch.arange(256, dtype=torch.float64, device=pictures.device)
    # worked out per level in float64, as Pillow does; a constant channel divides by 0 and is left out below.
    # 255 / tensor would not do: torch takes the reciprocal first, which rounds twice
    scale = torch.full_like(high, 255).div(high - low)
    stretched = (levels * scale + -low * scale).clamp(0, 255)
    return _look_up(pictures, torch.where(high > low, stretched, levels).to(torch.uint8))


def equalize(pictures: Tensor) -> Tensor:
    """Spread the values of every channel so that all brightnesses are about equally frequent.

    >>> equalize(torch.arange(100, 104, dtype=torch.uint8).repeat(256).view(1, 1, 32, 32)).unique().tolist()
    [0, 85, 171, 255]
    """
    flat = pictures.flatten(2).to(torch.int64)
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int64, device=pictures.device)
    counts.scatter_add_(2, flat, torch.ones((), dtype=torch.int64, device=pictures.device).expand_as(flat))
    levels = torch.arange(256, device=pictures.device)
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest).div(255, rounding_mode="floor")
    below = counts.cumsum(2) - counts
    # too few pixels below the brightest value for a step of at least one: left as it is
    spread = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return _look_up(pictures, torch.where(step > 0, spread, levels).to(torch.uint8))


def cut_square(pictures: Tensor, centre_x: Tensor, centre_y: Tensor, side: Tensor, fill: Tensor) -> Tensor:
    """Cover one square of each picture, clipped at the border.

    Args:
        pictures: B x C x H x W.
        centre_x: B, the square's column; it starts ``side // 2`` to the left of it.
        centre_y: B, the square's row.
        side: B, in pixels; 0 covers nothing.
        fill: B x C, the colour of each picture's square, in uint8.

    >>> one, two = torch.tensor([1]), torch.tensor([2])
    >>> cut_square(torch.zeros(1, 1, 3, 3, dtype=torch.uint8), one, one, two, torch.tensor([[7]]).byte())[0, 0].tolist()
    [[7, 7, 0], [7, 7, 0], [0, 0, 0]]
    """
    covered = []
    for centre, dimension in ((centre_y, 2), (centre_x, 3)):
        shape = [1, 1, 1, 1]
        shape[dimension] = pictures.shape[dimension]
        place = torch.arange(pictures.shape[dimension], device=pictures.device).view(shape)
        start = _each(centre - side // 2)
        covered.append((place >= start) & (place < start + _each(side)))
    return torch.where(covered[0] & covered[1], fill[:, :, None, None], pictures)


def _each(parameter: Tensor) -> Tensor:
    """One number per picture, shaped to meet all its pixels."""
    return parameter[:, None, None, None]


def _grey(pictures: Tensor) -> Tensor:
    """Return the brightness of every pixel, B x 1 x H x W, in whole numbers."""
    if pictures.shape[1] == 1:
        return pictures.to(torch.int32)
    red, green, blue = pictures.to(torch.int32).unbind(1)
    grey = (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue + 32768) >> 16
    return grey[:, None]


def _blend(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    """Go from ``start`` (factor 0) through ``end`` (factor 1) and beyond, cut down to whole numbers in 0..255."""
    begin = start.to(torch.float32)
    # product and sum are rounded one after the other, in float32, as in Pillow: no fused multiply-add
    moved = begin + _each(factor.to(torch.float32)) * (end.to(torch.float32) - begin)
    return moved.clamp(0, 255).to(torch.uint8)


def _look_up(pictures: Tensor, table: Tensor) -> Tensor:
    """Replace every value by its entry in the table (B x C x 256) of its channel."""
    return table.gather(2, pictures.flatten(2).to(torch.int64)).view_as(pictures)
