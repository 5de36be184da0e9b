"""Features (embeddings) of a frozen network, computed once per image and view and cached in files.

Features are needed by start ``"fitted_head"``, by mode ``"head"``, and by methods that train their own head on a frozen
network. Features that a run needs more than once are cached in a ``.npy`` file, one row per image. A small text file
next to it holds the number of rows computed so far, so that a second or resumed run does not compute them again. The
names of both files contain a digest of the images, the network and the view.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from tagspread.aliases import Progress
from tagspread.data.images.store import Store, TensorStore
from tagspread.errors import TagspreadError
from tagspread.files import Remedy, hold_lock, write_text
from tagspread.progress import Watcher
from tagspread.run.folder import RunFolder
from tagspread.train.dataset import Dataset
from tagspread.train.experiment import Experiment
from tagspread.train.scoring import resolve_precision, score
from tagspread.vision.backbones import TagNet
from tagspread.vision.dual_relation import DualRelation

ROWS_AT_ONCE = 1024  # rows between two updates of the progress file
DIGITS = 16  # length of the digest in a file name


def embed(
    network: TagNet,
    store: Store,
    rows: np.ndarray,
    device: torch.device,
    *,
    batch: int | None = None,
    precision: str = "auto",
    mirror: bool = False,
    file: Path | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Compute the network's pooled features of some rows of the store (rows x features, float32, on the CPU).

    Args:
        network: the network.
        store: the images.
        rows: rows of the store.
        device: device to run the network on.
        batch: batch size; chosen for the device if not given.
        precision: ``"auto"``, ``"bf16"`` or ``"fp32"``.
        mirror: use the mirror images instead.
        file: cache file for the features; rows that it already holds are not computed again.
        progress: called with the number of rows in the file and their total.
    """
    network.to(device).eval()

    def features(images: Tensor) -> Tensor:
        return network.features(store.modality.mirror(images) if mirror else images)

    def compute(chunk: np.ndarray) -> np.ndarray:
        return score(features, store, chunk, device=device, batch=batch, precision=precision).cpu().numpy()

    if file is None:
        return torch.from_numpy(compute(rows).copy())  # the copy can be used outside inference mode
    width = compute(rows[:1]).shape[1]
    with _locked(file):  # so that two processes do not compute the same features twice
        kept, done = _open(file, (len(rows), width))
        for at in range(done, len(rows), ROWS_AT_ONCE):
            kept[at : at + ROWS_AT_ONCE] = compute(rows[at : at + ROWS_AT_ONCE])
            kept.flush()
            done = min(len(rows), at + ROWS_AT_ONCE)
            _write_note(file, done)
            if progress is not None:
                progress(done, len(rows))
        return torch.from_numpy(np.array(kept))


class View(NamedTuple):
    """Rows of a dataset, plain or mirrored."""

    rows: np.ndarray
    mirror: bool = False


@dataclass(frozen=True)
class FeatureExtractor:
    """A frozen network that computes features of the images of a dataset.

    Attributes:
        network: the network.
        device: device to run the network on and to return features on.
        batch: batch size; chosen for the device if not given.
        precision: ``"auto"``, ``"bf16"`` or ``"fp32"``.
        folder: folder for the cache files; if not given, features are kept in memory only.
        progress: called with the number of computed rows of a cache file and their total.
    """

    network: TagNet
    device: torch.device
    batch: int | None = None
    precision: str = "auto"
    folder: Path | None = None
    progress: Progress | None = None

    def extract(self, dataset: Dataset, *views: View) -> list[Tensor]:
        """Return the features of each view (rows x features), on the device.

        In a run folder, outdated feature files are removed: those of other images, networks or image sizes.
        """
        precision = resolve_precision(self.device, self.precision)
        files: list[Path] = []
        features: list[Tensor] = []
        for rows, mirror in views:
            file = None
            if self.folder is not None:
                file = feature_file(self.folder, dataset, self.network, rows, mirror=mirror, precision=precision)
                files.append(file)
            view_features = embed(
                self.network, dataset.store, rows, self.device, batch=self.batch, precision=precision, mirror=mirror,
                file=file, progress=None if file is None else self.progress,
            )  # fmt: skip
            features.append(view_features.to(self.device))
        if files:
            remove_outdated(files)
        return features

    def featured(self, dataset: Dataset) -> Dataset:
        """Return the dataset with features in place of images."""
        (plain,) = self.extract(dataset, View(np.arange(len(dataset.store))))
        return _with_store(dataset, TensorStore(plain, self.device))

    def train_views(self, dataset: Dataset, rows: np.ndarray, *, mirror: bool) -> Tensor:
        """Return features (views x rows x features) of the images and, with ``mirror``, of their mirror images."""
        mirror = mirror and dataset.store.modality.has_mirror
        views = [View(rows), View(rows, mirror=True)] if mirror else [View(rows)]
        return torch.stack(self.extract(dataset, *views))

    def featured_with_views(self, dataset: Dataset, *, mirror: bool) -> tuple[Dataset, Tensor]:
        """Return the dataset with features in place of images, and the views of all rows to train on, labeled first."""
        all_rows, train = np.arange(len(dataset.store)), np.concatenate([dataset.labeled, dataset.unlabeled])
        if not mirror:
            (plain,) = self.extract(dataset, View(all_rows))
            views = [plain[torch.from_numpy(train).to(self.device)]]
        else:
            # sorted, so that another split of the same images reuses the file; test images are scored without mirroring
            mirrored_rows = np.sort(np.concatenate([train, dataset.held_out]))
            plain, mirrored = self.extract(dataset, View(all_rows), View(mirrored_rows, mirror=True))
            index = torch.from_numpy(np.searchsorted(mirrored_rows, train)).to(self.device)
            views = [plain[torch.from_numpy(train).to(self.device)], mirrored[index]]
        return _with_store(dataset, TensorStore(plain, self.device)), torch.stack(views)


def on_features(experiment: Experiment, folder: Path, watcher: Watcher) -> tuple[Experiment, Tensor | None]:
    """Return the experiment to train: if the network is frozen, its head on features instead of images.

    The features are cached in ``folder``. In mode ``"head"``, the features of all views of the training rows are
    returned as well.
    """
    config, dataset, network = experiment.config, experiment.dataset, experiment.network
    if config.mode != "head" and not experiment.method.on_features:
        return experiment, None
    began, views = time.perf_counter(), None
    extractor = FeatureExtractor(
        network, experiment.device, config.score_batch, config.precision, folder, watcher.embedding
    )
    if config.mode == "head":
        featured, views = extractor.featured_with_views(dataset, mirror=config.flip)
        seconds = time.perf_counter() - began
        watcher.note(f"computed the features of {len(dataset.store):,} images in {seconds:.1f} s; cached in {folder}")
    else:
        featured = extractor.featured(dataset)
        if isinstance(head := network.head, DualRelation):
            head.standardize(featured.store.batch(featured.labeled))
    return replace(experiment, dataset=featured, network=FeatureNet(network)), views


class FeatureNet(TagNet):
    """The head of a network, which takes features as its input."""

    def __init__(self, network: TagNet) -> None:
        nn.Module.__init__(self)
        self.backbone, self.head = nn.Identity(), network.head
        self.register_buffer("scale", network.scale)
        self.register_buffer("shift", network.shift)

    def prepare(self, images: Tensor) -> Tensor:
        """Return the features unchanged."""
        return images


def full_state(network: nn.Module, student: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the full network with the student's weights, also if the student is only its head."""
    return {k: v for k, v in network.state_dict().items() if k.startswith("backbone.")} | student.state_dict()


def _with_store(dataset: Dataset, store: TensorStore) -> Dataset:
    """Return the dataset with another store and the fingerprint of the original one."""
    return replace(dataset, store=store, identity=dataset.fingerprint())


def feature_file(
    folder: Path, dataset: Dataset, network: TagNet, rows: np.ndarray, *, mirror: bool, precision: str
) -> Path:
    """Return the file for the features of these rows, in this order, by this network."""
    digest = hashlib.sha256(f"{dataset.store.shape} {mirror} {precision}\0".encode())
    digest.update(repr(network.backbone).encode())  # the same weights with other strides give other features
    digest.update(np.ascontiguousarray(rows, np.int64).tobytes())
    digest.update("\0".join(map(str, dataset.names)).encode("utf-8", "surrogateescape"))
    dataset.hash_images(digest, times=True)
    for name, value in network.state_dict().items():
        if not name.startswith("head."):
            digest.update(value.cpu().contiguous().numpy().tobytes())
    return folder / f"features-{digest.hexdigest()[:DIGITS]}.npy"


def remove_outdated(files: Sequence[Path]) -> None:
    """In a run folder, remove all feature files other than these: those of other images, networks or image sizes."""
    if not RunFolder(files[0].parent).is_run:  # a cache folder is shared by several runs
        return
    for other in files[0].parent.glob(f"features-{'[0-9a-f]' * DIGITS}.npy"):  # the pattern matches no file of the user
        if other not in files:
            for file in (_note(other), other, _lock(other)):
                file.unlink(missing_ok=True)


def _note(file: Path) -> Path:
    return file.with_suffix(".rows")


def _lock(file: Path) -> Path:
    return file.with_suffix(".lock")


def _write_note(file: Path, done: int) -> None:
    write_text(_note(file), str(done), remedy=Remedy("free disk space there or choose another @cache", {"cache": ...}))


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(hold_lock(_lock(file)))
        except OSError as error:
            raise _not_cached(file, error) from None
        yield


def _open(file: Path, shape: tuple[int, int]) -> tuple[np.memmap[Any, Any], int]:
    """Open or create the cache file; return it as an array, with the number of rows that are already computed."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and _note(file).exists():
            kept = open_memmap(file, mode="r+")
            done = _rows_done(_note(file), shape[0])
            if kept.shape == shape and kept.dtype == np.float32 and done is not None:
                return kept, done
        _note(file).unlink(missing_ok=True)  # its count does not apply to the new file
        kept = open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
        if hasattr(
            os, "posix_fallocate"
        ):  # reserve disk space: on a full disk, writing to mapped memory would kill the process
            with file.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        return kept, 0
    except (OSError, ValueError) as error:
        raise _not_cached(file, error) from None


def _rows_done(note: Path, rows: int) -> int | None:
    """Return how many rows a note says are computed; None if it says nothing that can be true."""
    text = note.read_bytes()[:32].strip()
    done = int(text) if text.isdigit() else None
    return done if done is not None and done <= rows else None


def _not_cached(file: Path, error: Exception) -> TagspreadError:
    return TagspreadError(
        f"features cannot be cached in {file} ({error}); remove the file or choose another @cache.", cache=...
    )
