"""What is to be learnt: items in a store, what is known of them, and which of them serve for what."""

from __future__ import annotations

import hashlib
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
class Problem:
    """Items, labels and parts.

    Attributes:
        store: where the items are.
        y: one row per item of the store: 1, 0, -1 unknown. The pile's rows are never read.
        classes: the tags' names.
        labelled: rows that are trained on with their labels.
        pile: rows whose labels are not known.
        test: rows to evaluate on; never used to choose anything, unless the parity mode is asked for by name.
        held_out: labelled rows kept from training, to choose by.
        names: what to call each item, for messages and to recognise the data again.
        files: the items' files, where they are files: whether they have changed is seen from outside.
        apart: labelled rows that are trained on as part of the pile, without their labels, for methods that judge by
            them.
        oracle: the pile's true labels, for experiments that measure pseudo-labels; nothing is ever trained on them.
        identity: by what a checkpoint recognises the data, where the store does not tell.
    """

    store: Store
    y: np.ndarray
    classes: tuple[str, ...]
    labelled: np.ndarray
    pile: np.ndarray
    test: np.ndarray = field(default_factory=_no_rows)
    held_out: np.ndarray = field(default_factory=_no_rows)
    names: Sequence[str] = ()
    files: Sequence[Path] = ()
    apart: np.ndarray = field(default_factory=_no_rows)
    oracle: np.ndarray | None = None
    identity: str | None = None

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
        if self.oracle is not None and self.oracle.shape != (len(self.pile), len(self.classes)):
            raise TagspreadError(
                f"oracle has shape {self.oracle.shape} but the pile has {len(self.pile)} items and there are "
                f"{len(self.classes)} classes; give one row per item of the pile."
            )
        parts = {part: np.asarray(getattr(self, part), np.int64) for part in ("labelled", "pile", "test", "held_out")}
        for part, rows in parts.items():
            object.__setattr__(self, part, rows)
        everything = np.concatenate(list(parts.values()))
        if everything.size and (everything.min() < 0 or everything.max() >= len(self.store)):
            raise TagspreadError(f"the parts name row {everything.max()} but the store has {len(self.store)} items.")
        rows, times = np.unique(everything, return_counts=True)
        if (times > 1).any():
            raise TagspreadError(
                f"item {self.name(int(rows[times > 1][0]))} is in more than one part; labelled, pile, test and "
                "held-out items must be different ones, or the figures are not worth reading."
            )

    def name(self, row: int) -> str:
        """Return what to call an item."""
        return str(self.names[row]) if len(self.names) else f"number {row}"

    def check_trainable(self, needs_pile: bool) -> list[str]:
        """Raise if nothing can be learnt; return what a person should know before it starts."""
        known = self.y[self.labelled] >= 0
        if not known.any():
            raise TagspreadError(
                "no picture is labelled; a few labelled ones per class are needed to learn what the tags mean."
            )
        if needs_pile and not len(self.pile):
            raise TagspreadError(
                "the pile of unlabelled pictures is empty; add some, or train on the labelled part with method 'asl'."
            )
        positives = (self.y[self.labelled] == 1).sum(0)
        if not positives.any():
            raise TagspreadError("no labelled picture carries any tag; there is nothing to learn to recognise.")
        notes = []
        if missing := [name for name, count in zip(self.classes, positives, strict=True) if not count]:
            verb = "has" if len(missing) == 1 else "have"
            notes.append(
                f"{_listed(missing)} {verb} no labelled picture, so cannot be learnt and will get no pseudo-positives; "
                "tag at least a few."
            )
        if (n := len(self.labelled)) < (q := len(self.classes)):
            notes.append(f"{counted(n, 'labelled picture')} for {q:,} classes: expect little of the rare ones.")
        if len(self.classes) == 1:
            notes.append("there is one class only: this works, as a yes/no question.")
        return notes

    def hold_out(self, share: float, seed: int) -> Problem:
        """Return the problem with a share of the labelled rows kept from training."""
        count = round(share * len(self.labelled))
        if count < 1 or count >= len(self.labelled):
            raise TagspreadError(
                f"held_out is {share} of {counted(len(self.labelled), 'labelled picture')}: {count:,} to choose by, "
                f"{len(self.labelled) - count:,} to train on. Label more, or take selection 'last'."
            )
        kept, held, _ = hold_out(self.y[self.labelled], share, seed, classes=self.classes)
        return replace(self, labelled=self.labelled[kept], held_out=self.labelled[held])

    def set_apart(self, share: float, seed: int) -> Problem:
        """Return the problem with a share of the labelled rows moved to the pile; their labels are for judging only."""
        if not 1 <= round(share * len(self.labelled)) < len(self.labelled):
            raise TagspreadError(
                f"the method sets {share:.0%} of {counted(len(self.labelled), 'labelled picture')} apart to judge by; "
                "that leaves none there or none to train on. Label more, or take another method."
            )
        kept, moved, _ = hold_out(self.y[self.labelled], share, seed, classes=self.classes)
        rows = self.labelled[moved]
        oracle = None if self.oracle is None else np.concatenate([self.oracle, self.y[rows]])
        pile = np.concatenate([self.pile, rows])
        return replace(self, labelled=self.labelled[kept], pile=pile, apart=rows, oracle=oracle)

    def fingerprint(self) -> str:
        """Return a digest by which a checkpoint recognises its data."""
        if self.identity is not None:
            return self.identity
        digest = hashlib.sha256()
        for part in (self.labelled, self.pile, self.test, self.held_out, self.y[self.labelled], self.y[self.test]):
            digest.update(np.ascontiguousarray(part).tobytes())
        words = "\0".join((*self.classes, "", *map(str, self.names), str(self.store.shape)))
        digest.update(words.encode("utf-8", "surrogateescape"))  # names of files need not be UTF-8
        self.look_at(digest)
        return digest.hexdigest()[:16]

    def look_at(self, digest: hashlib._Hash, *, times: bool = False) -> None:
        """Add the pictures themselves to a digest: the sizes of all files and a few pictures, or every single one.

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


def _mark(file: Path, times: bool) -> tuple[int, int] | None:
    """Return size and time of a file; None if it is not there."""
    try:
        status = file.stat()
    except (OSError, ValueError):  # ValueError: a path with a null character
        return None
    return status.st_size, status.st_mtime_ns if times else 0


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
