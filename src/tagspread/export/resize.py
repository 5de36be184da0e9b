r"""Pillow's antialiased bilinear resizing as two matrix products, so that an exported graph can hold it.

Resizing a side of :math:`n` pixels to :math:`s` is a product with a matrix whose rows are triangles, as wide as one new
pixel or one old one, whichever is wider, in whole multiples of :math:`2^{-22}`:

.. math::
    r = n / s, \qquad u = \max(r, 1), \qquad
    W_{ij} \propto \max\!\Big(0,\; 1 - \frac{|\,j + \tfrac12 - r (i + \tfrac12)\,|}{u}\Big), \qquad
    \sum_j W_{ij} = 2^{22}

Rows of pixels are resized first, then columns; both results are rounded to bytes. ONNX has a resize operator, but its
result on bytes depends on the runtime. Sums of integers in double precision do not depend on the order, so every
runtime computes the same bytes as Pillow. Only Pillow 13 and later may resize columns first where an image shrinks much
more in height than in width; then some bytes differ by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

ONE = 2**22  # Pillow's weights have 22 bits after the binary point


def triangles(old: int, new: int) -> Tensor:
    """Return the matrix (new x old) that resizes a side; each row holds integers that sum to about 2 ** 22.

    >>> (triangles(4, 2) / 2**22).round(decimals=3).tolist()
    [[0.429, 0.429, 0.143, 0.0], [0.0, 0.143, 0.429, 0.429]]
    """
    ratio = torch.ones((), dtype=torch.float64) * old / new  # a tensor, because sides are dynamic in the exported graph
    old_centers = (torch.arange(old, dtype=torch.float64) + 0.5)[None]
    new_centers = ((torch.arange(new, dtype=torch.float64) + 0.5) * ratio)[:, None]
    heights = (1 - (old_centers - new_centers).abs() / ratio.clamp(min=1)).clamp(min=0)
    return (heights / heights.sum(1, keepdim=True) * ONE + 0.5).floor()


def resize(images: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 images (B x C x H x W) like Pillow's BILINEAR filter.

    >>> resize(torch.tensor([[[[0, 0, 100, 100]]]], dtype=torch.uint8), 1, 2).tolist()
    [[[[14, 86]]]]
    """
    rows = _bytes(images.double() @ triangles(images.shape[3], width).T)
    return _bytes(triangles(images.shape[2], height) @ rows).to(torch.uint8)


def _bytes(sums: Tensor) -> Tensor:
    return (sums / ONE + 0.5).floor().clamp(0, 255)
