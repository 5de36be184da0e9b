"""Compare an ONNX file with PyTorch: both must predict the same tags and probabilities on sample images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from tagspread.data.images.decode import DRAFT_FACTOR, SILENCE, Images, from_pillow
from tagspread.data.images.find import find_images
from tagspread.errors import TagspreadError
from tagspread.export.resize import resize
from tagspread.predict.tagger import Tagger
from tagspread.run.config import RunConfig

LIMIT = 1e-3  # largest accepted difference of two probabilities
TIE = 1e-5  # within float32 error of the threshold, either decision is accepted
IMAGES = 8
TRIES = 8  # files that are opened per sample image, as some are unreadable
SIZES = ((48, 64), (64, 48), (37, 91), (120, 120))  # sizes of generated images: wide, high, odd, square


@dataclass(frozen=True)
class Sample:
    """Images to compare on.

    Attributes:
        images: H x W x 3 uint8 arrays of any size.
        words: description, such as "8 images of photos".
    """

    images: list[Images]
    words: str


@dataclass(frozen=True)
class Compared:
    """Result of a successful comparison.

    Attributes:
        words: description of the images.
        difference: largest difference of two probabilities between PyTorch and ONNX.
        resized: largest difference to ``tagspread predict`` where the graph instead of Pillow resizes.
    """

    words: str
    difference: float
    resized: float


def find_sample(run: Path, images: str | Path | None, side: int) -> Sample:
    """Return a few images, evenly spread over a folder; generated images if no folder can be found.

    Args:
        run: the run's folder; its image folder is used by default.
        images: another folder of images.
        side: the network's input size; as in prediction, large photos are decoded at a multiple of it.
    """
    folder = images
    if folder is None and (config := RunConfig.find(run)) is not None:
        folder = config.data.images
    if folder is None or (images is None and not Path(folder).is_dir()):
        return Sample(generated(), f"{len(SIZES)} generated images, as the run's image folder cannot be found")
    readable = list(_readable(find_images(folder), side))
    if not readable and images is not None:
        raise TagspreadError(f"{images} holds no readable image; give a folder with readable images.")
    if not readable:
        return Sample(generated(), f"{len(SIZES)} generated images, as {folder} holds no readable image")
    return Sample(readable, f"{len(readable)} images of {Path(folder).resolve().name}")


def _readable(files: Sequence[Path], side: int) -> Iterator[Images]:
    step = max(1, len(files) // (IMAGES * TRIES))
    spread = files[::step][: IMAGES * TRIES]
    left = IMAGES
    for file in [candidate for start in range(TRIES) for candidate in spread[start::TRIES]]:
        try:
            with SILENCE, Image.open(file) as opened:
                opened.draft(None, (DRAFT_FACTOR * side, DRAFT_FACTOR * side))
                image = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
        except Exception:  # Pillow raises many kinds, see data/images/decode.py; take the next file
            continue
        yield image
        left -= 1
        if not left:
            return


def generated() -> list[Images]:
    """Return smooth random images, H x W x 3: neighboring pixels are similar, as in photos; all byte values occur."""
    draw = np.random.default_rng(0)
    clouds = [Image.fromarray(draw.integers(0, 256, (6, 6, 3), np.uint8)) for _ in SIZES]
    return [
        np.array(cloud.resize((width, height), Image.Resampling.BICUBIC))
        for cloud, (height, width) in zip(clouds, SIZES, strict=True)
    ]


def compare(file: Path, tagger: Tagger, sample: Sample) -> Compared:
    """Run both on the same images; raise unless all probabilities and tags agree.

    Args:
        file: the ONNX file.
        tagger: the run, on the CPU, where PyTorch computes in float32 as well.
        sample: the images to compare on.
    """
    run = _session(file)
    _, height, width = tagger.artifact.shape
    by_pillow = np.stack([from_pillow(Image.fromarray(image), height, width) for image in sample.images])
    in_graph = np.concatenate([_resized(image, height, width) for image in sample.images])
    together = run(np.ascontiguousarray(by_pillow.transpose(0, 2, 3, 1)))  # a batch in the network's input size
    one_by_one = np.concatenate([run(image[None]) for image in sample.images])  # images of any size
    differences = [_difference(tagger, by_pillow, together), _difference(tagger, in_graph, one_by_one)]
    resized = float(np.abs(together - one_by_one).max())
    return Compared(sample.words, max(differences), resized)


def _session(file: Path) -> Callable[[Images], np.ndarray]:
    """Return a function that runs an ONNX file on images (B x H x W x 3) and returns probabilities."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors

    def refuse(error: Exception) -> TagspreadError:
        reason = " ".join(str(error).split())[:200]
        return TagspreadError(f"ONNX Runtime cannot run the file ({reason}); it was not kept.")

    try:  # its errors have no common base class
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise refuse(error) from error

    def run(images: Images) -> np.ndarray:
        try:
            return np.asarray(session.run(None, {"images": images})[0])
        except Exception as error:
            raise refuse(error) from error

    return run


def _resized(image: Images, height: int, width: int) -> Images:
    return resize(torch.from_numpy(image.copy()).permute(2, 0, 1)[None], height, width).numpy()


def _difference(tagger: Tagger, images: Images, probabilities: np.ndarray) -> float:
    expected = tagger.predict(images)
    difference = float(np.abs(expected.probabilities - probabilities).max())
    if not difference <= LIMIT:  # written so that NaN fails, too
        raise TagspreadError(
            f"the ONNX file's probabilities differ from PyTorch's by {difference:.2g}, more than {LIMIT:g}; it was not "
            "kept."
        )
    undecided = np.abs(expected.probabilities - tagger.thresholds) <= TIE
    wrong = np.argwhere((expected.chosen != (probabilities >= tagger.thresholds)) & ~undecided)
    if len(wrong):
        row, column = wrong[0]
        raise TagspreadError(
            f"the ONNX file and PyTorch disagree on the tag {tagger.classes[column]!r} (probability "
            f"{expected.probabilities[row, column]:.6g} and {probabilities[row, column]:.6g}); it was not kept."
        )
    return difference
