"""JPEG previews of image files for the review page: upright, in RGB, at most so many pixels wide and high.

An image is only shown if its file still has the digest that the run recorded, because answers are kept by digest.
"""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from PIL import Image

from tagspread.data.images.decode import BUDGET, DRAWINGS, SILENCE, SWAPPED, from_pillow, reason_for, turn_of
from tagspread.errors import TagspreadError

Size = Literal["large", "small", "full"]
SIDES: dict[Size, int] = {"large": 1600, "small": 320, "full": 8192}  # pixels of the longer side
QUALITY = {"large": 88, "small": 82, "full": 92}
DIGITS = 16  # of the digests in split.csv
# the threads that decode: always the same two, because each thread that ever held an image keeps some of its memory
DECODERS = ThreadPoolExecutor(2, "decode")


class Unavailable(TagspreadError):  # noqa: N818 - named for what it is, not for being an exception
    """Raised for an image that cannot be shown; the message says why, without the path of the image."""


def preview(file: Path, digest: str, size: Size) -> bytes:
    """Return a JPEG of an image file.

    Args:
        file: the file.
        digest: its digest, as the run recorded it.
        size: ``large`` fills a screen, ``small`` a tile of the grid, ``full`` has all pixels.
    """
    with SILENCE:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise Unavailable(
                f"{file.name} cannot be shown: {reason_for(error)}. Its answers are kept; press \u2192 to skip it."
            ) from None
        if hashlib.sha256(content).hexdigest()[:DIGITS] != digest:
            raise Unavailable(
                f"{file.name} cannot be shown: the file was changed after training. Press \u2192 to skip it."
            )
        try:
            return _jpeg(content, SIDES[size], QUALITY[size])
        except Exception as error:  # damaged files raise many types
            raise Unavailable(f"{file.name} cannot be shown: {reason_for(error)}. Press \u2192 to skip it.") from None


def _jpeg(content: bytes, side: int, quality: int) -> bytes:
    with Image.open(io.BytesIO(content)) as opened:
        if opened.format in DRAWINGS:
            raise ValueError(f"{opened.format} is a vector drawing, not a pixel image")
        width, height = opened.size
        scale = min(1.0, side / max(width, height))
        opened.draft(None, (round(2 * scale * width), round(2 * scale * height)))
        with BUDGET.reserve(opened.width * opened.height):
            opened.load()
            if turn_of(opened) in SWAPPED:
                width, height = height, width
            pixels = from_pillow(opened, max(1, round(scale * height)), max(1, round(scale * width)))
    written = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(written, "JPEG", quality=quality)
    return written.getvalue()
