"""A run's labeled images, found again where training found them, and sorted into the same parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tagspread.data.images.decode import decode_all
from tagspread.data.images.store import TensorStore
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import options_for_run, read_table
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS, get_method
from tagspread.progress import Watcher
from tagspread.run.fingerprints import TRAINED_KEY, in_common
from tagspread.train.dataset import Dataset
from tagspread.train.loading import put_aside_for_testing

TEST_TABLE, PUT_ASIDE = "test images", "labeled images that were put aside to test on"


class Again(NamedTuple):
    """The table that was trained on, and how its rows were sorted into parts."""

    table: LabelTable
    dataset: Dataset

    @property
    def trained(self) -> LabelTable:
        """The images that were trained on with their labels."""
        return self.table.select(self.dataset.labeled)


def find_again(
    settings: dict[str, Any], data: dict[str, Any], classes: tuple[str, ...], *, show_images: bool = True
) -> Again:
    """Read a run's own table and sort its rows as training did.

    Args:
        settings: how it was trained, from its ``config.json``.
        data: where the data came from, from there as well.
        classes: its tags, which the columns of the table are brought into the order of.
        show_images: also open the images, where that matters for how training sorted them.
    """
    if not data.get("labels") or not data.get("images"):
        raise TagspreadError("the run was started from Python with its own data, and does not know where it is")
    file, root = Path(data["labels"]), Path(data["images"])
    for path, what in ((root, "folder of images"), (file, "table of labels")):
        if not path.exists():
            raise TagspreadError(f"the {what}, {path}, is no longer there")
    table = read_for_run(file, root, data, classes)
    return Again(table, _sort_again(settings, data, table, show_images))


def find_test_part(settings: dict[str, Any], data: dict[str, Any], classes: tuple[str, ...]) -> tuple[LabelTable, str]:
    """Return the images that a run was given, or put aside, to test on, and what they are called."""
    if own := data.get("test_labels"):
        return read_for_run(Path(own), Path(data["images"]), data, classes), TEST_TABLE
    if not data.get("labels"):
        raise TagspreadError(
            "the run was started from Python with its own data, and does not know where its test images are (what it "
            "reached on them is in its metrics.json); name some with @labels.",
            labels=...,
        )
    if not data.get("test_share"):
        raise TagspreadError(
            "the run kept no image to test on; name some that it was not trained on with @labels.", labels=...
        )
    again = find_again(settings, data, classes)
    return again.table.select(again.dataset.test), PUT_ASIDE


def read_for_run(
    file: Path, root: Path, data: dict[str, Any], classes: tuple[str, ...], options: dict[str, Any] | None = None
) -> LabelTable:
    """Read a table as the run reads its own, or as options say and, where they are silent, like its own."""
    own = data.get("table_options") or {}
    table = read_table(file, root, **(own if options is None else options_for_run(file, own, options)))
    return LabelTable(table.paths, classes, table.aligned(classes, str(file)))


def count_trained(facts: dict[str, Any], paths: Sequence[Path], find_trained: Callable[[], LabelTable | None]) -> int:
    """Return how many images were trained on with their labels: by content or, in older runs, by path.

    Args:
        facts: the run's ``labels.json``.
        paths: the images in question.
        find_trained: finds those that were trained on, for runs that do not remember their content.
    """
    if (found := in_common(facts.get(TRAINED_KEY), paths)) is not None:
        return found
    trained = find_trained()
    known = set() if trained is None else {path.resolve() for path in trained.paths}
    return sum(path.resolve() in known for path in paths)


def _sort_again(settings: dict[str, Any], data: dict[str, Any], table: LabelTable, show_images: bool) -> Dataset:
    """Sort the table's rows into parts by the very code that did so in training: the seed is in the settings."""
    good = table.labeled
    splits = data.get("test_share") or settings["selection"] == "held_out"
    if splits and show_images:  # training left broken images out before, and so must we, or the parts would differ
        thumbs = np.empty((len(table), 3, 1, 1), np.uint8)
        good[[broken.index for broken in decode_all(list(table.paths), 1, thumbs)]] = False
    nothing = TensorStore(np.zeros((len(table), 1), np.float32), "cpu")  # splitting asks for labels only
    dataset = Dataset(nothing, table.y, table.classes, labeled=np.flatnonzero(good), unlabeled=np.empty(0, np.int64))
    if data.get("test_share"):
        dataset = put_aside_for_testing(dataset, data["test_share"], settings["seed"], Watcher(quiet=True))
    if settings["selection"] == "held_out":
        dataset = dataset.hold_out(settings["held_out"], settings["seed"])
    if settings["method"] in METHODS:
        share = get_method(settings["method"], **settings["method_options"]).share_apart
        dataset = dataset.set_apart(share, settings["seed"]) if share else dataset
    return dataset
