"""Dataset of a training run: images, labels, and the split into labeled, unlabeled, held-out and test rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tagspread.core.arrays import as_labels
from tagspread.data.images.store import Store
from tagspread.data.split import hold_out
from tagspread.errors import TagspreadError
from tagspread.wording import counted


def _no_rows() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Dataset:
    """Images with labels, split into parts. A part is an array of row numbers; no row is in two parts.

    The exception is ``apart``, which is a subset of ``unlabeled``.

    Attributes:
        store: the images, or the features of images; row numbers index it.
        y: label matrix (rows x classes): 1, 0, -1 unknown. Training never reads the rows of the unlabeled set.
        classes: names of the tags.
        labeled: rows to train on with their labels.
        unlabeled: rows to train on with pseudo-labels; their labels are unknown or not used.
        test: rows to evaluate on. They choose nothing, except with ``selection="test_best"``.
        held_out: labeled rows that are not trained on; they choose epochs and thresholds.
        names: name of each row, for messages and for :meth:`fingerprint`.
        files: image file of each row, if the images are files.
        apart: labeled rows that are moved to the unlabeled set, so that a method can evaluate pseudo-labels on rows
            whose labels are not used in training.
        oracle: true labels of the unlabeled set, for experiments that evaluate pseudo-labels; never trained on.
        identity: fingerprint of the data, where the store cannot provide it.
        root: the folder of images, if there is one; names are recorded relative to it, so that it can be moved.
    """

    store: Store
    y: np.ndarray
    classes: tuple[str, ...]
    labeled: np.ndarray
    unlabeled: np.ndarray
    test: np.ndarray = field(default_factory=_no_rows)
    held_out: np.ndarray = field(default_factory=_no_rows)
    names: Sequence[str] = ()
    files: Sequence[Path] = ()
    apart: np.ndarray = field(default_factory=_no_rows)
    oracle: np.ndarray | None = None
    identity: str | None = None
    root: Path | None = None

    def __post_init__(self) -> None:
        y = as_labels("labels", self.y).numpy()
        object.__setattr__(self, "y", y)
        object.__setattr__(self, "classes", tuple(self.classes))
        if y.shape != (len(self.store), len(self.classes)):
            raise TagspreadError(
                f"labels have shape {y.shape} but there are {len(self.store)} items and {len(self.classes)} classes; "
                "give one row per item and one column per class."
            )
        object.__setattr__(self, "apart", np.asarray(self.apart, np.int64))
        if self.oracle is not None and self.oracle.shape != (len(self.unlabeled), len(self.classes)):
            raise TagspreadError(
                f"oracle has shape {self.oracle.shape} but the unlabeled set has {len(self.unlabeled)} items and "
                f"{len(self.classes)} classes; give one row per item of the unlabeled set and one column per class."
            )
        parts = {
            part: np.asarray(getattr(self, part), np.int64) for part in ("labeled", "unlabeled", "test", "held_out")
        }
        for part, rows in parts.items():
            object.__setattr__(self, part, rows)
        all_rows = np.concatenate(list(parts.values()))
        if all_rows.size and (all_rows.min() < 0 or all_rows.max() >= len(self.store)):
            raise TagspreadError(
                f"a part has row {all_rows.max()} but the store has {len(self.store)} items; give rows from 0 to "
                f"{len(self.store) - 1}."
            )
        rows, counts = np.unique(all_rows, return_counts=True)
        if (counts > 1).any():
            raise TagspreadError(
                f"item {self.name(int(rows[counts > 1][0]))} is in more than one part; give each item to one of "
                "labeled, unlabeled, test and held_out, or the metrics mean nothing."
            )

    def name(self, row: int) -> str:
        """Return the name of a row for messages."""
        return str(self.names[row]) if len(self.names) else f"number {row}"

    def recorded_names(self) -> list[str]:
        """Return the name of each row in the run's ``split.csv``; files below the root are relative to it."""
        if not len(self.files):
            return [self.name(row) for row in range(len(self.store))]
        root = None if self.root is None else self.root.absolute()
        return [_recorded_name(str(file.absolute()), root) for file in self.files]

    def check_trainable(self, needs_unlabeled: bool) -> list[str]:
        """Raise if the dataset cannot be trained on; return notes for the user.

        Args:
            needs_unlabeled: whether the method needs an unlabeled set.
        """
        if not (self.y[self.labeled] >= 0).any():
            raise TagspreadError("no image is labeled; label at least a few images per class.")
        if needs_unlabeled and not len(self.unlabeled):
            raise TagspreadError(
                "the unlabeled set is empty; add unlabeled images, or train on the labeled ones with method 'asl'."
            )
        positives = (self.y[self.labeled] == 1).sum(0)
        if not positives.any():
            raise TagspreadError(
                "no labeled image carries any tag, so there is nothing to learn; label images that carry tags."
            )
        known = (self.y[self.labeled] >= 0).sum(0)
        always = [name for k, name in enumerate(self.classes) if known[k] and positives[k] == known[k]]
        if (positives == known).all():
            raise TagspreadError(
                "no label says that a tag is absent, so there is nothing to learn; label images that lack some of the "
                "tags. If blank cells of the table mean absent, write 0 there or give @blank.",
                blank=...,
            )
        notes = []
        if always:
            notes.append(
                f"every image that is labeled for {_listed(always)} has that tag, so it cannot be learned; label "
                "images that lack it."
            )
        if missing := [name for name, count in zip(self.classes, positives, strict=True) if not count]:
            notes.append(
                f"no labeled image carries {_listed(missing)}; without one, a tag cannot be learned and gets no "
                "positive pseudo-labels. Label a few images that carry it."
            )
        if (n := len(self.labeled)) < (q := len(self.classes)):
            notes.append(f"{counted(n, 'labeled image')} for {q:,} classes: rare classes will be learned poorly.")
        if len(self.classes) == 1:
            notes.append("there is only one class: the tagger answers a yes/no question.")
        return notes

    def hold_out(self, share: float, seed: int) -> Dataset:
        """Return the dataset with a share of the labeled rows moved to ``held_out``."""
        count = round(share * len(self.labeled))
        if count < 1 or count >= len(self.labeled):
            raise TagspreadError(
                f"held_out is {share} of {counted(len(self.labeled), 'labeled image')}, which holds out {count:,} and "
                f"leaves {len(self.labeled) - count:,} to train on. Label more images, or use selection 'last'."
            )
        kept, held, _ = hold_out(self.y[self.labeled], share, seed, classes=self.classes)
        return replace(self, labeled=self.labeled[kept], held_out=self.labeled[held])

    def set_apart(self, share: float, seed: int) -> Dataset:
        """Return the dataset with a share of the labeled rows moved to the unlabeled set, as ``apart``."""
        if not 1 <= round(share * len(self.labeled)) < len(self.labeled):
            raise TagspreadError(
                f"the method sets {share:.0%} of the labeled images apart to evaluate pseudo-labels on; of "
                f"{counted(len(self.labeled), 'labeled image')} that leaves none there or none to train on. Label more "
                "images, or use another method."
            )
        kept, moved, _ = hold_out(self.y[self.labeled], share, seed, classes=self.classes)
        rows = self.labeled[moved]
        oracle = None if self.oracle is None else np.concatenate([self.oracle, self.y[rows]])
        unlabeled = np.concatenate([self.unlabeled, rows])
        return replace(self, labeled=self.labeled[kept], unlabeled=unlabeled, apart=rows, oracle=oracle)

    def fingerprint(self) -> str:
        """Return a digest of the data, which a checkpoint stores, so that a run resumes on the same data only."""
        if self.identity is not None:
            return self.identity
        digest = hashlib.sha256()
        for part in (self.labeled, self.unlabeled, self.test, self.held_out, self.y[self.labeled], self.y[self.test]):
            digest.update(np.ascontiguousarray(part).tobytes())
        names = map(str, self.names) if self.root is None else self.recorded_names()  # a folder may be moved
        text = "\0".join((*self.classes, "", *names, str(self.store.shape)))
        digest.update(text.encode("utf-8", "surrogateescape"))  # file names need not be UTF-8
        self.hash_images(digest)
        return digest.hexdigest()[:16]

    def hash_images(self, digest: hashlib._Hash, *, times: bool = False) -> None:
        """Add the images to a digest: for files, all sizes and the pixels of 64 images; otherwise all pixels.

        Args:
            digest: the digest to update.
            times: also add the modification time of each file, which copying the file may change.
        """
        rows = np.arange(len(self.store))
        if self.files:
            digest.update(repr([_size_and_time(file, times) for file in self.files]).encode())
            rows = np.unique(np.linspace(0, len(rows) - 1, 64).astype(np.int64))
        for at in range(0, len(rows), 1024):
            digest.update(self.store.batch(rows[at : at + 1024]).cpu().numpy().tobytes())


def _recorded_name(file: str, root: Path | None) -> str:
    prefix = f"{root}{os.sep}"
    if root is None or not file.startswith(prefix) or ".." in Path(file).parts:
        return file
    return file.removeprefix(prefix).replace(os.sep, "/")


def _size_and_time(file: Path, times: bool) -> tuple[int, int] | None:
    """Return size and modification time (0 unless ``times``) of a file; None if it does not exist."""
    try:
        status = file.stat()
    except (OSError, ValueError):  # ValueError: a path with a null character
        return None
    return status.st_size, status.st_mtime_ns if times else 0


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
