"""Decode and resize image files to RGB byte arrays, one at a time or many in threads.

Every image becomes 3 x S x S in RGB: rotated by its EXIF orientation and resized to a square with antialiased
bilinear interpolation, without keeping the aspect ratio (the test view of the paper). Animations give their first
frame, and transparent pixels become white. Plain JPEG files are decoded by torchvision (:mod:`~.jpeg`), everything else
by Pillow.

The threads share a budget of pixels, so that the memory does not depend on their number: an image waits until those
that are being decoded leave room for it, and one that is larger than the budget is decoded alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import errno
import os
import stat
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import PIL
from PIL import ExifTags, Image, UnidentifiedImageError

from tagspread.aliases import Progress
from tagspread.data.images.formats import missing_decoder
from tagspread.data.images.jpeg import MOST_PIXELS, decode_jpeg, has_decoder, read_header, read_jpeg
from tagspread.data.images.libjpeg import QuietC
from tagspread.errors import TagspreadError

Images: TypeAlias = npt.NDArray[np.uint8]
AnyPath: TypeAlias = str | os.PathLike[str]

AT_ONCE = 512  # files submitted to the threads together: bounds the memory for any number of files
DRAFT_FACTOR = 4  # decode a JPEG at 1/2, 1/4 or 1/8 if that leaves this multiple of the size
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)  # are open: says nothing about the file that cannot be opened
PIXELS_AT_ONCE = 2**27  # decoded by all threads together: 4 bytes each, or 8 where a copy in RGB is needed
STRIP = 2**22  # pixels that are converted together: a conversion needs several times the memory of its result
DRAWINGS = ("EPS", "WMF")  # drawing programs, not pixels: Pillow would start an interpreter

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


SWAPPED = frozenset((  # rows become columns
    Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90,
))  # fmt: skip
FROM_THE_END = frozenset((  # the first row comes last
    Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE,
))  # fmt: skip


class UnreadableImage(TagspreadError):  # noqa: N818 - named for what it is, not for being an exception
    """Raised for a file that is not a complete image."""

    def __init__(self, path: AnyPath, reason: str) -> None:
        super().__init__(f"{path} cannot be read as an image: {reason}. Replace the file or leave it out.")
        self.path = Path(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type[UnreadableImage], tuple[Path, str]]:
        return type(self), (self.path, self.reason)  # can be pickled across processes


class Broken(NamedTuple):
    """An unreadable image: its index in the list of paths, its path, and the reason."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    path: Path
    reason: str


def decode(path: AnyPath, size: int) -> Images:
    """Decode an image file to a 3 x size x size array of RGB bytes.

    Gray values with 16 bits are scaled to 8 (65535 becomes 255). Floating-point gray values have the range 0..1, or
    0..255 if one exceeds 1. Transparent pixels become white.

    Args:
        path: a file in any format that Pillow reads.
        size: height and width of the result.

    Raises:
        UnreadableImage: if the file is missing, empty, truncated, a directory, not an image, or has so many pixels
            that Pillow refuses it.
    """
    check_size(size)
    with SILENCE:
        return _decode(path, size, fast=has_decoder())


def decode_all(
    paths: Sequence[AnyPath],
    size: int,
    out: Images,
    workers: int | None = None,
    progress: Progress | None = None,
    *,
    fast: bool = True,
) -> list[Broken]:
    """Decode many files into ``out`` in threads; torchvision and Pillow release the GIL while they decode and resize.

    Args:
        paths: the files.
        size: height and width of the result.
        out: len(paths) x 3 x size x size, filled in place; rows of unreadable images are not changed.
        workers: number of threads; by default one per available core.
        progress: called in the calling thread with (done, total).
        fast: decode JPEG files by torchvision; otherwise by Pillow, which need not import torch.

    Returns:
        The unreadable images, in the order of the paths.
    """
    check_size(size)
    expected = (len(paths), 3, size, size)
    if out.shape != expected or out.dtype != np.uint8:
        raise TagspreadError(f"out is {out.dtype} of shape {out.shape}; give uint8 of shape {expected}.")
    if workers is not None and workers < 1:
        raise TagspreadError(f"workers is {workers}; give at least 1 thread, or None for one per core.")

    fast = fast and has_decoder()

    def fill(index: int) -> Broken | None:
        try:
            out[index] = _decode(paths[index], size, fast)
        except UnreadableImage as error:
            return Broken(index, error.path, error.reason)
        return None

    broken: list[Broken] = []
    pool = ThreadPoolExecutor(workers or available_cores(), thread_name_prefix="tagspread-decode")
    with SILENCE:
        try:
            for at in range(0, len(paths), AT_ONCE):
                rows = range(at, min(at + AT_ONCE, len(paths)))
                for row, failure in zip(rows, pool.map(fill, rows), strict=True):
                    if failure is not None:
                        broken.append(failure)
                    if progress is not None:
                        progress(row + 1, len(paths))
        finally:  # also on Ctrl-C: cancel the images that have not started
            pool.shutdown(cancel_futures=True)
    return broken


def from_pillow(image: Image.Image, height: int, width: int) -> Images:
    """Convert a Pillow image to a 3 x height x width array of RGB bytes, like :func:`decode`.

    Beside the image and its copy in RGB, which is only made where it differs, little memory is needed.
    """
    resized = _upright_rgb(image).resize((width, height), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(resized).transpose(2, 0, 1))


def available_cores() -> int:
    """Return the number of cores that this process may use; the machine may have more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_size(size: int) -> None:
    """Raise unless ``size`` is a valid height and width."""
    if size < 1:
        raise TagspreadError(f"The image size is {size}; give at least 1 pixel, usually 224 or 448.")


def shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return a callback that reports the progress of a part as progress of the whole."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def reason_for(error: Exception) -> str:
    """Return a short reason why a file could not be read.

    >>> reason_for(FileNotFoundError(2, "No such file or directory", "cat.jpg"))
    'no such file or directory'
    """
    if isinstance(error, UnidentifiedImageError):
        return "no image format known to Pillow"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    text = str(error).strip().rstrip(".")
    if text.startswith("decoder error"):
        return f"its data are damaged ({text})"
    return text or type(error).__name__


class _Silence:
    """Suppresses warnings of Pillow (odd metadata, many pixels), libjpeg and libtiff while images are decoded.

    Warning filters are global to the process, so threads that saved and restored them would undo each other's changes.
    The first user therefore adds one filter for the modules of Pillow, and the last user removes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._filter: Any = None
        self._quiet = QuietC()

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._quiet.begin()
                _silence_libtiff()
                warnings.filterwarnings("ignore", module=r"PIL\.")
                self._filter = warnings.filters[0]
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._quiet.end()
                with contextlib.suppress(ValueError):  # other code may have reset the filters
                    cast(list[Any], warnings.filters).remove(self._filter)


SILENCE = _Silence()  # one per process, like the warning filters


@cache
def _silence_libtiff() -> None:
    """Remove the error and warning handlers of libtiff, once per process; where it cannot be found, do nothing.

    For a damaged file, libtiff itself writes to the screen, without the name of the file. Pillow raises an exception
    for the same error, from which the message with the name is made.
    """
    for library in _libtiff():
        with contextlib.suppress(OSError, AttributeError):
            loaded = ctypes.CDLL(library)
            for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
                set_handler = getattr(loaded, name)
                set_handler.restype, set_handler.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
                set_handler(None)


def _libtiff() -> Iterator[str]:
    """Yield the libtiff that the wheels of Pillow contain, or that of the system, which other builds use."""
    package = Path(PIL.__file__).parent
    own = [file for folder in (package.parent / "pillow.libs", package / ".dylibs") for file in folder.glob("libtiff*")]
    if own:
        yield from map(str, own)
    elif (name := ctypes.util.find_library("tiff")) is not None:
        yield name


class PixelBudget:
    """Limits the number of pixels that threads hold together.

    >>> budget = PixelBudget(100)
    >>> with budget.reserve(1000):  # more than the budget: nothing else is held meanwhile
    ...     budget.held
    1000
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, pixels: int) -> Iterator[None]:
        """Hold a number of pixels; wait until the budget allows it, or until nothing else is held."""
        with self._changed:
            self._changed.wait_for(lambda: self.held == 0 or self.held + pixels <= self.most)
            self.held += pixels
        try:
            yield
        finally:
            with self._changed:
                self.held -= pixels
                self._changed.notify_all()


BUDGET = PixelBudget(PIXELS_AT_ONCE)  # one per process, like the memory


def decoder() -> str:
    """Return what decodes JPEG files here: bytes of different decoders may differ by 1."""
    return "torchvision" if has_decoder() else "Pillow"


def _decode(path: AnyPath, size: int, fast: bool) -> Images:
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise UnreadableImage(path, f"it is {kind}")
        if status.st_size == 0:
            raise UnreadableImage(path, "the file is empty")
        if fast and (decoded := _decode_jpeg(path, status.st_size, size)) is not None:
            return decoded
        with Image.open(path) as opened:
            if opened.format in DRAWINGS:
                raise UnreadableImage(path, f"{opened.format} is a vector drawing, not a pixel image")
            whole = opened.width * opened.height
            opened.draft(None, (DRAFT_FACTOR * size, DRAFT_FACTOR * size))
            # a progressive JPEG is decoded from all its coefficients, also at a fraction of its size
            pixels = whole if opened.info.get("progressive") else opened.width * opened.height
            with BUDGET.reserve(pixels):
                opened.load()  # decode all pixels: a truncated file fails here
                return from_pillow(opened, size, size)
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImage(path, _missing_decoder(path) or reason_for(error)) from error
    # for damaged files, the decoders of Pillow raise many types, from SyntaxError to MemoryError
    except Exception as error:
        if isinstance(error, OSError) and error.errno in TOO_MANY_FILES:
            raise  # the file may be in order
        raise UnreadableImage(path, reason_for(error)) from error


def _decode_jpeg(path: AnyPath, length: int, size: int) -> Images | None:
    """Decode a plain JPEG file that is not much larger than the result; return None for all other files."""
    content = read_jpeg(path, length)
    header = None if content is None else read_header(content)
    if content is None or header is None:
        return None
    pixels = header.width * header.height
    at_a_fraction = min(header.width, header.height) >= 2 * DRAFT_FACTOR * size  # which only Pillow does
    if at_a_fraction or pixels > min(MOST_PIXELS, Image.MAX_IMAGE_PIXELS or MOST_PIXELS):
        return None
    with BUDGET.reserve(pixels):
        return decode_jpeg(content, header, size)


def _upright_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow image to RGB, rotated or mirrored by its EXIF orientation."""
    turn, top = turn_of(image), _brightest(image)
    if turn is None and image.mode == "RGB" and not image.has_transparency_data:
        return image
    result = Image.new("RGB", image.size[::-1] if turn in SWAPPED else image.size)
    for at, strip in _strips(image):
        rgb = _to_rgb(strip, top)
        place = image.height - at - strip.height if turn in FROM_THE_END else at
        turned = rgb if turn is None else rgb.transpose(turn)
        result.paste(turned, (place, 0) if turn in SWAPPED else (0, place))
    return result


def turn_of(image: Image.Image) -> Image.Transpose | None:
    """Return how an image must be rotated or mirrored by its EXIF orientation."""
    try:
        return UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # an image with damaged metadata counts as upright
        return None


def _missing_decoder(path: AnyPath) -> str | None:
    with contextlib.suppress(OSError), Path(path).open("rb") as opened:
        return missing_decoder(opened.read(16))
    return None


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield the strips of an image from top to bottom, with their first rows."""
    rows = max(1, STRIP // image.width)
    for at in range(0, image.height, rows):
        yield at, image.crop((0, at, image.width, min(at + rows, image.height)))


def _to_rgb(image: Image.Image, top: float | None) -> Image.Image:
    """Convert any Pillow mode to RGB; the conversion of Pillow would clip gray values above 255.

    Args:
        image: the image, or a strip of it.
        top: gray value that becomes white, for an image with more than 8 bits per pixel.
    """
    if top is not None:
        return _wide_gray_to_8_bits(image, top).convert("RGB")
    if image.has_transparency_data:
        colored = image.convert("RGBA")
        white = Image.new("RGBA", colored.size, "white")
        return Image.alpha_composite(white, colored).convert("RGB")
    return image.convert("RGB")


def _brightest(image: Image.Image) -> float | None:
    """Return the gray value that becomes white: 65535, or 1 or 255 for floats; None for images with 8 bits."""
    if not (image.mode.startswith("I") or image.mode == "F"):
        return None
    extremes = np.array([(values.min(), values.max()) for values in (np.asarray(strip) for _, strip in _strips(image))])
    low, high = extremes[:, 0].min(), extremes[:, 1].max()
    top = 65535 if image.mode != "F" else 255
    if not (low >= 0 and high <= top):  # written so that NaN fails too
        raise ValueError(f"its gray values range from {low:g} to {high:g}, not within 0 to {top}")
    return 1 if image.mode == "F" and high <= 1 else top


def _wide_gray_to_8_bits(image: Image.Image, top: float) -> Image.Image:
    values = np.asarray(image)
    if image.mode != "F":
        return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    return Image.fromarray(np.rint(values * 255 if top == 1 else values).astype(np.uint8))
