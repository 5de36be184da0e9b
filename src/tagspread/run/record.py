"""Record of a run's own images: their files, their parts (labeled, unlabeled, test), and matches by digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tagspread.aliases import JsonObject
from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import Blank, TagspreadError
from tagspread.run.config import RunConfig
from tagspread.run.split import FILE, NONE, Digests, Part, Split, count_common, has_split, read_split

CHOSEN_ON = "chosen_on_images"  # in labels.json: the images that thresholds and calibration were chosen on
PARTS_CHOSEN_ON = {part.label: part for part in (Part.HELD_OUT, Part.APART)}
TEST_TABLE, PUT_ASIDE = "test images", "labeled images that were set aside for testing"


@dataclass(frozen=True)
class RunRecord:
    """What a run recorded about its data; the data themselves are not read.

    Attributes:
        path: the run folder.
        config: settings of the run and sources of its data.
        split: the part of each image.
    """

    path: Path
    config: RunConfig
    split: Split

    @classmethod
    def read(cls, run: str | PathLike[str]) -> RunRecord:
        """Read the record of a run; raise if it is missing."""
        return cls(Path(run), RunConfig.read(run), read_split(run))

    @classmethod
    def find(cls, run: str | PathLike[str]) -> RunRecord | None:
        """Read the record of a run; return None for a folder without one, such as an exported tagger."""
        config = RunConfig.find(run)
        return None if config is None or not has_split(run) else cls(Path(run), config, read_split(run))

    @property
    def has_files(self) -> bool:
        """Whether the images are files. Arrays of images are not stored."""
        return self.config.data.images is not None or all(map(_is_absolute, self.split.names))

    def root(self, images: str | Path | None = None) -> Path | None:
        """Return the folder of images, which relative paths start from; None for a run without one.

        Args:
            images: the folder of images, if it was moved.
        """
        recorded = self.config.data.images
        return None if recorded is None else Path(recorded if images is None else images)

    def files(self, rows: np.ndarray, images: str | Path | None = None) -> list[Path]:
        """Return the image files of some rows; raise if the run was trained on arrays.

        Args:
            rows: rows of the split.
            images: the folder of images, if it was moved.
        """
        if not self.has_files:
            raise TagspreadError(
                f"{self.path} was started from Python with arrays of images, which are not stored; use a run that was "
                "trained on image files."
            )
        names = [self.split.names[row] for row in rows]
        root = self.root(images)
        self._check_inside(names)
        if root is None or all(map(_is_absolute, names)):
            return [Path(name) for name in names]
        if not root.is_dir():
            raise TagspreadError(
                f"the folder of images, {root}, no longer exists; if it was moved, give the new one with @images.",
                images=Blank("DIR"),
            )
        return [root / name for name in names]  # absolute names stay unchanged

    def _check_inside(self, names: Sequence[str]) -> None:
        """Raise for a name that leaves the folder of images, unless the run was trained on such images."""
        root = self.root()
        if root is None or self.config.data.table_options.get("allow_outside") is True:
            return
        for name in names:
            path = Path(name)
            below = path.relative_to(root) if path.is_relative_to(root) else path
            if below.is_absolute() or ".." in below.parts:
                raise TagspreadError(
                    f"{self.path / FILE} names {name!r}, which is outside the folder of images, {root}; training "
                    "writes such names only with --allow-outside, so the file was changed: copy it again."
                )

    def table(self, rows: np.ndarray, images: str | Path | None = None) -> LabelTable:
        """Return the files of some rows with their labels; see :meth:`files`."""
        return LabelTable(self.files(rows, images), self.split.classes, self.split.y[rows])

    def test_table(self, images: str | Path | None = None) -> tuple[LabelTable, str]:
        """Return the test images of the run with their labels, and a description of them for messages."""
        rows = self.split.rows(Part.TEST)
        if not len(rows):
            raise TagspreadError(
                f"{self.path} has no test images; give a label table of images that it was not trained on with "
                "@labels.",
                labels=...,
            )
        if not self.has_files:
            raise TagspreadError(
                f"{self.path} was started from Python with arrays of images, which are not stored (its metrics.json "
                "has the metrics on its test images); give a label table of other images with @labels.",
                labels=...,
            )
        return self.table(rows, images), self.test_words

    @property
    def test_words(self) -> str:
        """Description of the test images for messages."""
        data = self.config.data
        return PUT_ASIDE if data.test_share or (data.compare and not data.test_labels) else TEST_TABLE

    def trained_on(self, digests: Digests) -> int | None:
        """Count the files that the run was trained on with labels; return None if it was trained on arrays."""
        return self.split.count(digests, Part.LABELED) if self.has_files else None


def chosen_on_part(part: Part) -> JsonObject:
    """Return the entry of ``labels.json`` for thresholds that were chosen on a part of the run's own images."""
    return {"part": part.label}


def chosen_on_digests(digests: Digests) -> JsonObject:
    """Return the entry of ``labels.json`` for thresholds that were chosen on other images: their digests."""
    return {"digests": [digest.decode() for digest in np.unique(digests[digests != NONE])]}


def count_chosen_on(facts: Mapping[str, Any], record: RunRecord | None, digests: Digests) -> int | None:
    """Count the files that the thresholds were chosen on; return None if the run does not record them.

    Args:
        facts: the contents of the run's ``labels.json``.
        record: the record of the run's own images, if it has one.
        digests: digests of the files.
    """
    stored = facts.get(CHOSEN_ON)
    if not isinstance(stored, Mapping):
        return None
    recorded = stored.get("digests")
    if isinstance(recorded, Sequence) and all(isinstance(text, str) and text.isascii() for text in recorded):
        return count_common(digests, np.array([text.encode() for text in recorded], digests.dtype))
    part = PARTS_CHOSEN_ON.get(str(stored.get("part")))
    if part is None or record is None or not record.has_files:
        return None
    return record.split.count(digests, part)


def _is_absolute(name: str) -> bool:
    return Path(name).is_absolute()
