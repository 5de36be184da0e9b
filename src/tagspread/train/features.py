"""Features (embeddings) of a frozen network, computed once per image and view and cached on disk.

Features are needed by start ``"fitted_head"``, by mode ``"head"``, and by methods that train their own head on a frozen
network. :mod:`tagspread.train.feature_cache` keeps them, image by image.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tagspread.aliases import Progress
from tagspread.data.images.decode import shifted
from tagspread.data.images.store import Store, TensorStore
from tagspread.progress import Watcher
from tagspread.train.dataset import Dataset
from tagspread.train.experiment import Experiment
from tagspread.train.feature_cache import FeatureCache, PixelDigests, cache_key, pixel_digests, remove_outdated
from tagspread.train.scoring import resolve_precision, score
from tagspread.train.sharded_store import ShardedStore
from tagspread.vision.backbones import TagNet
from tagspread.vision.dual_relation import DualRelation

ROWS_AT_ONCE = 512  # images between two writes to the cache


def embed(
    network: TagNet,
    store: Store,
    rows: np.ndarray,
    device: torch.device,
    *,
    batch: int | None = None,
    precision: str = "auto",
    mirror: bool = False,
    cache: FeatureCache | None = None,
    digests: PixelDigests | None = None,
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
        cache: cache of the features; images that it holds are not computed, the others are added.
        digests: digests of the images' pixels, if they are known.
        progress: called with the number of computed images and the number of images to compute.
    """
    network.to(device).eval()

    def features(images: Tensor) -> Tensor:
        return network.features(store.modality.mirror(images) if mirror else images)

    def compute(chunk: np.ndarray, report: Progress | None) -> np.ndarray:
        scores = score(features, store, chunk, device=device, batch=batch, precision=precision, progress=report)
        return scores.cpu().numpy()

    if not len(rows):
        return torch.zeros(0, 0)
    if cache is None:
        return torch.from_numpy(compute(rows, progress).copy())  # the copy can be used outside inference mode
    digests = pixel_digests(store, rows) if digests is None else digests
    unique, first, place = np.unique(digests, return_index=True, return_inverse=True)
    kept, found = cache.read(unique)
    if found.all():
        cache.tidy()  # nothing is left to compute, maybe by a process that was killed after its last shard
    else:
        with cache.writing():
            kept, found = cache.read(unique)  # another process may have added some meanwhile
            missing = np.flatnonzero(~found)
            missing = missing[np.argsort(first[missing])]  # in the order of the rows
            for at in range(0, len(missing), ROWS_AT_ONCE):
                chunk = missing[at : at + ROWS_AT_ONCE]
                computed = compute(rows[first[chunk]], shifted(progress, at, len(missing)))
                cache.add(unique[chunk], computed)
                if kept is None:
                    kept = np.zeros((len(unique), computed.shape[1]), dtype=np.float32)
                kept[chunk] = computed
    return torch.from_numpy(np.asarray(kept)[place])


class View(NamedTuple):
    """Rows of a dataset, plain or mirrored."""

    rows: np.ndarray
    mirror: bool = False


@dataclass
class FeatureExtractor:
    """A frozen network that computes features of the images of a dataset.

    Attributes:
        network: the network.
        device: device to run the network on and to return features on.
        batch: batch size; chosen for the device if not given.
        precision: ``"auto"``, ``"bf16"`` or ``"fp32"``.
        folder: folder of the cache; if not given, no features are written.
        others: further folders with cached features.
        progress: called with the number of computed images and the number of images to compute.
        computed: number of images, in any view, that have passed through the network.
    """

    network: TagNet
    device: torch.device
    batch: int | None = None
    precision: str = "auto"
    folder: Path | None = None
    others: Sequence[Path] = ()
    progress: Progress | None = None
    computed: int = 0

    def extract(self, dataset: Dataset, *views: View) -> list[Tensor]:
        """Return the features of each view (rows x features), on the device.

        In a run folder, outdated features are removed: those of other networks or image sizes.
        """
        precision, store = resolve_precision(self.device, self.precision), dataset.store
        uses_cache = self.folder is not None or bool(self.others)
        if isinstance(store, ShardedStore):
            return [self._extract_shared(store, view, precision, uses_cache) for view in views]
        all_rows = np.unique(np.concatenate([view.rows for view in views]))
        digests = pixel_digests(store, all_rows) if uses_cache else None
        features: list[Tensor] = []
        folders: list[Path] = []
        for rows, mirror in views:
            cache = None
            if uses_cache:
                key = cache_key(self.network, store.shape, mirror=mirror, precision=precision)
                cache = FeatureCache(self.folder, key, self.others)
                folders += [] if cache.folder is None else [cache.folder]
            view_features = embed(
                self.network, store, rows, self.device, batch=self.batch, precision=precision, mirror=mirror,
                cache=cache, digests=None if digests is None else digests[np.searchsorted(all_rows, rows)],
                progress=self._count(),
            )  # fmt: skip
            features.append(view_features.to(self.device))
        if self.folder is not None:
            remove_outdated(self.folder, folders)
        return features

    def _extract_shared(self, store: ShardedStore, view: View, precision: str, uses_cache: bool) -> Tensor:
        """Return the features of a view, which each process computes for its images; only the first process gets them.

        The processes do not wait for each other to write the cache, because they compute different images.
        """
        cache = None
        if uses_cache:
            key = cache_key(self.network, store.shape, mirror=view.mirror, precision=precision)
            cache = FeatureCache(self.folder, key, self.others, waits=False)

        def compute(local: Store, rows: np.ndarray) -> Tensor:
            return embed(
                self.network, local, rows, self.device, batch=self.batch, precision=precision, mirror=view.mirror,
                cache=cache, progress=self._count(),
            )  # fmt: skip

        return store.gathered(view.rows, compute, first_only=True).to(self.device)

    def _count(self) -> Progress:
        """Return a callback that counts the images that pass through the network, and reports them."""
        before = self.computed

        def report(done: int, total: int) -> None:
            self.computed = before + done
            if self.progress is not None:
                self.progress(done, total)

        return report

    def featured(self, dataset: Dataset) -> Dataset:
        """Return the dataset with features in place of images; images in no part have zeros."""
        rows = _rows_in_use(dataset)
        (plain,) = self.extract(dataset, View(rows))
        return _with_features(dataset, rows, plain)

    def train_views(self, dataset: Dataset, rows: np.ndarray, *, mirror: bool) -> Tensor:
        """Return features (views x rows x features) of the images and, with ``mirror``, of their mirror images."""
        mirror = mirror and dataset.store.modality.has_mirror
        views = [View(rows), View(rows, mirror=True)] if mirror else [View(rows)]
        return torch.stack(self.extract(dataset, *views))

    def featured_with_views(self, dataset: Dataset, *, mirror: bool) -> tuple[Dataset, Tensor]:
        """Return the dataset with features in place of images, and the views of all rows to train on, labeled first."""
        rows, train = _rows_in_use(dataset), np.concatenate([dataset.labeled, dataset.unlabeled])
        # test images are scored without mirroring
        views = [View(rows), View(train, mirror=True)] if mirror else [View(rows)]
        plain, *mirrored = self.extract(dataset, *views)
        index = torch.from_numpy(np.searchsorted(rows, train)).to(self.device)
        shown = plain[index] if len(plain) else plain
        return _with_features(dataset, rows, plain), torch.stack([shown, *mirrored])


def on_features(
    experiment: Experiment, folder: Path, watcher: Watcher, others: Sequence[Path] = ()
) -> tuple[Experiment, Tensor | None]:
    """Return the experiment to train: if the network is frozen, its head on features instead of images.

    The features are cached in ``folder``; they are also read from the folders ``others``. In mode ``"head"``, the
    features of all views of the training rows are returned as well.
    """
    config, dataset, network = experiment.config, experiment.dataset, experiment.network
    if config.mode != "head" and not experiment.method.on_features:
        return experiment, None
    began, views = time.perf_counter(), None
    extractor = FeatureExtractor(
        network, experiment.device, config.score_batch, config.precision, folder, others,
        watcher.begin("computing features"),
    )  # fmt: skip
    if config.mode == "head":
        featured, views = extractor.featured_with_views(dataset, mirror=config.flip)
        watcher.note(features_in_words(extractor, len(_rows_in_use(dataset)), began))
    else:
        featured = extractor.featured(dataset)
        if isinstance(head := network.head, DualRelation):
            head.standardize(featured.store.batch(featured.labeled))
    return replace(experiment, dataset=featured, network=FeatureNet(network)), views


def features_in_words(extractor: FeatureExtractor, images: int, began: float) -> str:
    """Describe how many features were computed, and where they are cached."""
    seconds = time.perf_counter() - began
    if not extractor.computed:
        return f"features of {images:,} images read from the cache in {seconds:.1f} s; none had to be computed"
    cached = "" if extractor.folder is None else f"; cached in {extractor.folder}"
    return f"features of {images:,} images in {seconds:.1f} s ({extractor.computed:,} views computed){cached}"


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


def _rows_in_use(dataset: Dataset) -> np.ndarray:
    """Return the rows of all parts, sorted: images that cannot be read are in none."""
    return np.unique(np.concatenate([dataset.labeled, dataset.unlabeled, dataset.held_out, dataset.test]))


def _with_features(dataset: Dataset, rows: np.ndarray, features: Tensor) -> Dataset:
    """Return the dataset with features of some rows in place of images, and the fingerprint of the original one."""
    identity = dataset.fingerprint()
    if isinstance(dataset.store, ShardedStore) and not dataset.store.processes.is_first:
        features = features.new_zeros(len(dataset.store), 1)  # the first process trains alone
    elif len(rows) < len(dataset.store):
        whole = features.new_zeros(len(dataset.store), features.shape[1])
        whole[torch.from_numpy(rows).to(features.device)] = features
        features = whole
    return replace(dataset, store=TensorStore(features, features.device), identity=identity)
