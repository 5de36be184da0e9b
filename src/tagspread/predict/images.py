"""Load images for prediction: files, Pillow images or arrays, as uint8 chunks of the network's input size.

The next chunk is decoded while the network runs on the current one. Only a few chunks are in memory at a time.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tagspread.data.images.decode import (
    SILENCE,
    Images,
    UnreadableImage,
    available_cores,
    decode,
    from_pillow,
    reason_for,
)
from tagspread.data.images.find import find_images
from tagspread.errors import TagspreadError

ImageInput: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray | Tensor
Shape: TypeAlias = tuple[int, int, int]  # channels, height, width

CHUNK_BYTES = 2**26  # size of a chunk of decoded images
CHUNK_ROWS = 4096  # images per chunk: the tasks of millions of small images need memory too
CHUNKS_AHEAD = 2
ARRAY_BYTES = 2**28  # size of a chunk of images that are in memory already


class Chunk(NamedTuple):
    """Images: their names, pixels (B x 3 x H x W, uint8), and an error per image (empty if it could be read)."""

    names: list[str]
    images: Tensor
    errors: list[str]


def read_chunks(given: ImageInput | Iterable[ImageInput], shape: Shape, batch: int = 1) -> Iterator[Chunk]:
    """Yield all images in the given order, in chunks.

    Args:
        given: one image or several: paths, Pillow images and arrays, or one array that holds all. A folder stands
            for all images below it.
        shape: input shape of the network.
        batch: number of images per batch; a chunk larger than a batch holds whole batches.
    """
    if isinstance(given, np.ndarray | Tensor):
        many = _channels_first(given, many=True)
        if tuple(many.shape[1:]) == shape:
            yield from _slices(many, _rows(ARRAY_BYTES, shape, batch))
            return
        given = iter(many)
    elif isinstance(given, str | os.PathLike):
        path = Path(given)
        given = find_images(path) if path.is_dir() else [path]
    elif isinstance(given, Image.Image):
        given = [given]
    elif not isinstance(given, Iterable):
        raise TagspreadError(f"{type(given).__name__} is not an image; give paths, Pillow images or arrays.")
    yield from _decoded(cast(Iterable[ImageInput], given), shape, _rows(CHUNK_BYTES, shape, batch, CHUNK_ROWS))


def _rows(most: int, shape: Shape, batch: int, most_rows: int | None = None) -> int:
    """Return the number of images that take about ``most`` bytes, rounded down to whole batches."""
    rows = max(1, most // math.prod(shape))
    rows = rows if most_rows is None else min(rows, most_rows)
    return rows if rows < batch else rows - rows % batch


def _slices(many: Tensor, step: int) -> Iterator[Chunk]:
    for at in range(0, len(many), step):
        part = many[at : at + step].contiguous()
        yield Chunk([f"image {at + i}" for i in range(len(part))], part, [""] * len(part))


def _decoded(items: Iterable[ImageInput], shape: Shape, rows: int) -> Iterator[Chunk]:
    """Decode ahead in threads: Pillow releases the interpreter lock while it decodes and resizes."""
    numbered = enumerate(items)
    pool = ThreadPoolExecutor(available_cores(), thread_name_prefix="tagspread-read")
    pending: deque[tuple[Chunk, list[Future[None]]]] = deque()
    with SILENCE:
        try:
            while items_of_chunk := list(itertools.islice(numbered, rows)):
                names = [_name(item, number) for number, item in items_of_chunk]
                pixels = torch.zeros((len(names), *shape), dtype=torch.uint8)
                chunk = Chunk(names, pixels, [""] * len(names))
                reading = [pool.submit(_read, item, chunk, row) for row, (_, item) in enumerate(items_of_chunk)]
                pending.append((chunk, reading))
                if len(pending) > CHUNKS_AHEAD:
                    yield _done(*pending.popleft())
            while pending:
                yield _done(*pending.popleft())
        finally:  # also if the caller stops early
            pool.shutdown(cancel_futures=True)


def _done(chunk: Chunk, reading: list[Future[None]]) -> Chunk:
    for future in reading:
        future.result()
    return chunk


def _read(item: ImageInput, chunk: Chunk, row: int) -> None:
    """Write an image, or the reason why it cannot be read, into its row of the chunk."""
    image = _image(item, cast(Shape, tuple(chunk.images.shape[1:])))
    if isinstance(image, str):
        chunk.errors[row] = image
    else:
        chunk.images[row].numpy()[:] = image


def _name(item: ImageInput, number: int) -> str:
    if isinstance(item, str | os.PathLike):
        return os.fspath(item)
    return str(getattr(item, "filename", "") or f"image {number}")


def _image(item: ImageInput, shape: Shape) -> Images | str:
    """Return an image in the network's input size, or the reason why it cannot be read."""
    _, height, width = shape
    if isinstance(item, str | os.PathLike):
        if height != width:
            raise TagspreadError(
                f"the run was trained on arrays of {height} x {width} pixels, but files are resized to squares only; "
                "give arrays or Pillow images."
            )
        try:
            return decode(item, height)
        except UnreadableImage as error:
            return error.reason
    if isinstance(item, np.ndarray | Tensor):
        array = _channels_first(item, many=False).cpu().numpy()
        return array if array.shape == shape else from_pillow(Image.fromarray(array.transpose(1, 2, 0)), height, width)
    if not isinstance(item, Image.Image):
        raise TagspreadError(f"{type(item).__name__} is not an image; give paths, Pillow images or arrays.")
    try:
        return from_pillow(item, height, width)
    except Exception as error:  # Pillow may open an image and fail to decode it: see data/images/decode.py
        return reason_for(error)


def _channels_first(given: Any, many: bool) -> Tensor:
    """Return images as ... x 3 x H x W; the channel axis may be first, last or missing (gray images)."""
    kind = str(given.dtype).removeprefix("torch.")
    if kind != "uint8":
        raise TagspreadError(f"the images have dtype {kind}; give uint8, 0 to 255.")
    images = given if isinstance(given, Tensor) else torch.from_numpy(np.require(given, requirements=["C", "W"]))
    sides = images.ndim - many
    if (
        many and images.ndim == 3 and 3 in (images.shape[0], images.shape[2])
    ):  # ambiguous: it could be three gray images
        raise TagspreadError(f"an array of shape {tuple(images.shape)} is one image; put it into a list.")
    if sides == 2:
        return images.unsqueeze(-3).expand(*images.shape[:-2], 3, -1, -1)
    if sides == 3 and images.shape[-3] == 3:
        return images
    if sides == 3 and images.shape[-1] == 3:
        return images.movedim(-1, -3)
    wanted = "N x H x W x 3, N x 3 x H x W or N x H x W" if many else "H x W x 3, 3 x H x W or H x W"
    raise TagspreadError(f"the images have shape {tuple(images.shape)}; give {wanted}.")
