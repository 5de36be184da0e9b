"""``ts.load(run)``: load the tagger of a run, to predict tags and calibrated probabilities of images."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from numbers import Integral
from os import PathLike
from pathlib import Path

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
from tagspread.run.config import RunConfig
from tagspread.train.feature_cache import FeatureCache, cache_key, has_features
from tagspread.train.features import FeatureNet, embed
from tagspread.train.preflight import choose_device
from tagspread.train.scoring import resolve_precision, score
from tagspread.vision.backbones import TagNet

MAX_BATCH = 256  # largest batch; the next one is copied to the GPU meanwhile


class Tagger:
    """A trained network with its class names, calibration and thresholds.

    Attributes:
        classes: names of the tags, in the order of the columns.
        thresholds: decision threshold per class: a tag is predicted if its probability is at least this; with ``inf``
            it never is.
        calibration: turns logits into probabilities.
        network: turns uint8 images into logits.
    """

    def __init__(
        self, artifact: Artifact, network: TagNet, device: torch.device, features: Iterable[Path] = ()
    ) -> None:
        self.artifact, self.network, self.device = artifact, network, device
        self._caches = _caches(artifact, network, device, features)
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
        """Predict the tags of images: paths, a folder, Pillow images or uint8 arrays, one or several.

        Args:
            images: the images. One array holds several images (N x H x W x 3, N x 3 x H x W, or N x H x W in gray).
            top: predict this many tags, the most probable ones, without thresholds; together with ``threshold``, at
                most this many.
            threshold: predict tags with at least this probability: one number, or one per class; by default the
                run's thresholds.
            mirror: average over each image and its mirror image: slightly more accurate, takes twice as long.
            batch: number of images per batch.
        """
        parts = list(self.stream(images, top=top, threshold=threshold, mirror=mirror, batch=batch))
        if not parts:
            no_rows = np.empty((0, len(self.classes)))
            return Predictions([], self.classes, no_rows, no_rows.astype(bool), [])
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
        """Predict like :meth:`predict`, but yield the predictions in parts, to bound the memory."""
        for option, value in (("top", top), ("batch", batch)):
            if value is not None and (not isinstance(value, Integral) or value < 1):
                raise TagspreadError(f"{option} is {value!r}; give a whole number of at least 1.")
        if threshold is not None and np.isnan(np.asarray(threshold, np.float64)).any():
            raise TagspreadError("threshold holds NaN; give probabilities from 0 to 1.")
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
        """Yield chunks of images with the network's logits; ignore the logits of unreadable images."""
        batch = batch or min(MAX_BATCH, ImageModality(self.artifact.shape).suitable_batch(self.device))
        pending: deque[tuple[Chunk, Tensor, torch.cuda.Event | None]] = deque()
        for chunk in read_chunks(images, self.artifact.shape, batch):
            # budget 0 keeps the images in host memory; batches are copied while the GPU runs on the previous one
            store = TensorStore(chunk.images, self.device, budget=0)
            rows = np.arange(len(chunk.names))
            if self._caches:
                logits = self._logits_of_features(store, rows, batch, mirror)
            else:
                logits = score(self.network, store, rows, device=self.device, batch=batch, flips=mirror)
            pending.append((chunk, *_fetch(logits)))
            if (
                pending[0][2] is None or len(pending) > 1
            ):  # start the next chunk on the GPU before waiting for the logits of this one
                yield _wait(*pending.popleft())
        while pending:
            yield _wait(*pending.popleft())

    def features(self, images: Tensor, *, mirror: bool = False) -> Tensor:
        """Compute the network's pooled features of decoded images (uint8, of the network's input size).

        Features that training has cached are not computed again.

        Args:
            images: B x 3 x H x W.
            mirror: use the mirror images instead.
        """
        store = TensorStore(images, self.device, budget=0)
        return embed(self.network, store, np.arange(len(images)), self.device, mirror=mirror,
                     cache=self._caches.get(mirror))  # fmt: skip

    def has_cached_features(self, *, mirror: bool = False) -> bool:
        """Return whether training has cached features of a view."""
        return mirror in self._caches and self._caches[mirror].exists

    def _logits_of_features(self, store: TensorStore, rows: np.ndarray, batch: int, mirror: bool) -> Tensor:
        """Compute logits from cached features; only the other images pass through the network."""
        logits: list[Tensor] = []
        for is_mirrored in (False, True) if mirror else (False,):
            cache = self._caches[is_mirrored]
            features = embed(self.network, store, rows, self.device, batch=batch, mirror=is_mirrored, cache=cache)
            logits.append(score(FeatureNet(self.network), TensorStore(features, self.device), rows, device=self.device))
        return torch.stack(logits).mean(0)


def _caches(
    artifact: Artifact, network: TagNet, device: torch.device, folders: Iterable[Path]
) -> dict[bool, FeatureCache]:
    """Return the cached features of the network by view (mirrored or not), to read only; empty if there are none."""
    if not (sources := [folder for folder in folders if has_features(folder)]) or network.head.wants_map:
        return {}
    precision, caches = resolve_precision(device, "auto"), {}
    for mirror in (False, True):
        key = cache_key(network, artifact.shape, mirror=mirror, precision=precision)
        caches[mirror] = FeatureCache(None, key, sources)
    return caches if any(cache.exists for cache in caches.values()) else {}


def _feature_folders(run: Path) -> list[Path]:
    """Return the folders in which training may have cached features."""
    with contextlib.suppress(TagspreadError):  # a tagger does not need the settings of its training
        config = RunConfig.find(run)
        if config is not None and config.data.cache is not None:
            return [run, Path(config.data.cache)]
    return [run]


def _fetch(logits: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Start copying logits to the host; return the host tensor, and the event that marks the end of the copy."""
    if not logits.is_cuda:
        return logits.cpu(), None
    host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
    host.copy_(logits, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(logits.device))
    return host, copied


def _wait(chunk: Chunk, logits: Tensor, copied: torch.cuda.Event | None) -> tuple[Chunk, np.ndarray]:
    if copied is not None:
        copied.synchronize()
    return chunk, logits.numpy()


def load(run: str | PathLike[str], device: str = "auto") -> Tagger:
    """Load the tagger of a run. Only JSON and safetensors files are read; no code of the run is executed.

    If the run's network was frozen in training, the features that training has cached are used for the same images.

    Args:
        run: the run's folder, or the run that ``ts.train`` returned.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.
    """
    artifact, place = read_artifact(run), choose_device(device)
    return Tagger(artifact, load_network(artifact, place), place, _feature_folders(artifact.path))
