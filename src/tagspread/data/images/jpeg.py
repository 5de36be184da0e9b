"""Decode JPEG files with torchvision: libjpeg-turbo and a vectorized resize, neither of which holds Python's lock.

Pillow decodes to the same bytes, because both use libjpeg-turbo. It resizes in another precision: bytes differ by at
most 1. Everything that is not a plain JPEG is left to Pillow: other numbers of channels, doubtful metadata, damaged
files, images of many pixels, and those that Pillow decodes at a fraction of their size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

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
    try:
        return _read_header(content.data)
    except _NotPlainError:
        return None


def exif_orientation(exif: bytes) -> int | None:
    """Return the orientation in EXIF data (1 to 8), 0 if there is none, or None if the data are doubtful.

    >>> entry = bytes.fromhex("0112 0003 00000001 0006 0000")
    >>> exif_orientation(b"MM" + bytes.fromhex("002a 00000008 0001") + entry + bytes(4))
    6
    """
    try:
        return _exif_orientation(exif)
    except _NotPlainError:
        return None


class _NotPlainError(Exception):
    """Raised for files that Pillow should decode."""


def _require(is_plain: bool) -> None:
    if not is_plain:
        raise _NotPlainError


def _read_header(data: memoryview) -> Header:
    at, orientation, in_xmp = 2, None, False
    size: tuple[int, int] | None = None
    while True:
        _require(at + 4 <= len(data) and data[at] == 0xFF)
        marker, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        body = bytes(data[at + 4 : at + 2 + length])
        _require(marker >= 0xC0 and not 0xD0 <= marker <= 0xD9 and len(body) == length - 2)
        if marker == METADATA and body.startswith(b"Exif\0\0"):
            _require(orientation is None)
            orientation = _exif_orientation(body[6:])
        elif marker == METADATA:
            in_xmp |= b"Orientation" in body
        elif marker in FRAMES:
            # Pillow reads other kinds too, such as those with arithmetic coding
            _require(marker in (BASELINE, EXTENDED, PROGRESSIVE) and size is None and length >= 8)
            _require(body[0] == 8 and body[5] in (1, 3))  # bits, channels
            size = body[3] << 8 | body[4], body[1] << 8 | body[2]
        elif marker == SCAN:
            _require(not in_xmp or bool(orientation))
            if size is None or 0 in size:
                raise _NotPlainError
            return Header(*size, orientation or 1)
        at += 2 + length


def _exif_orientation(exif: bytes) -> int:
    _require(exif[:4] in (b"II*\0", b"MM\0*"))
    order: Literal["little", "big"] = "little" if exif[:2] == b"II" else "big"

    def number(at: int, length: int) -> int:
        return int.from_bytes(exif[at : at + length], order)

    directory = number(4, 4)
    end = directory + 2 + 12 * number(directory, 2)
    _require(directory >= 8 and end <= len(exif))
    orientation = 0
    for entry in range(directory + 2, end, 12):
        kind, count = number(entry + 2, 2), number(entry + 4, 4)
        _require(0 < kind < len(TYPE_BYTES))
        length = TYPE_BYTES[kind] * count
        _require(length <= 4 or number(entry + 8, 4) + length <= len(exif))  # longer values are elsewhere in the data
        if number(entry, 2) == ORIENTATION:
            _require(orientation == 0 and (kind, count) == (SHORT, 1))
            orientation = number(entry + 8, 2)
            _require(orientation in TURNS)
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
