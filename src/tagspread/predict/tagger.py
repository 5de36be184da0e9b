"""``ts.load(run)``: a tagger that takes images and gives tags."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from numbers import Integral
from os import PathLike

import numpy as np
import torch
from torch import Tensor

from tagspread.core.arrays import ArrayLike
from tagspread.core.calibration import Calibration
from tagspread.core.decision import decide
from tagspread.data.images.store import TensorStore
from tagspread.data.modality import ImageModality
from tagspread.errors import TagspreadError
from tagspread.predict.images import Chunk, ImageInput, read_chunks
from tagspread.predict.predictions import Predictions
from tagspread.run.artifact import Artifact, load_network, read_artifact
from tagspread.train.scoring import score
from tagspread.train.trainer import choose_device
from tagspread.vision.backbones import TagNet

MOST_AT_A_TIME = 256  # while a GPU processes these, the next are copied to it


class Tagger:
    """A trained network with its class names, calibration and thresholds.

    Attributes:
        classes: the tags, in the order of all columns.
        thresholds: a tag is chosen if its probability is at least this; ``inf`` never is.
        calibration: how logits become probabilities.
        network: logits of uint8 images.
    """

    def __init__(self, artifact: Artifact, network: TagNet, device: torch.device) -> None:
        self.artifact, self.network, self.device = artifact, network, device
        self.classes: tuple[str, ...] = artifact.classes
        self.thresholds: np.ndarray = artifact.thresholds
        self.calibration: Calibration = artifact.calibration

    def predict(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        top: int | None = None,
        threshold: ArrayLike | None = None,
        mirror: bool = False,
        batch: int | None = None,
    ) -> Predictions:
        """Tag images: paths, a folder, Pillow images or uint8 arrays, one or many.

        Args:
            images: what to tag. One array holds many images (N x H x W x 3, N x 3 x H x W, or N x H x W in gray).
            top: choose this many tags, the most probable ones, whatever the thresholds; with ``threshold`` at most
                this many.
            threshold: choose tags of at least this probability, one number or one per class; else the run's own.
            mirror: average over each image and its mirror image: a little better, at twice the time.
            batch: how many images the network sees at a time.
        """
        parts = list(self.stream(images, top=top, threshold=threshold, mirror=mirror, batch=batch))
        if not parts:
            nothing = np.empty((0, len(self.classes)))
            return Predictions([], self.classes, nothing, nothing.astype(bool), [])
        return Predictions(
            [name for part in parts for name in part.images],
            self.classes,
            np.concatenate([part.probabilities for part in parts]),
            np.concatenate([part.chosen for part in parts]),
            [error for part in parts for error in part.errors],
        )

    def stream(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        top: int | None = None,
        threshold: ArrayLike | None = None,
        mirror: bool = False,
        batch: int | None = None,
    ) -> Iterator[Predictions]:
        """Do as :meth:`predict` does, but yield a part at a time: any number of images in little memory."""
        for option, value in (("top", top), ("batch", batch)):
            if value is not None and (not isinstance(value, Integral) or value < 1):
                raise TagspreadError(f"{option} is {value!r}; give a whole number of at least 1.")
        if threshold is not None and np.isnan(np.asarray(threshold, np.float64)).any():
            raise TagspreadError("threshold holds NaN, which nothing reaches; give probabilities from 0 to 1.")
        if threshold is None:
            threshold = 0.0 if top is not None else self.thresholds
        for chunk, logits in self.logits(images, mirror=mirror, batch=batch):
            probabilities = self.calibration.probabilities(logits)
            chosen = decide(probabilities, threshold) == 1
            if top is not None:
                best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
                among = np.zeros_like(chosen)
                np.put_along_axis(among, best, True, axis=1)
                chosen &= among
            broken = [row for row, error in enumerate(chunk.errors) if error]
            probabilities[broken], chosen[broken] = np.nan, False
            yield Predictions(chunk.names, self.classes, probabilities, chosen, chunk.errors)

    def logits(
        self, images: ImageInput | Iterable[ImageInput], *, mirror: bool = False, batch: int | None = None
    ) -> Iterator[tuple[Chunk, np.ndarray]]:
        """Yield chunks of images with the network's own answers; those of unreadable images mean nothing."""
        batch = batch or min(MOST_AT_A_TIME, ImageModality(self.artifact.shape).suitable_batch(self.device))
        asked: deque[tuple[Chunk, Tensor, torch.cuda.Event | None]] = deque()
        for chunk in read_chunks(images, self.artifact.shape, batch):
            # budget 0: the images stay in memory and follow batch by batch, while the GPU works on those before
            store = TensorStore(chunk.images, self.device, budget=0)
            rows = np.arange(len(chunk.names))
            logits = score(self.network, store, rows, device=self.device, batch=batch, flips=mirror)
            asked.append((chunk, *_fetch(logits)))
            if (
                asked[0][2] is None or len(asked) > 1
            ):  # a GPU gets the next chunk before this one's answers are waited for
                yield _answered(*asked.popleft())
        while asked:
            yield _answered(*asked.popleft())


def _fetch(logits: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Begin to copy logits to the host; return where to, and what tells when it is done."""
    if not logits.is_cuda:
        return logits.cpu(), None
    host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
    host.copy_(logits, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(logits.device))
    return host, copied


def _answered(chunk: Chunk, logits: Tensor, copied: torch.cuda.Event | None) -> tuple[Chunk, np.ndarray]:
    if copied is not None:
        copied.synchronize()
    return chunk, logits.numpy()


def load(run: str | PathLike[str], device: str = "auto") -> Tagger:
    """Return the tagger of a run; only JSON and safetensors are read, and no code of the run is executed.

    Args:
        run: the run's folder, or what ``ts.train`` returned.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.
    """
    artifact, place = read_artifact(run), choose_device(device)
    return Tagger(artifact, load_network(artifact, place), place)
