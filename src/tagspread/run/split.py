"""``split.csv``: the part of each image (labeled, unlabeled, held out, test) and its labels, written before training.

==========  ============================================================================================================
image       the image: its path relative to the folder of images, or an absolute path, or ``number k`` of an array
part        ``labeled``, ``unlabeled``, ``held_out``, ``test``, ``apart`` (labeled, but trained on without its labels,
            for methods that evaluate pseudo-labels on it), or ``omitted`` (unreadable, or a test image without labels)
digest      the first 16 hex digits of the SHA-256 of the file, or of the pixels in an array; blank if unreadable
a class     1, 0, or blank for unknown; one column per class
==========  ============================================================================================================

The first three columns are identified by position, because a class may be called ``digest``. By the digests, a
run recognizes images after they were moved or renamed.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TextIO, TypeAlias

import numpy as np
import numpy.typing as npt

from tagspread.data.images.decode import TOO_MANY_FILES
from tagspread.data.images.store import Store
from tagspread.errors import TagspreadError
from tagspread.files import refuse_special
from tagspread.run.artifact import file_digest
from tagspread.run.folder import RunFolder
from tagspread.wording import counted

DIGITS = 16
NONE = b""  # in place of a digest, for a file that cannot be read
AT_ONCE = 64  # files or items per task of a thread
BATCH = 1024  # items per batch of the store
Digests: TypeAlias = npt.NDArray[np.bytes_]  # hex digits; empty for files that cannot be read
FILE = "split.csv"
COLUMNS = ("image", "part", "digest")
CELLS = {1: "1", 0: "0", -1: ""}
BYTES = {"1": 1, "0": 0, "": 255}  # as unsigned bytes: 255 is -1 as int8
BLANK = frozenset(("",))
HEX = frozenset("0123456789abcdef")
NAMED = 3  # images of each kind that a message names


def digest_files(files: Sequence[str | Path]) -> Digests:
    """Compute the first 16 hex digits of the SHA-256 of each file, in threads."""
    return _in_threads(lambda rows: [_file(files[row]) for row in rows], len(files))


def digest_items(store: Store) -> Digests:
    """Compute the first 16 hex digits of the SHA-256 of each item's pixels, for images without files."""
    digests = [np.empty(0, f"S{DIGITS}")]
    for at in range(0, len(store), BATCH):
        items = store.batch(np.arange(at, min(at + BATCH, len(store)))).cpu().numpy()
        digests.append(_in_threads(partial(_pixels, items), len(items)))
    return np.concatenate(digests)


def count_common(digests: Digests, others: Digests) -> int:
    """Count the images that are, by content, among other images.

    >>> count_common(np.array([b"a", b"a", b"b", b""]), np.array([b"a", b"c", b""]))
    2
    """
    return int(np.isin(digests[digests != NONE], others).sum())


def _in_threads(digest: Callable[[range], list[bytes]], count: int) -> Digests:
    pool = ThreadPoolExecutor(thread_name_prefix="tagspread-digest")
    try:
        parts = pool.map(digest, (range(at, min(at + AT_ONCE, count)) for at in range(0, count, AT_ONCE)))
        return np.array([value for part in parts for value in part], f"S{DIGITS}")
    finally:
        pool.shutdown(cancel_futures=True)  # so that Ctrl-C does not wait for all files


def _file(file: str | Path) -> bytes:
    path = Path(file)
    try:
        return file_digest(path)[:DIGITS].encode() if path.is_file() else NONE  # never read a pipe, which has no end
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        if isinstance(error, OSError) and error.errno in TOO_MANY_FILES:
            raise  # the file may be in order
        return NONE


def _pixels(items: npt.NDArray[np.generic], rows: range) -> list[bytes]:
    return [hashlib.sha256(items[row].tobytes()).hexdigest()[:DIGITS].encode() for row in rows]


class Part(IntEnum):
    """Part of the data that an image belongs to."""

    LABELED = 0
    UNLABELED = 1
    APART = 2
    HELD_OUT = 3
    TEST = 4
    OMITTED = 5

    @property
    def label(self) -> str:
        """Name of the part in the file."""
        return self.name.lower()


PARTS = {part.label: part for part in Part}


@dataclass(frozen=True, eq=False)
class Split:
    """All images of a run, in the order of the training data.

    Attributes:
        names: name of each image, see above.
        parts: :class:`Part` of each image, as int8.
        digests: digest of each image; empty if the file could not be read.
        classes: names of the tags.
        y: label matrix (images x classes) of 1, 0, -1 unknown, as int8; rows of unlabeled images are all -1.
    """

    names: Sequence[str]
    parts: np.ndarray
    digests: Digests
    classes: tuple[str, ...]
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, *parts: Part) -> np.ndarray:
        """Return the rows of the given parts, in order."""
        return np.flatnonzero(np.isin(self.parts, parts))

    def count(self, digests: Digests, *parts: Part) -> int:
        """Count the images that are, by content, in the given parts."""
        return count_common(digests, self.digests[self.rows(*parts)])


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
    """Return whether a run has a ``split.csv``; exported runs, and runs that were stopped at once, have none."""
    return (Path(run) / FILE).is_file()


def read_split(run: str | PathLike[str]) -> Split:
    """Read the ``split.csv`` of a run; raise if it is missing or damaged."""
    file = Path(run) / FILE
    refuse_special(file)
    try:
        with file.open(newline="", encoding="utf-8", errors="surrogateescape") as opened:
            return _read(file, opened)
    except FileNotFoundError:
        raise TagspreadError(
            f"{Path(run)} has no {FILE}, which records the part of each image (labeled, unlabeled, test); copy it "
            "there."
        ) from None
    except OSError as error:
        raise TagspreadError(f"{file} cannot be read ({error.strerror}); copy it again.") from None


def _read(file: Path, opened: TextIO) -> Split:
    lines = csv.reader(opened, strict=True)
    names, parts, digests, y = list[str](), bytearray(), list[bytes](), bytearray()
    try:
        header = next(lines, [])
        classes = tuple(header[len(COLUMNS) :])
        if tuple(header[: len(COLUMNS)]) != COLUMNS or not classes or len(set(classes)) < len(classes):
            raise TagspreadError(
                f"{file} line 1 is not {', '.join(COLUMNS)} and one column per class; the file was changed, so copy it "
                "again."
            )
        for row in lines:
            if damage := _damage(row, classes):
                raise TagspreadError(f"{file} line {lines.line_num} is damaged{damage}; copy the file again.")
            names.append(row[0])
            parts.append(PARTS[row[1]])
            digests.append(row[2].encode())
            y += bytes(map(BYTES.__getitem__, row[len(COLUMNS) :]))
    except csv.Error as error:
        raise TagspreadError(f"{file} line {lines.line_num} is damaged ({error}); copy the file again.") from None
    if not names:
        raise TagspreadError(f"{file} has no rows below its header line; copy it again.")
    matrix = np.frombuffer(y, np.int8).reshape(len(names), len(classes))
    return Split(names, np.frombuffer(parts, np.int8), np.array(digests, f"S{DIGITS}"), classes, matrix)


def _damage(row: Sequence[str], classes: Sequence[str]) -> str:
    """Describe what is wrong with a line; return an empty string if it is valid."""
    cells = len(COLUMNS) + len(classes)
    if len(row) != cells:
        return f": it has {len(row)} cells, but the header line has {cells}"
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
        expected = "blank for an unlabeled image" if allowed is BLANK else "1, 0 or blank"
        return f" ({name}): {tag!r} is {value!r}, not {expected}"
    return ""


def differences(then: Split, now: Split) -> list[str]:
    """Describe how two splits differ: one phrase per kind of change, each with its first images."""
    if then.classes != now.classes:
        return [f"the classes were {_listed(then.classes)}, now they are {_listed(now.classes)}"]
    old_names, new_names = list(then.names), list(now.names)
    before = after = np.arange(len(old_names))  # rows of the same images in both splits
    phrases, removed = list[str](), list[str]()
    if old_names != new_names:
        old_count, new_count = Counter(old_names), Counter(new_names)
        added, removed = list((new_count - old_count).elements()), list((old_count - new_count).elements())
        if added:
            phrases.append(_phrase(added, "new"))
        if not added and not removed:
            phrases.append("the images are in another order")
        old_row, new_row = (
            {name: row for row, name in reversed(list(enumerate(names)))} for names in (old_names, new_names)
        )
        shared = [name for name in old_row if name in new_row][::-1]
        before, after = (np.array([row_of[name] for name in shared], np.int64) for row_of in (old_row, new_row))
    lost = (now.digests[after] == NONE) & (then.digests[before] != NONE)
    changed = (now.digests[after] != then.digests[before]) & ~lost
    relabeled = (then.y[before] != now.y[after]).any(axis=1) & ~lost
    moved = (then.parts[before] != now.parts[after]) & ~lost & ~changed & ~relabeled
    for names, change in (
        (removed + [old_names[row] for row in before[lost]], "missing"),
        ([old_names[row] for row in before[changed]], "changed"),
        ([old_names[row] for row in before[relabeled]], "labeled differently"),
    ):
        if names:
            phrases.append(_phrase(names, change))
    if moved.any():
        pairs = zip(before[moved].tolist(), after[moved].tolist(), strict=True)
        moves = [f"{old_names[i]}: {Part(then.parts[i]).label}, now {Part(now.parts[k]).label}" for i, k in pairs]
        phrases.append(_phrase(moves, "in another part"))
    return phrases


def _phrase(names: Sequence[str], change: str) -> str:
    return f"{counted(len(names), 'image')} {'is' if len(names) == 1 else 'are'} {change} ({_listed(names)})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
