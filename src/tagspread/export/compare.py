"""Does an ONNX file say what the run says? Images to ask both, and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

LIMIT = 1e-3  # of the difference of two probabilities
TIE = 1e-5  # a probability this close to its threshold may fall on either side: float32 cannot tell
IMAGES = 8
TRIES = 8  # of every so many files that are opened one should be a image
SIZES = ((48, 64), (64, 48), (37, 91), (120, 120))  # of generated images: wide, high, odd, square


@dataclass(frozen=True)
class Sample:
    """Images to compare on.

    Attributes:
        images: each H x W x 3 bytes, of any size.
        words: what they are, such as "8 images of photos".
    """

    images: list[Images]
    words: str


@dataclass(frozen=True)
class Compared:
    """What came out of a comparison that went well.

    Attributes:
        words: which images.
        difference: largest difference of two probabilities between PyTorch and ONNX.
        resized: largest difference to ``tagspread predict`` where the graph, not Pillow, brought a image to size.
    """

    words: str
    difference: float
    resized: float


def find_sample(run: Path, images: str | Path | None, side: int) -> Sample:
    """Return a few images, spread over a folder: that one, or the run's own; generated ones if there is none.

    Args:
        run: the run's folder, which knows what it was trained on.
        images: a folder of images to take instead.
        side: the network's size; as in predicting, large photos are only decoded to some multiple of it.
    """
    own = images
    if own is None and (config := RunConfig.find(run)) is not None:
        own = config.data.images
    if own is None or (images is None and not Path(own).is_dir()):
        return Sample(generated(), f"{len(SIZES)} generated images, as the run's own cannot be found")
    found = list(_readable(find_images(own), side))
    if not found and images is not None:
        raise TagspreadError(f"{images} holds no image that can be read; give a folder with some.")
    if not found:
        return Sample(generated(), f"{len(SIZES)} generated images, as {own} holds none that can be read")
    return Sample(found, f"{len(found)} images of {Path(own).resolve().name}")


def _readable(files: list[Path], side: int) -> Iterator[Images]:
    step = max(1, len(files) // (IMAGES * TRIES))
    spread = files[::step][: IMAGES * TRIES]
    left = IMAGES
    for file in [one for start in range(TRIES) for one in spread[start::TRIES]]:
        try:
            with SILENCE, Image.open(file) as opened:
                opened.draft(None, (DRAFT_FACTOR * side, DRAFT_FACTOR * side))
                image = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
        except Exception:  # whatever Pillow trips over, as in data/decode.py: others will do
            continue
        yield image
        left -= 1
        if not left:
            return


def generated() -> list[Images]:
    """Return clouds of color, H x W x 3: neighboring pixels are alike, as in photos, and every byte occurs."""
    draw = np.random.default_rng(0)
    clouds = [Image.fromarray(draw.integers(0, 256, (6, 6, 3), np.uint8)) for _ in SIZES]
    return [
        np.array(cloud.resize((width, height), Image.Resampling.BICUBIC))
        for cloud, (height, width) in zip(clouds, SIZES, strict=True)
    ]


def compare(file: Path, tagger: Tagger, sample: Sample) -> Compared:
    """Ask both about the same images; raise unless all probabilities and tags are the same.

    Args:
        file: the ONNX file.
        tagger: the run, on the CPU, where PyTorch computes in float32 as well.
        sample: what to ask about.
    """
    ask = _session(file)
    _, height, width = tagger.artifact.shape
    by_pillow = np.stack([from_pillow(Image.fromarray(one), height, width) for one in sample.images])
    in_graph = np.concatenate([_resized(one, height, width) for one in sample.images])
    together = ask(np.ascontiguousarray(by_pillow.transpose(0, 2, 3, 1)))  # a batch of the network's own size
    one_by_one = np.concatenate([ask(one[None]) for one in sample.images])  # any size
    differences = [_difference(tagger, by_pillow, together), _difference(tagger, in_graph, one_by_one)]
    apart = float(np.abs(together - one_by_one).max())
    return Compared(sample.words, max(differences), apart)


def _session(file: Path) -> Callable[[Images], np.ndarray]:
    """Return what an ONNX file says of images, B x H x W x 3."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors

    def refuse(error: Exception) -> TagspreadError:
        reason = " ".join(str(error).split())[:200]
        return TagspreadError(f"ONNX Runtime cannot use the file, so it was not kept ({reason}).")

    try:  # its errors have no common class of their own
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise refuse(error) from error

    def ask(images: Images) -> np.ndarray:
        try:
            return np.asarray(session.run(None, {"images": images})[0])
        except Exception as error:
            raise refuse(error) from error

    return ask


def _resized(image: Images, height: int, width: int) -> Images:
    return resize(torch.from_numpy(image.copy()).permute(2, 0, 1)[None], height, width).numpy()


def _difference(tagger: Tagger, images: Images, said: np.ndarray) -> float:
    expected = tagger.predict(images)
    difference = float(np.abs(expected.probabilities - said).max())
    if not difference <= LIMIT:  # so written, NaN fails as well
        raise TagspreadError(
            f"the ONNX file's probabilities differ from PyTorch's by {difference:.2g}, more than {LIMIT:g}; it was not "
            "kept."
        )
    undecided = np.abs(expected.probabilities - tagger.thresholds) <= TIE
    wrong = np.argwhere((expected.chosen != (said >= tagger.thresholds)) & ~undecided)
    if len(wrong):
        row, column = wrong[0]
        raise TagspreadError(
            f"the ONNX file decides otherwise than PyTorch about {tagger.classes[column]!r} (probability "
            f"{expected.probabilities[row, column]:.6g} and {said[row, column]:.6g}); it was not kept."
        )
    return difference
