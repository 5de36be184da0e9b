"""What is to be learned: items in a store, what is known of them, and which of them serve for what."""

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
    """Items, labels and parts.

    Attributes:
        store: where the items are.
        y: one row per item of the store: 1, 0, -1 unknown. The unlabeled set's rows are never read.
        classes: the tags' names.
        labeled: rows that are trained on with their labels.
        unlabeled: rows whose labels are not known.
        test: rows to evaluate on; never used to choose anything, unless the parity mode is asked for by name.
        held_out: labeled rows kept from training, to choose by.
        names: what to call each item, for messages and to recognize the data again.
        files: the items' files, where they are files: whether they have changed is seen from outside.
        apart: labeled rows that are trained on as part of the unlabeled set, without their labels, for methods that
            judge by them.
        oracle: the unlabeled set's true labels, for experiments that measure pseudo-labels; nothing is ever trained on
            them.
        identity: by what a checkpoint recognizes the data, where the store does not tell.
        root: the folder of images, where there is one; files below it are recognized wherever the folder lies.
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
                f"oracle has shape {self.oracle.shape} but the unlabeled set has {len(self.unlabeled)} items and there "
                f"are "
                f"{len(self.classes)} classes; give one row per item of the unlabeled set."
            )
        parts = {
            part: np.asarray(getattr(self, part), np.int64) for part in ("labeled", "unlabeled", "test", "held_out")
        }
        for part, rows in parts.items():
            object.__setattr__(self, part, rows)
        everything = np.concatenate(list(parts.values()))
        if everything.size and (everything.min() < 0 or everything.max() >= len(self.store)):
            raise TagspreadError(f"the parts name row {everything.max()} but the store has {len(self.store)} items.")
        rows, times = np.unique(everything, return_counts=True)
        if (times > 1).any():
            raise TagspreadError(
                f"item {self.name(int(rows[times > 1][0]))} is in more than one part; labeled, unlabeled set, test and "
                "held-out items must be different ones, or the figures are not worth reading."
            )

    def name(self, row: int) -> str:
        """Return what to call an item."""
        return str(self.names[row]) if len(self.names) else f"number {row}"

    def recorded_names(self) -> list[str]:
        """Return what each item is called in the run's ``split.csv``: files below the root by their path from there."""
        if not len(self.files):
            return [self.name(row) for row in range(len(self.store))]
        root = None if self.root is None else self.root.absolute()
        return [_recorded_name(str(file.absolute()), root) for file in self.files]

    def check_trainable(self, needs_unlabeled: bool) -> list[str]:
        """Raise if nothing can be learned; return what a person should know before it starts."""
        known = self.y[self.labeled] >= 0
        if not known.any():
            raise TagspreadError(
                "no image is labeled; a few labeled ones per class are needed to learn what the tags mean."
            )
        if needs_unlabeled and not len(self.unlabeled):
            raise TagspreadError(
                "the set of unlabeled images is empty; add some, or train on the labeled part with method 'asl'."
            )
        positives = (self.y[self.labeled] == 1).sum(0)
        if not positives.any():
            raise TagspreadError("no labeled image carries any tag; there is nothing to learn to recognize.")
        notes = []
        if missing := [name for name, count in zip(self.classes, positives, strict=True) if not count]:
            verb = "has" if len(missing) == 1 else "have"
            notes.append(
                f"{_listed(missing)} {verb} no labeled image, so cannot be learned and will get no pseudo-positives; "
                "tag at least a few."
            )
        if (n := len(self.labeled)) < (q := len(self.classes)):
            notes.append(f"{counted(n, 'labeled image')} for {q:,} classes: expect little of the rare ones.")
        if len(self.classes) == 1:
            notes.append("there is one class only: this works, as a yes/no question.")
        return notes

    def hold_out(self, share: float, seed: int) -> Dataset:
        """Return the dataset with a share of the labeled rows kept from training."""
        count = round(share * len(self.labeled))
        if count < 1 or count >= len(self.labeled):
            raise TagspreadError(
                f"held_out is {share} of {counted(len(self.labeled), 'labeled image')}: {count:,} to choose by, "
                f"{len(self.labeled) - count:,} to train on. Label more, or take selection 'last'."
            )
        kept, held, _ = hold_out(self.y[self.labeled], share, seed, classes=self.classes)
        return replace(self, labeled=self.labeled[kept], held_out=self.labeled[held])

    def set_apart(self, share: float, seed: int) -> Dataset:
        """Return the dataset with a share of the labeled rows moved to the unlabeled set, to judge pseudo-labels."""
        if not 1 <= round(share * len(self.labeled)) < len(self.labeled):
            raise TagspreadError(
                f"the method sets {share:.0%} of {counted(len(self.labeled), 'labeled image')} apart to judge by; "
                "that leaves none there or none to train on. Label more, or take another method."
            )
        kept, moved, _ = hold_out(self.y[self.labeled], share, seed, classes=self.classes)
        rows = self.labeled[moved]
        oracle = None if self.oracle is None else np.concatenate([self.oracle, self.y[rows]])
        unlabeled = np.concatenate([self.unlabeled, rows])
        return replace(self, labeled=self.labeled[kept], unlabeled=unlabeled, apart=rows, oracle=oracle)

    def fingerprint(self) -> str:
        """Return a digest by which a checkpoint recognizes its data."""
        if self.identity is not None:
            return self.identity
        digest = hashlib.sha256()
        for part in (self.labeled, self.unlabeled, self.test, self.held_out, self.y[self.labeled], self.y[self.test]):
            digest.update(np.ascontiguousarray(part).tobytes())
        names = map(str, self.names) if self.root is None else self.recorded_names()  # a folder may be moved
        words = "\0".join((*self.classes, "", *names, str(self.store.shape)))
        digest.update(words.encode("utf-8", "surrogateescape"))  # names of files need not be UTF-8
        self.hash_images(digest)
        return digest.hexdigest()[:16]

    def hash_images(self, digest: hashlib._Hash, *, times: bool = False) -> None:
        """Add the images themselves to a digest: the sizes of all files and a few images, or every single one.

        Args:
            digest: what is added to.
            times: also add when each file was changed, which copying does as well.
        """
        rows = np.arange(len(self.store))
        if self.files:
            digest.update(repr([_mark(file, times) for file in self.files]).encode())
            rows = np.unique(np.linspace(0, len(rows) - 1, 64).astype(np.int64))
        for at in range(0, len(rows), 1024):
            digest.update(self.store.batch(rows[at : at + 1024]).cpu().numpy().tobytes())


def _recorded_name(file: str, root: Path | None) -> str:
    above = f"{root}{os.sep}"
    if root is None or not file.startswith(above) or ".." in Path(file).parts:
        return file
    return file.removeprefix(above).replace(os.sep, "/")


def _mark(file: Path, times: bool) -> tuple[int, int] | None:
    """Return size and time of a file; None if it is not there."""
    try:
        status = file.stat()
    except (OSError, ValueError):  # ValueError: a path with a null character
        return None
    return status.st_size, status.st_mtime_ns if times else 0


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
