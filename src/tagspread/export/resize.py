r"""Pillow's antialiased bilinear resizing as two matrix products, so that an exported graph can hold it.

Resizing a side of :math:`n` pixels to :math:`s` is a product with a matrix whose rows are triangles, as wide as one new
pixel or one old one, whichever is wider, in whole multiples of :math:`2^{-22}`:

.. math::
    r = n / s, \qquad u = \max(r, 1), \qquad
    W_{ij} \propto \max\!\Big(0,\; 1 - \frac{|\,j + \tfrac12 - r (i + \tfrac12)\,|}{u}\Big), \qquad
    \sum_j W_{ij} = 2^{22}

Each row of pixels comes first, then each column, and both results are rounded to bytes. ONNX has a resizing of its own,
but what that does with bytes is left to each runtime. Whole numbers in double precision add up to the same in any
order, so every runtime gets the bytes that Pillow gets. Only Pillow 13 and later may begin with the columns where a
image shrinks much more in height than in width; then some bytes differ by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

ONE = 2**22  # Pillow's weights have 22 bits after the binary point


def triangles(old: int, new: int) -> Tensor:
    """Return the matrix that resizes a side (new x old), in whole numbers that add up to about 2 ** 22 in each row.

    >>> (triangles(4, 2) / 2**22).round(decimals=3).tolist()
    [[0.429, 0.429, 0.143, 0.0], [0.0, 0.143, 0.429, 0.429]]
    """
    ratio = torch.ones((), dtype=torch.float64) * old / new  # a tensor: in a graph, a side may have any length
    here = (torch.arange(old, dtype=torch.float64) + 0.5)[None]
    there = ((torch.arange(new, dtype=torch.float64) + 0.5) * ratio)[:, None]
    heights = (1 - (here - there).abs() / ratio.clamp(min=1)).clamp(min=0)
    return (heights / heights.sum(1, keepdim=True) * ONE + 0.5).floor()


def resize(images: Tensor, height: int, width: int) -> Tensor:
    """Return uint8 images (B x C x H x W) in another size, as Pillow's BILINEAR does.

    >>> resize(torch.tensor([[[[0, 0, 100, 100]]]], dtype=torch.uint8), 1, 2).tolist()
    [[[[14, 86]]]]
    """
    rows = _bytes(images.double() @ triangles(images.shape[3], width).T)
    return _bytes(triangles(images.shape[2], height) @ rows).to(torch.uint8)


def _bytes(sums: Tensor) -> Tensor:
    return (sums / ONE + 0.5).floor().clamp(0, 255)
