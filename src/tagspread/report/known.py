"""The labelled pictures of a run, found again where training found them, and sorted into the same parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tagspread.data.decode import decode_all
from tagspread.data.store import TensorStore
from tagspread.data.table import LabelTable, read_table
from tagspread.errors import Blank, TagspreadError
from tagspread.methods import METHODS, get_method
from tagspread.report.gather import Missing, Told
from tagspread.train.assemble import put_aside_for_testing
from tagspread.train.console import Watcher
from tagspread.train.problem import Problem

GIVEN = "pictures you gave"


@dataclass(frozen=True)
class Part:
    """Pictures to look at, with their labels.

    Attributes:
        table: the pictures; the columns are those of the run.
        words: what they are called on the page, such as "test pictures".
        fair: whether the tagger has not seen their labels.
        root: the folder that their names are shown from.
        trained_on: how many of pictures the user gave were trained on, as far as that is known.
    """

    table: LabelTable
    words: str
    fair: bool
    root: Path
    trained_on: int = 0


@dataclass(frozen=True)
class Known:
    """What is labelled.

    Attributes:
        trained: pictures that were trained on with their labels; None if they cannot be found.
        part: the pictures to look at; None if there are none.
    """

    trained: LabelTable | None
    part: Part | None


def find_known(
    told: Told, labels: str | Path | None = None, images: str | Path | None = None, *, pictures: bool = True
) -> Known:
    """Find a run's labelled pictures again; what cannot be found is added to ``told.missing``.

    Args:
        told: the run.
        labels: a table to judge by, instead of the run's own test table.
        images: the folder that its paths start from; by default the run's own.
        pictures: also open the pictures, where that matters for how training sorted them.
    """
    root = images or told.data.get("images")
    if labels is not None and (root is None or not Path(root).is_dir()):
        raise TagspreadError(
            f"which folder do the paths in {labels} start from? Give it with @images.", images=Blank("DIR")
        )
    if not told.classes:
        return Known(None, None)
    try:
        table, problem = _training_table(told, pictures)
        trained = table.select(problem.labelled)
    except TagspreadError as error:
        trained = None
        told.missing.append(Missing("How often each tag is labelled", error.on_command_line.rstrip(".")))
        if pictures and labels is None:
            why = "its pictures cannot be found again; name some with --labels FILE and --images DIR"
            told.missing.append(Missing("How good each tag is, and example pictures", why))
    if labels is not None:
        given = Part(_read(told, Path(labels), Path(str(root))), GIVEN, True, Path(str(root)))
        return Known(trained, replace(given, trained_on=_in_common(given.table, trained)))
    if trained is None or not pictures:
        return Known(trained, None)
    return Known(trained, _fairest(told, table, problem))


def _training_table(told: Told, pictures: bool) -> tuple[LabelTable, Problem]:
    """Return the table that was trained on, and how its rows were sorted into parts."""
    data = told.data
    if not data.get("labels") or not data.get("images"):
        raise TagspreadError("the run was started from Python with its own data, and does not know where it is")
    file, root = Path(data["labels"]), Path(data["images"])
    for path, what in ((root, "folder of pictures"), (file, "table of labels")):
        if not path.exists():
            raise TagspreadError(f"the {what}, {path}, is no longer there")
    table = _read(told, file, root)
    return table, _split_again(told, table, pictures)


def _fairest(told: Told, table: LabelTable, problem: Problem) -> Part | None:
    """Return the pictures that show best how good the tagger is: test, held out, or else those it was trained on."""
    root, own = Path(told.data["images"]), told.data.get("test_labels")
    if own:
        try:
            return Part(_read(told, Path(own), root), "test pictures", True, root)
        except TagspreadError as error:
            told.missing.append(
                Missing("How good each tag is, and example pictures", error.on_command_line.rstrip("."))
            )
            return None
    if len(problem.test):
        return Part(table.select(problem.test), "labelled pictures that were put aside to test on", True, root)
    if len(problem.held_out):
        return Part(table.select(problem.held_out), "pictures that were held out to choose by", True, root)
    why = "no picture was kept to test on; train with --test-labels or --test-share, or give --labels FILE"
    told.missing.append(Missing("How good each tag is", why))
    return Part(table.select(problem.labelled), "labelled pictures, which it was trained on", False, root)


def _read(told: Told, file: Path, root: Path) -> LabelTable:
    table = read_table(file, root, **(told.data.get("table_options") or {}))
    return LabelTable(table.paths, told.classes, table.aligned(told.classes, str(file)))


def _in_common(given: LabelTable, trained: LabelTable | None) -> int:
    known = set() if trained is None else {path.resolve() for path in trained.paths}
    return sum(path.resolve() in known for path in given.paths)


def _split_again(told: Told, table: LabelTable, pictures: bool) -> Problem:
    """Sort the table's rows into parts by the very code that did so in training: the seed is in the settings."""
    settings, good = told.settings, table.labelled
    splits = told.data.get("test_share") or settings["selection"] == "held_out"
    if splits and pictures:  # training left broken pictures out before, and so must we, or the parts would differ
        thumbs = np.empty((len(table), 3, 1, 1), np.uint8)
        good[[broken.index for broken in decode_all(list(table.paths), 1, thumbs)]] = False
    nothing = TensorStore(np.zeros((len(table), 1), np.float32), "cpu")  # splitting asks for labels only
    problem = Problem(nothing, table.y, told.classes, labelled=np.flatnonzero(good), pile=np.empty(0, np.int64))
    if told.data.get("test_share"):
        problem = put_aside_for_testing(problem, told.data["test_share"], settings["seed"], Watcher(quiet=True))
    if settings["selection"] == "held_out":
        problem = problem.hold_out(settings["held_out"], settings["seed"])
    if settings["method"] in METHODS:
        share = get_method(settings["method"], **settings["method_options"]).share_apart
        problem = problem.set_apart(share, settings["seed"]) if share else problem
    return problem
