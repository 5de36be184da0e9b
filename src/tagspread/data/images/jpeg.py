"""Decode JPEG files with torchvision: libjpeg-turbo and a vectorized resize, neither of which holds Python's lock.

Pillow decodes to the same bytes, because both use libjpeg-turbo. It resizes in another precision: bytes differ by at
most 1. Everything that is not a plain JPEG is left to Pillow: other numbers of channels, doubtful metadata, damaged
files, images of many pixels, and those that Pillow decodes at a fraction of their size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Bytes: TypeAlias = npt.NDArray[np.uint8]

MOST_PIXELS = 2**24  # of an image that is decoded whole
MOST_BYTES = 2**26  # of a file that is read whole
START = b"\xff\xd8\xff"
BASELINE, EXTENDED, PROGRESSIVE = 0xC0, 0xC1, 0xC2  # markers of the frames that are decoded here
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
SCAN, METADATA = 0xDA, 0xE1
ORIENTATION, SHORT = 0x0112, 3
TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4)  # of one value of each type of an EXIF entry
RGB = 3  # torchvision's ImageReadMode.RGB

# for each EXIF orientation: whether rows and columns change places, and which axes run backwards afterwards
TURNS: dict[int, tuple[bool, tuple[int, ...]]] = {
    1: (False, ()),
    2: (False, (2,)),
    3: (False, (1, 2)),
    4: (False, (1,)),
    5: (True, ()),
    6: (True, (2,)),
    7: (True, (1, 2)),
    8: (True, (1,)),
}


class Header(NamedTuple):
    """What the markers before the pixels of a JPEG file tell."""

    width: int
    height: int
    orientation: int


@cache
def has_decoder() -> bool:
    """Return whether torchvision can decode JPEG files; some builds of it cannot."""
    try:
        import torch
        import torchvision.io  # noqa: F401  # registers the function

        return hasattr(torch.ops.image, "decode_jpeg")
    except (ImportError, OSError, RuntimeError):
        return False


def read_jpeg(path: str | os.PathLike[str], length: int) -> Bytes | None:
    """Return the content of a file, or None if it is no JPEG file or very large."""
    if length > MOST_BYTES:
        return None
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # for each image: Path.open takes longer
        start = file.read(len(START))
        if start != START:
            return None
        content = np.empty(length, np.uint8)
        content[: len(START)] = np.frombuffer(START, np.uint8)
        got = file.readinto(content[len(START) :].data)
    return content if got == length - len(START) else None


def read_header(content: Bytes) -> Header | None:
    """Return the header of a JPEG file; None if it is not plain, such that Pillow should decode the file.

    Args:
        content: the bytes of the file.
    """
    data, at = content.data, 2
    orientation: int | None = None
    exif_seen = in_xmp = False
    size: tuple[int, int] | None = None
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        body = bytes(data[at + 4 : at + 2 + length])
        if len(body) != length - 2:
            return None
        if marker == METADATA and body.startswith(b"Exif\0\0"):
            found = exif_orientation(body[6:])
            if exif_seen or found is None:
                return None
            orientation, exif_seen = found, True
        elif marker == METADATA:
            in_xmp |= b"Orientation" in body
        elif marker in FRAMES:
            # Pillow also reads other kinds: 12 bits per channel are refused, arithmetic coding is not
            if marker not in (BASELINE, EXTENDED, PROGRESSIVE) or size is not None or length < 8 or body[0] != 8:
                return None
            if body[5] not in (1, 3):
                return None
            size = body[3] << 8 | body[4], body[1] << 8 | body[2]
        elif marker == SCAN:
            if size is None or 0 in size or (in_xmp and not orientation):
                return None
            return Header(*size, orientation or 1)
        elif marker < 0xC0 or 0xD0 <= marker <= 0xD9:
            return None
        at += 2 + length
    return None


def exif_orientation(exif: bytes) -> int | None:
    """Return the orientation in EXIF data (1 to 8), 0 if there is none, or None if the data are doubtful.

    >>> exif_orientation(b"MM\\0*\\0\\0\\0\\x08" + b"\\0\\x01" + b"\\x01\\x12\\0\\x03\\0\\0\\0\\x01\\0\\x06\\0\\0" + bytes(4))
    6
    """
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(exif[:4])
    if order is None:
        return None

    def number(at: int, length: int) -> int:
        return int.from_bytes(exif[at : at + length], order)  # type: ignore[arg-type]

    directory = number(4, 4)
    end = directory + 2 + 12 * number(directory, 2)
    if directory < 8 or end > len(exif):
        return None
    orientation = 0
    for entry in range(directory + 2, end, 12):
        kind, count = number(entry + 2, 2), number(entry + 4, 4)
        if not 0 < kind < len(TYPE_BYTES):
            return None
        length = TYPE_BYTES[kind] * count
        if length > 4 and number(entry + 8, 4) + length > len(exif):  # longer values are elsewhere in the data
            return None
        if number(entry, 2) == ORIENTATION:
            if orientation or (kind, count) != (SHORT, 1):
                return None
            orientation = number(entry + 8, 2)
            if orientation not in TURNS:
                return None
    return orientation


def decode_jpeg(content: Bytes, header: Header, size: int) -> Bytes | None:
    """Decode a JPEG file to 3 x size x size bytes, upright; None if it is damaged."""
    import torch

    try:
        pixels = _decoder()(torch.from_numpy(content), RGB, False)
    except RuntimeError:
        return None
    channels, height, width = pixels.shape
    if (width, height) != (header.width, header.height):
        return None
    if (width, height) != (size, size):
        # a batch of one image whose channels come last, which torch resizes without a copy
        image = pixels.as_strided((1, channels, height, width), (pixels.numel(), 1, width * channels, channels))
        pixels = torch.nn.functional.interpolate(image, (size, size), mode="bilinear", antialias=True)[0]
    swapped, backwards = TURNS[header.orientation]
    # turned and copied by numpy, which does not divide the work among threads of its own
    turned = pixels.numpy().transpose(0, 2, 1) if swapped else pixels.numpy()
    result: Bytes = np.ascontiguousarray(np.flip(turned, backwards) if backwards else turned)
    return result


@cache
def _decoder() -> Callable[[Tensor, int, bool], Tensor]:
    import torch
    import torchvision.io  # noqa: F401

    function: Callable[[Tensor, int, bool], Tensor] = torch.ops.image.decode_jpeg.default
    return function
