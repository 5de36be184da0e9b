"""Label table: image paths, class names and a label matrix of 1 (present), 0 (absent) and -1 (unknown)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tagspread.data.images.paths import Paths
from tagspread.data.tables.frame import import_pandas, labels_of_frame
from tagspread.data.tables.layouts import TAG_COLUMNS
from tagspread.data.tables.notes import NAMED, Note, Source
from tagspread.data.tables.options import AUTO, TableOptions
from tagspread.data.tables.spreadsheets import plain_image, plain_text
from tagspread.errors import RowErrors, TagspreadError, did_you_mean
from tagspread.files import atomic_text
from tagspread.wording import counted

if TYPE_CHECKING:
    import pandas as pd

CELLS = {1: "1", 0: "0", -1: ""}


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Image paths, class names and a label matrix of 1 (present), 0 (absent) and -1 (unknown).

    Attributes:
        paths: path of the image of each row.
        classes: name of the class of each column.
        y: images x classes, int8.
        unlisted: label of classes without a column: -1 (unknown), or 0 (absent) if each row lists all its tags.
        notes: what reading the table decided or found.
        delimiter: the delimiter that was found between tags, if it is not the usual one.
    """

    paths: Sequence[Path]
    classes: tuple[str, ...]
    y: np.ndarray
    unlisted: int = -1
    notes: tuple[Note, ...] = ()
    delimiter: str | None = None

    def __post_init__(self) -> None:
        """Check all fields; convert lists to tuples and the matrix to int8."""
        paths = self.paths if isinstance(self.paths, Paths) else tuple(map(Path, self.paths))
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "classes", tuple(self.classes))
        names: set[str] = set()
        for name in self.classes:
            if not isinstance(name, str) or not name or name != name.strip():
                raise TagspreadError(f"classes holds {name!r}; a class name must be text without blanks at its ends.")
            if name in names:
                raise TagspreadError(f"classes holds {name!r} twice; give each class one column.")
            names.add(name)
        if self.unlisted not in (0, -1):
            raise TagspreadError(f"unlisted is {self.unlisted!r}; it must be 0 (absent) or -1 (unknown).")
        object.__setattr__(self, "y", self._checked(np.asarray(self.y)))

    def _checked(self, y: np.ndarray) -> np.ndarray:
        if y.shape != (len(self.paths), len(self.classes)):
            raise TagspreadError(
                f"y has shape {y.shape} for {len(self.paths)} images and {len(self.classes)} classes; give a matrix "
                "with a row per image and a column per class."
            )
        if y.dtype.kind not in "biuf":
            raise TagspreadError(f"y holds {y.dtype}; give numbers: 1, 0 or -1 (unknown).")
        # check the extremes first: checking each value doubles the memory
        if y.size and y.dtype.kind != "b" and (y.dtype.kind == "f" or y.min() < -1 or y.max() > 1):
            wrong = np.argwhere((y != 1) & (y != 0) & (y != -1))
            if len(wrong):
                row, column = wrong[0]
                raise TagspreadError(
                    f"y holds {y[row, column]} for {self.paths[int(row)]} and {self.classes[column]!r}; "
                    "write 1, 0 or -1 (unknown)."
                )
        return y.astype(np.int8, copy=False)

    def __len__(self) -> int:
        return len(self.paths)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelTable):
            return NotImplemented
        same = (self.classes, self.unlisted) == (other.classes, other.unlisted) and np.array_equal(self.y, other.y)
        return same and tuple(self.paths) == tuple(other.paths)

    __hash__ = None  # type: ignore[assignment]  # the matrix could be changed

    @property
    def labeled(self) -> np.ndarray:
        """Mask of the labeled rows, which have at least one known label."""
        return np.asarray((self.y >= 0).any(axis=1))

    def aligned(self, classes: tuple[str, ...], source: str) -> np.ndarray:
        """Return the label matrix with the given classes as columns; raise if this table has none of them.

        Tags of this table that are not among the classes are left out; :meth:`foreign` names them.

        Args:
            classes: names of the columns, such as those of the training labels.
            source: name of this table, for messages.
        """
        column_of = {name: k for k, name in enumerate(classes)}
        shared = [k for k, name in enumerate(self.classes) if name in column_of]
        if self.classes and not shared:
            name = self.classes[0]
            raise TagspreadError(
                f"{source} has none of the tags of the training labels (but {_some(self.classes)}); give labels of the "
                f"same tags.{did_you_mean(name, classes)}"
            )
        y = np.full((len(self.y), len(classes)), self.unlisted, dtype=np.int8)
        y[:, [column_of[self.classes[k]] for k in shared]] = self.y[:, shared]
        if self.unlisted >= 0:
            y[~self.labeled] = -1  # a row that nobody has labeled does not say either which tags are absent
        return y

    @property
    def found_options(self) -> dict[str, str]:
        """Options that this table suggests for reading similar ones with ``read_table``."""
        return {} if self.delimiter is None else {"fallback_delimiter": self.delimiter}

    def foreign(self, classes: Iterable[str]) -> dict[str, int]:
        """Return the tags that are not among the given classes, with their numbers of images."""
        known = set(classes)
        return {name: int((self.y[:, k] == 1).sum()) for k, name in enumerate(self.classes) if name not in known}

    def select(self, rows: Sequence[int] | np.ndarray) -> LabelTable:
        """Return some rows in the given order: row numbers, or a boolean mask with one value per row."""
        wanted = np.asarray(rows) if len(rows) else np.zeros(0, np.int64)
        if wanted.dtype == bool and wanted.shape == (len(self),):
            wanted = np.flatnonzero(wanted)
        if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise TagspreadError(
                f"rows is {wanted.dtype} of shape {wanted.shape}; give row numbers or a mask of {len(self)} booleans."
            )
        if len(wanted) and not -len(self) <= wanted.min() <= wanted.max() < len(self):
            raise TagspreadError(
                f"rows holds numbers from {wanted.min()} to {wanted.max()}, but the table has {len(self)} rows."
            )
        wanted = wanted % max(len(self), 1)
        chosen = (
            self.paths.take(wanted) if isinstance(self.paths, Paths) else tuple(self.paths[k] for k in wanted.tolist())
        )
        return replace(self, paths=chosen, y=self.y[wanted])

    def merge(self, other: LabelTable) -> LabelTable:
        """Return the rows and classes of both tables; an image in both gets one row with the known labels of either.

        A class without a column in a table has the label ``unlisted`` of that table in its rows.

        Raises:
            TagspreadError: if a label is 1 in one table and 0 in the other, or a table has an image twice.
        """
        classes = self.classes + tuple(name for name in other.classes if name not in set(self.classes))
        row_of: dict[Path, int] = {}
        own_rows, other_rows = (
            np.array([row_of.setdefault(path, len(row_of)) for path in table.paths], dtype=np.int64)
            for table in (self, other)
        )
        for table, rows in ((self, own_rows), (other, other_rows)):
            unique, first = np.unique(rows, return_index=True)
            if len(unique) < len(rows):
                again = table.paths[int(np.setdiff1d(np.arange(len(rows)), first)[0])]
                raise TagspreadError(f"{again} is in the same table twice; merge its rows first.")
        y = np.full((len(row_of), len(classes)), -1, np.int8)
        y[own_rows] = self.aligned(classes, "the first table")
        before, added = y[other_rows], other.aligned(classes, "the second table")
        if len(clash := np.argwhere((before >= 0) & (added >= 0) & (before != added))):
            row, column = clash[0]
            raise TagspreadError(
                f"{other.paths[int(row)]}: {classes[column]!r} is {before[row, column]} in one table and "
                f"{added[row, column]} in the other ({len(clash):,} conflicting labels in total); correct one of them."
            )
        y[other_rows] = np.where(added >= 0, added, before)
        return LabelTable(tuple(row_of), classes, y, self.unlisted if self.unlisted == other.unlisted else -1)

    def write(self, file: str | Path, images: str | Path | None = None, *, overwrite: bool = False) -> None:
        """Write a wide CSV file for :func:`read_table`, with blanks for unknown.

        Args:
            file: a new file; its name should end in ``.csv``.
            images: the folder that paths are written relative to; as they are without.
            overwrite: replace a file that is there.
        """
        path = Path(file)
        if len(self.classes) == 1 and self.classes[0].lower() in TAG_COLUMNS:
            raise TagspreadError(f"the only class is {self.classes[0]!r}, which reads as a list of tags; rename it.")
        names = [written_name(path, images) for path in self.paths]
        if path.exists() and not overwrite:
            raise TagspreadError(f"{path} exists; choose another name, or replace it with @overwrite.", overwrite=True)
        with atomic_text(path) as opened:
            writer = csv.writer(opened)
            writer.writerow(["image", *map(plain_text, self.classes)])
            for name, row in zip(names, self.y, strict=True):
                writer.writerow([plain_image(name), *map(CELLS.__getitem__, row.tolist())])

    def to_frame(self, image_column: str = "image") -> pd.DataFrame:
        """Return a data frame: the paths as text, then a nullable integer column (``Int8``) per class."""
        pandas = import_pandas()
        if image_column in self.classes:
            raise TagspreadError(
                f"a class is called {image_column!r}, like the image column; choose another image_column."
            )
        values = {
            name: pandas.arrays.IntegerArray(np.maximum(column, 0), column < 0)
            for name, column in zip(self.classes, self.y.T, strict=True)
        }
        frame: pd.DataFrame = pandas.DataFrame({image_column: [str(path) for path in self.paths], **values})
        return frame

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        image_column: str | None = None,
        *,
        tags_column: str | None = None,
        images: str | Path | None = None,
        delimiter: str | None = AUTO,
        layout: str = "auto",
        ignore: str | Iterable[str] = (),
        allow_outside: bool = False,
        blank: str | None = None,
    ) -> LabelTable:
        """Convert a data frame, in the long or wide layout of ``read_table``; tags may be lists or text.

        Args:
            frame: images and their labels. Wide layout: missing values and -1 are unknown. Long layout: a missing list
                is an empty list, because pandas reads a blank CSV cell as missing.
            image_column: name of the image column.
            tags_column: name of the column with lists of tags.
            images: the folder that paths are relative to and must stay in; without it, paths are not changed.
            delimiter: text between tags; ``"auto"`` finds it.
            layout: ``"long"``, ``"wide"`` or ``"auto"``.
            ignore: columns without labels, or ``"all"`` for all of them.
            allow_outside: accept paths outside ``images``.
            blank: what rows without a tag mean, ``"unlabeled"`` or ``"negative"``; see ``read_table``.
        """
        outside = allow_outside or images is None
        options = TableOptions(delimiter, image_column, tags_column, layout, ignore, outside, blank)
        return cls(*labels_of_frame(frame, Source("frame", "row"), Path(images or ""), options, RowErrors()))


def foreign_in_words(table: LabelTable, classes: Sequence[str], source: str) -> str | None:
    """Say which tags of a table are left out of the metrics, because the training labels do not have them.

    >>> table = LabelTable([Path("a.jpg")], ("Sea", "sand"), np.array([[1, 0]]))
    >>> foreign_in_words(table, ("sea", "sand"), "test.csv")
    "test.csv has 1 tag that the training labels do not have; the metrics leave it out: 'Sea' (1 image). Did you mean
    'sea'?"
    """
    if not (foreign := table.foreign(classes)):
        return None
    named = [f"{name!r} ({counted(count, 'image')})" for name, count in list(foreign.items())[:NAMED]]
    more = f" and {len(foreign) - NAMED:,} more" if len(foreign) > NAMED else ""
    them = "it" if len(foreign) == 1 else "them"
    hint = did_you_mean(next(iter(foreign)), classes) if len(foreign) == 1 else ""
    return (
        f"{source} has {counted(len(foreign), 'tag')} that the training labels do not have; the metrics leave {them} "
        f"out: {', '.join(named)}{more}" + (f".{hint}" if hint else "")
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:NAMED])) + (" and others" if len(names) > NAMED else "")


def written_name(path: Path, images: str | Path | None) -> str:
    """Return the name of an image in a label table; raise if it could not be read back from a CSV file."""
    try:
        name = path.relative_to(images).as_posix() if images is not None else path.as_posix()
    except ValueError:
        raise TagspreadError(f"{path} is not below {images}; give the folder that holds all images.") from None
    if name != name.strip():
        raise TagspreadError(f"{name!r} begins or ends with a blank, which a CSV file does not keep; rename the file.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise TagspreadError(
            f"the name {name!r} is not valid UTF-8, which CSV files require; rename the file."
        ) from None
    return name
