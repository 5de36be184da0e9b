"""A data set for a grid: labels read once, images decoded once, split anew for every cell."""

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
    """A data set whose labels are all known: training rows first, then the rows to test on.

    Attributes:
        name: what the registry calls it.
        y: the true labels of all rows.
        classes: their names.
        train: how many rows are for training.
        names: what each image is called, the same wherever the data lie.
        paths: the images' files.
        images: the images themselves, where there are no files.
        facts: what else makes it this data set and no other.
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
        """Return by what other data of the same kind are told apart: names, classes and labels."""
        digest = hashlib.sha256(json.dumps([self.names, self.classes, self.train]).encode())
        digest.update(np.ascontiguousarray(self.y, np.int8).tobytes())
        return digest.hexdigest()[:16]

    def open(self, size: int, device: torch.device, cache: Path | None, watcher: Watcher) -> Splits:
        """Decode the images, each once."""
        if self.images is not None:
            return Splits(self, TensorStore(self.images, device), np.ones(len(self.y), dtype=bool))
        store, broken = open_store(self.paths, size, device, cache=cache, progress=watcher.decoding)
        watcher.close()
        readable = np.ones(len(self.y), dtype=bool)
        readable[[image.index for image in broken]] = False
        if not readable.any():
            raise TagspreadError(f"none of the {len(readable):,} images can be read; the first is {self.paths[0]}.")
        for image in broken[:10]:
            watcher.note(f"left out: {image.path} ({image.reason})")
        if broken:
            watcher.note(f"{len(broken):,} of {len(readable):,} images cannot be read; the figures are of the others")
        return Splits(self, store, readable)


@dataclass(frozen=True)
class Splits:
    """The splits of a data set: one for each labeled share and seed, all with the same store."""

    data: BenchmarkData
    store: Store
    readable: np.ndarray  # whether each image could be read

    def __call__(self, share: float, seed: int) -> Dataset:
        """Return the paper's split; the unlabeled set's true labels go along for measuring only."""
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
    """Read the labels of a data set; ``canvases`` is the size of one that is drawn, such as the demo's."""
    parts = find_dataset(name).load(root, canvases)
    train, test = parts.train, parts.test
    y = np.concatenate([train.y, test.aligned(train.classes, f"the test part of {root or name}")])
    paths = [*train.paths, *test.paths]
    if parts.images is not None:
        names = [str(path) for path in paths]
        return BenchmarkData(
            name, y, train.classes, len(train), names, images=parts.images, facts={"canvases": canvases}
        )
    names = [(path.relative_to(root) if root and path.is_relative_to(root) else path).as_posix() for path in paths]
    return BenchmarkData(name, y, train.classes, len(train), names, paths)
