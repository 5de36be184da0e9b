"""Benchmark datasets: read labels and decode images once, and split them for each labeled share and seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tagspread.aliases import SettingValues
from tagspread.data.datasets import find_dataset
from tagspread.data.images.store import Store, TensorStore, open_store
from tagspread.data.split import paper_split
from tagspread.errors import TagspreadError
from tagspread.progress import Watcher
from tagspread.train.dataset import Dataset


@dataclass(frozen=True)
class BenchmarkData:
    """A fully labeled dataset: training rows first, then test rows.

    Attributes:
        name: name of the dataset in the registry.
        y: true labels of all rows.
        classes: names of the classes.
        train: number of training rows.
        names: name of each image, independent of the dataset's location.
        paths: image files.
        images: the images, if they are not files.
        facts: options that define the data, such as the number of generated images.
    """

    name: str
    y: np.ndarray
    classes: tuple[str, ...]
    train: int
    names: list[str]
    paths: list[Path] = field(default_factory=list)
    images: np.ndarray | None = None
    facts: SettingValues = field(default_factory=dict)

    def digest(self) -> str:
        """Return a digest of names, classes and labels, which identifies the data."""
        digest = hashlib.sha256(json.dumps([self.names, self.classes, self.train]).encode())
        digest.update(np.ascontiguousarray(self.y, np.int8).tobytes())
        return digest.hexdigest()[:16]

    def open(self, size: int, device: torch.device, cache: Path | None, watcher: Watcher) -> Splits:
        """Decode all images."""
        if self.images is not None:
            return Splits(self, TensorStore(self.images, device), np.ones(len(self.y), dtype=bool))
        if not any(path.exists() for path in self.paths):  # before any memory is asked for
            raise TagspreadError(
                f"the labels are complete, but none of the {len(self.paths):,} images that they name exists; the first "
                f"is {self.paths[0]}. Put the images there."
            )
        store, broken = open_store(self.paths, size, device, cache=cache, progress=watcher.begin("decoding"))
        watcher.close()
        readable = np.ones(len(self.y), dtype=bool)
        readable[[image.index for image in broken]] = False
        if not readable.any():
            raise TagspreadError(f"none of the {len(readable):,} images can be read; the first is {self.paths[0]}.")
        for image in broken[:10]:
            watcher.note(f"left out: {image.path} ({image.reason})")
        if broken:
            watcher.note(f"{len(broken):,} of {len(readable):,} images cannot be read and are left out of all metrics")
        return Splits(self, store, readable)


@dataclass(frozen=True)
class Splits:
    """The splits of a dataset, one per labeled share and seed, with a common image store."""

    data: BenchmarkData
    store: Store
    readable: np.ndarray  # whether each image could be read

    def __call__(self, share: float, seed: int) -> Dataset:
        """Return the paper's split; the true labels of the unlabeled set are included for evaluation only."""
        data = self.data
        labeled, unlabeled = (rows[self.readable[rows]] for rows in paper_split(data.train, share, seed))
        test = np.arange(data.train, len(data.y))
        visible = data.y.copy()
        visible[unlabeled] = -1
        return Dataset(
            self.store,
            visible,
            data.classes,
            labeled,
            unlabeled,
            test[self.readable[test]],
            names=data.names,
            files=data.paths,
            oracle=data.y[unlabeled],
        )


def load(name: str, root: Path | None, canvases: int = 1200) -> BenchmarkData:
    """Read the labels of a dataset; ``canvases`` is the number of images of a generated one, such as the demo's."""
    parts = find_dataset(name).load(root, canvases)
    train, test = parts.train, parts.test
    y = np.concatenate([train.y, test.aligned(train.classes, f"the test images of {root or name}")])
    paths = [*train.paths, *test.paths]
    if parts.images is not None:
        names = [str(path) for path in paths]
        return BenchmarkData(
            name, y, train.classes, len(train), names, images=parts.images, facts={"canvases": canvases}
        )
    names = [(path.relative_to(root) if root and path.is_relative_to(root) else path).as_posix() for path in paths]
    return BenchmarkData(name, y, train.classes, len(train), names, paths)
