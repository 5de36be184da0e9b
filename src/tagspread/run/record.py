"""A run's own images: where they are, which of them were used for what, and which of others are among them."""

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
from tagspread.run.fingerprints import NONE, Digests, in_common
from tagspread.run.split import Part, Split, has_split, read_split

CHOSEN_ON = "chosen_on_images"  # in labels.json: the images that thresholds and calibration were chosen on
PARTS_CHOSEN_ON = {part.label: part for part in (Part.HELD_OUT, Part.APART)}
TEST_TABLE, PUT_ASIDE = "test images", "labeled images that were put aside to test on"


@dataclass(frozen=True)
class RunRecord:
    """What a run knows of its own data; nothing of it is read from the data themselves.

    Attributes:
        path: the run's folder.
        config: how it was trained, and where its data came from.
        split: which image was in which part.
    """

    path: Path
    config: RunConfig
    split: Split

    @classmethod
    def read(cls, run: str | PathLike[str]) -> RunRecord:
        """Read the record of a run; raise if it has none."""
        return cls(Path(run), RunConfig.read(run), read_split(run))

    @classmethod
    def find(cls, run: str | PathLike[str]) -> RunRecord | None:
        """Read the record of a run; return None where the folder holds none, such as an exported tagger."""
        config = RunConfig.find(run)
        return None if config is None or not has_split(run) else cls(Path(run), config, read_split(run))

    @property
    def has_files(self) -> bool:
        """Whether the images are files; those of arrays are not kept."""
        return self.config.data.images is not None or all(map(_is_absolute, self.split.names))

    def root(self, images: str | Path | None = None) -> Path | None:
        """Return the folder that relative paths start from; None for a run without one.

        Args:
            images: where the folder is now, if it is no longer where training found it.
        """
        recorded = self.config.data.images
        return None if recorded is None else Path(recorded if images is None else images)

    def files(self, rows: np.ndarray, images: str | Path | None = None) -> list[Path]:
        """Return the files of some rows; raise where the pixels cannot be had.

        Args:
            rows: rows of the split.
            images: where the folder of images is now, if it is no longer where training found it.
        """
        if not self.has_files:
            raise TagspreadError(
                f"{self.path} was started from Python with its own data, arrays of images, which are not kept."
            )
        names = [self.split.names[row] for row in rows]
        root = self.root(images)
        if root is None or all(map(_is_absolute, names)):
            return [Path(name) for name in names]
        if not root.is_dir():
            raise TagspreadError(
                f"the folder of images, {root}, is no longer there; say where it is now with @images.",
                images=Blank("DIR"),
            )
        return [root / name for name in names]  # an absolute name stays what it is

    def table(self, rows: np.ndarray, images: str | Path | None = None) -> LabelTable:
        """Return the files of some rows with their labels; see :meth:`files`."""
        return LabelTable(self.files(rows, images), self.split.classes, self.split.y[rows])

    def test_table(self, images: str | Path | None = None) -> tuple[LabelTable, str]:
        """Return the images that the run was given, or put aside, to test on, and what they are called."""
        rows = self.split.rows(Part.TEST)
        if not len(rows):
            raise TagspreadError(
                "the run kept no image to test on; name some that it was not trained on with @labels.", labels=...
            )
        if not self.has_files:
            raise TagspreadError(
                "the run was started from Python with its own data, and its test images, an array, are not kept (what "
                "it reached on them is in its metrics.json); name some with @labels.",
                labels=...,
            )
        return self.table(rows, images), self.test_words

    @property
    def test_words(self) -> str:
        """What the test images are called."""
        return PUT_ASIDE if self.config.data.test_share else TEST_TABLE

    def trained_on(self, digests: Digests) -> int | None:
        """Return how many of some files were trained on with their labels; None if that was not on files."""
        return self.split.count(digests, Part.LABELED) if self.has_files else None


def chosen_on_part(part: Part) -> JsonObject:
    """Return what ``labels.json`` says of thresholds that were chosen on a part of the run's own images."""
    return {"part": part.label}


def chosen_on_digests(digests: Digests) -> JsonObject:
    """Return what ``labels.json`` says of thresholds that were chosen on other images: all of their digests."""
    return {"digests": [one.decode() for one in np.unique(digests[digests != NONE])]}


def count_chosen_on(facts: Mapping[str, Any], record: RunRecord | None, digests: Digests) -> int | None:
    """Return how many of some files the thresholds were chosen on; None if the run does not say.

    Args:
        facts: the run's ``labels.json``.
        record: what the run knows of its own images, if it does.
        digests: of the files.
    """
    stored = facts.get(CHOSEN_ON)
    if not isinstance(stored, Mapping):
        return None
    known = stored.get("digests")
    if isinstance(known, Sequence) and all(isinstance(one, str) and one.isascii() for one in known):
        return in_common(digests, np.array([one.encode() for one in known], digests.dtype))
    part = PARTS_CHOSEN_ON.get(str(stored.get("part")))
    if part is None or record is None or not record.has_files:
        return None
    return record.split.count(digests, part)


def _is_absolute(name: str) -> bool:
    return Path(name).is_absolute()
