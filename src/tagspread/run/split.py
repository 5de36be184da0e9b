"""``split.csv``: which image was in which part of the data, written once before the first epoch.

==========  ============================================================================================================
image       the image: its path from the folder of images on, or an absolute path, or ``number k`` of an array
part        ``labeled``, ``unlabeled``, ``apart`` (labeled, but trained on without its labels, for methods that judge by
            them), ``held_out``, ``test``, or ``omitted`` (it could not be read, or it has nothing to test on)
digest      the first 16 hex digits of the SHA-256 of the file's bytes, or of an array's pixels; blank if unreadable
a class     1, 0, or blank for unknown; one column per class
==========  ============================================================================================================

The first three columns are known by their place: a class may be called ``digest``.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from os import PathLike
from pathlib import Path
from typing import TextIO

import numpy as np

from tagspread.errors import TagspreadError
from tagspread.run.fingerprints import DIGITS, NONE, Digests, in_common
from tagspread.run.folder import RunFolder
from tagspread.wording import counted

FILE = "split.csv"
COLUMNS = ("image", "part", "digest")
CELLS = {1: "1", 0: "0", -1: ""}
BYTES = {"1": 1, "0": 0, "": 255}  # of an int8
BLANK = frozenset(("",))
HEX = frozenset("0123456789abcdef")
NAMED = 3  # images of each kind that a message names


class Part(IntEnum):
    """What an image was used for."""

    LABELED = 0
    UNLABELED = 1
    APART = 2
    HELD_OUT = 3
    TEST = 4
    OMITTED = 5

    @property
    def label(self) -> str:
        """What the file calls it."""
        return self.name.lower()


PARTS = {part.label: part for part in Part}


@dataclass(frozen=True, eq=False)
class Split:
    """All images of a run, in the order of the training data.

    Attributes:
        names: what each image is called, see above.
        parts: its :class:`Part`, as int8.
        digests: its digest; empty if the file could not be read.
        classes: the tags.
        y: images x classes, 1, 0, or -1 for unknown, as int8; unlabeled images have -1 only.
    """

    names: Sequence[str]
    parts: np.ndarray
    digests: Digests
    classes: tuple[str, ...]
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, *parts: Part) -> np.ndarray:
        """Return the rows of some parts, in order."""
        return np.flatnonzero(np.isin(self.parts, parts))

    def count(self, digests: Digests, *parts: Part) -> int:
        """Return how many of some images are, by content, in some parts."""
        return in_common(digests, self.digests[self.rows(*parts)])


def write_split(folder: RunFolder, split: Split) -> None:
    """Write ``split.csv`` into a run folder."""
    folder.write_csv(FILE, (*COLUMNS, *split.classes), _lines(split))


def _lines(split: Split) -> Iterator[Iterable[str]]:
    blank = [""] * len(split.classes)
    labels = [part.label for part in Part]
    columns = zip(split.names, split.parts.tolist(), split.digests.tolist(), split.y, strict=True)
    for name, part, digest, y in columns:
        cells = blank if part == Part.UNLABELED else [CELLS[value] for value in y.tolist()]
        yield name, labels[part], digest.decode(), *cells


def has_split(run: str | PathLike[str]) -> bool:
    """Return whether a run has a ``split.csv``; one that was stopped at once, or was exported, has none."""
    return (Path(run) / FILE).is_file()


def read_split(run: str | PathLike[str]) -> Split:
    """Read the ``split.csv`` of a run; raise if there is none, or if anything in it is not as it was written."""
    file = Path(run) / FILE
    try:
        with file.open(newline="", encoding="utf-8", errors="surrogateescape") as opened:
            return _read(file, opened)
    except FileNotFoundError:
        raise TagspreadError(
            f"{Path(run)} has no {FILE}, which says which image was in which part of the data; copy it there."
        ) from None
    except OSError as error:
        raise TagspreadError(f"{file} cannot be read ({error.strerror}); copy it anew.") from None


def _read(file: Path, opened: TextIO) -> Split:
    lines = csv.reader(opened, strict=True)
    names, parts, digests, y = list[str](), bytearray(), list[bytes](), bytearray()
    try:
        header = next(lines, [])
        classes = tuple(header[len(COLUMNS) :])
        if tuple(header[: len(COLUMNS)]) != COLUMNS or not classes or len(set(classes)) < len(classes):
            raise TagspreadError(
                f"{file} line 1 is not {', '.join(COLUMNS)} and one column per class; the file was changed: copy it "
                "anew."
            )
        for row in lines:
            if why := _damage(row, classes):
                raise TagspreadError(f"{file} line {lines.line_num} is damaged{why}; copy the file anew.")
            names.append(row[0])
            parts.append(PARTS[row[1]])
            digests.append(row[2].encode())
            y += bytes(map(BYTES.__getitem__, row[len(COLUMNS) :]))
    except csv.Error as error:
        raise TagspreadError(f"{file} line {lines.line_num} is damaged ({error}); copy the file anew.") from None
    if not names:
        raise TagspreadError(f"{file} has no rows below its header line; copy it anew.")
    matrix = np.frombuffer(y, np.int8).reshape(len(names), len(classes))
    return Split(names, np.frombuffer(parts, np.int8), np.array(digests, f"S{DIGITS}"), classes, matrix)


def _damage(row: Sequence[str], classes: Sequence[str]) -> str:
    """Return what is wrong with a line; nothing if it is as it was written."""
    cells = len(COLUMNS) + len(classes)
    if len(row) != cells:
        return f": it has {len(row)} cells, the header {cells}"
    name, part, digest, *values = row
    if not name:
        return ": it names no image"
    if part not in PARTS:
        return f" ({name}): its part is {part!r}, not one of {', '.join(PARTS)}"
    if digest and not (len(digest) == DIGITS and HEX.issuperset(digest)):
        return f" ({name}): its digest is {digest!r}, not {DIGITS} hex digits"
    allowed = BLANK if part == Part.UNLABELED.label else BYTES.keys()
    if not allowed >= set(values):
        tag, value = next((tag, value) for tag, value in zip(classes, values, strict=True) if value not in allowed)
        words = "blank for an unlabeled image" if allowed is BLANK else "1, 0 or blank"
        return f" ({name}): {tag!r} is {value!r}, not {words}"
    return ""


def differences(then: Split, now: Split) -> list[str]:
    """Return what is not the same in two splits, a phrase for each kind, with the first few images of each."""
    if then.classes != now.classes:
        return [f"the classes were {_listed(then.classes)}, now they are {_listed(now.classes)}"]
    names, others = list(then.names), list(now.names)
    before = after = np.arange(len(names))
    found, gone = list[str](), list[str]()
    if names != others:
        new, gone = (list((Counter(a) - Counter(b)).elements()) for a, b in ((others, names), (names, others)))
        if new:
            found.append(_phrase(new, "new"))
        if not new and not gone:
            found.append("the images are in another order")
        place, first = ({name: row for row, name in reversed(list(enumerate(all_)))} for all_ in (names, others))
        shared = [name for name in place if name in first][::-1]
        before, after = (np.array([where[name] for name in shared], np.int64) for where in (place, first))
    lost = (now.digests[after] == NONE) & (then.digests[before] != NONE)
    changed = (now.digests[after] != then.digests[before]) & ~lost
    labels = (then.y[before] != now.y[after]).any(axis=1) & ~lost
    moved = (then.parts[before] != now.parts[after]) & ~lost & ~changed & ~labels
    missing = gone + [names[row] for row in before[lost]]
    for which, what in ((missing, "missing"), (before[changed], "changed"), (before[labels], "labeled differently")):
        if len(which):
            found.append(_phrase([one if isinstance(one, str) else names[one] for one in which], what))
    if moved.any():
        pairs = zip(before[moved].tolist(), after[moved].tolist(), strict=True)
        words = [f"{names[i]}: {Part(then.parts[i]).label}, now {Part(now.parts[k]).label}" for i, k in pairs]
        found.append(_phrase(words, "in another part"))
    return found


def _phrase(names: Sequence[str], what: str) -> str:
    return f"{counted(len(names), 'image')} {'is' if len(names) == 1 else 'are'} {what} ({_listed(names)})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
