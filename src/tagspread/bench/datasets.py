"""The data sets of the paper, and the demo's: labels read once, images decoded once, split anew for every cell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tagspread.aliases import SettingValues
from tagspread.data.datasets.coco import read_coco
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.data.datasets.nus import read_nus
from tagspread.data.datasets.voc import read_voc
from tagspread.data.images.store import Store, TensorStore, open_store
from tagspread.data.split import paper_split
from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import TagspreadError, check_choice
from tagspread.progress import Watcher
from tagspread.train.dataset import Dataset

DEMO_SEED = 0  # of the canvases; a cell's seed draws its split and trains


@dataclass(frozen=True)
class Source:
    """A data set whose labels are all known: training rows first, then the rows to test on.

    Attributes:
        name: voc, coco, nus or demo.
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
        found = hashlib.sha256(json.dumps([self.names, self.classes, self.train]).encode())
        found.update(np.ascontiguousarray(self.y, np.int8).tobytes())
        return found.hexdigest()[:16]

    def open(self, size: int, device: torch.device, cache: Path | None, watcher: Watcher) -> Splits:
        """Decode the images, each once."""
        if self.images is not None:
            return Splits(self, TensorStore(self.images, device), np.ones(len(self.y), dtype=bool))
        store, broken = open_store(self.paths, size, device, cache=cache, progress=watcher.decoding)
        watcher.close()
        good = np.ones(len(self.y), dtype=bool)
        good[[b.index for b in broken]] = False
        if not good.any():
            raise TagspreadError(f"none of the {len(good):,} images can be read; the first is {self.paths[0]}.")
        for b in broken[:10]:
            watcher.note(f"left out: {b.path} ({b.reason})")
        if broken:
            watcher.note(f"{len(broken):,} of {len(good):,} images cannot be read; the figures are of the others")
        return Splits(self, store, good)


@dataclass(frozen=True)
class Splits:
    """The splits of a data set: one for each labeled share and seed, all with the same store."""

    source: Source
    store: Store
    good: np.ndarray

    def __call__(self, share: float, seed: int) -> Dataset:
        """Return the paper's split; the unlabeled set's true labels go along for measuring only."""
        source = self.source
        labeled, unlabeled = (rows[self.good[rows]] for rows in paper_split(source.train, share, seed))
        test = np.arange(source.train, len(source.y))
        hidden = source.y.copy()
        hidden[unlabeled] = -1
        return Dataset(
            self.store,
            hidden,
            source.classes,
            labeled,
            unlabeled,
            test[self.good[test]],
            names=source.names,
            files=source.paths,
            oracle=source.y[unlabeled],
        )


def load(name: str, root: Path | None, canvases: int = 1200) -> Source:
    """Read the labels of a data set; ``canvases`` is the size of the demo's."""
    check_choice("data set", name, (*READERS, "demo"))
    if name == "demo":
        if root is not None:
            raise TagspreadError("--root: the demo draws its own images; leave it away, or name voc, coco or nus.")
        return _demo(canvases)
    if root is None:
        raise TagspreadError(f"give the folder of {name} with --root DIR; what it must hold is in docs/data.md.")
    if not root.is_dir():
        raise TagspreadError(f"--root: there is no folder {root}.")
    if not any((root / sign).exists() for sign in SIGNS[name]):
        raise TagspreadError(
            f"--root: {root} is no folder of {name}, as it has no {' and no '.join(SIGNS[name])}; what it must hold is "
            "in docs/data.md."
        )
    train, test = READERS[name](root)
    paths = [*train.paths, *test.paths]
    y = np.concatenate([train.y, test.aligned(train.classes, f"the test part of {root}")])
    return Source(name, y, train.classes, len(train.y), [_short(path, root) for path in paths], paths)


def _demo(canvases: int) -> Source:
    tests = canvases // 2
    train, test = digit_canvases(canvases, tests, DEMO_SEED)
    names = [f"canvas {k}" for k in range(canvases + tests)]
    images = np.concatenate([train.images, test.images])
    y = np.concatenate([train.y, test.y])
    return Source("demo", y, CLASSES, canvases, names, images=images, facts={"canvases": canvases})


def _short(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _voc(root: Path) -> tuple[LabelTable, LabelTable]:
    return read_voc(root, "train"), read_voc(root, "val")


def _coco(root: Path) -> tuple[LabelTable, LabelTable]:
    train, val = (
        read_coco(root / "annotations" / f"instances_{part}.json", root / part) for part in ("train2014", "val2014")
    )
    return train, val


def _nus(root: Path) -> tuple[LabelTable, LabelTable]:
    return read_nus(root, "train"), read_nus(root, "test")


SIGNS = {  # by which a data set's folder is known
    "voc": ("ImageSets/Main",),
    "coco": ("annotations/instances_train2014.json",),
    "nus": ("ImageList/TrainImagelist.txt", "formatted_train_images.npy"),
}
READERS: dict[str, Callable[[Path], tuple[LabelTable, LabelTable]]] = {"voc": _voc, "coco": _coco, "nus": _nus}
