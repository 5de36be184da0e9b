"""Answers as labels: export them with the labels of the run, or add them to the label table of a new training.

An answer wins over the label of a table, because a person saw the image after the model raised the question. The answer
``unknown`` is no label: it neither becomes a negative nor removes a label that the table has.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.data.images.find import list_folder
from tagspread.data.images.paths import real_path
from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import Blank, TagspreadError
from tagspread.review.answers import LABELS, Answer, AnswerStore, Conflict
from tagspread.run.record import RunRecord
from tagspread.run.split import Part, digest_files
from tagspread.wording import counted

NAMED = 3  # images that a note names


class Answered(NamedTuple):
    """The answers of reviewers as labels.

    Attributes:
        table: one row per answered image that was found.
        added_tags: the tags that reviewers added.
        missing: names of answered images that were not found.
        conflicts: the answers on which two people disagree.
    """

    table: LabelTable
    added_tags: tuple[str, ...]
    missing: tuple[str, ...]
    conflicts: tuple[Conflict, ...]

    def notes(self) -> list[str]:
        """Describe the conflicts and the missing images."""
        notes = []
        if self.conflicts:
            listed = [
                f"{one.counts.image}: {one.counts.tag!r} is {one.counts.answer} by {one.counts.who}, "
                f"{one.other.answer} by {one.other.who}"
                for one in self.conflicts
            ]
            what = counted(len(listed), "answer")
            notes.append(f"reviewers disagree on {what}, and the later answer counts ({_some(listed)})")
        if self.missing:
            what = counted(len(self.missing), "answered image")
            notes.append(f"{what} cannot be found, so their answers are not used ({_some(self.missing)})")
        return notes


class Exported(NamedTuple):
    """What an export holds.

    Attributes:
        labeled: number of the run's labeled images.
        answered: number of answered images.
        answers: number of their labels, without those that are unknown.
        new_tags: tags that reviewers added; for the run's labeled images, they are unknown.
        notes: conflicts and missing images.
    """

    labeled: int
    answered: int
    answers: int
    new_tags: tuple[str, ...]
    notes: tuple[str, ...]


def read_answered(run: str | PathLike[str], folder: Path) -> Answered:
    """Read the answers of a run as labels of images in a folder.

    Args:
        run: the run that was reviewed.
        folder: folder of images. An image that is not there under its name is searched by its content.
    """
    with AnswerStore.open(run) as store:
        answers, tags, conflicts = store.answers(), store.added_tags(), store.conflicts()
    names = {answer.digest: answer.image for answer in answers}
    paths = {digest: path for digest, name in names.items() if (path := _below(folder, name)) is not None}
    found = dict(zip(paths, digest_files(list(paths.values())).tolist(), strict=True))
    paths = {digest: path for digest, path in paths.items() if found[digest].decode() == digest}
    if len(paths) < len(names):
        files = [path for path in list_folder(folder).images if path not in set(paths.values())]
        for file, content in zip(files, digest_files(files).tolist(), strict=True):
            if (digest := content.decode()) in names:
                paths.setdefault(digest, file)
    missing = tuple(name for digest, name in names.items() if digest not in paths)
    return Answered(_table(answers, paths), tuple(tags), missing, tuple(conflicts))


def _below(folder: Path, name: str) -> Path | None:
    """Return the path of a name in a folder; None if it would be elsewhere, or if there is no such file."""
    path = folder / name
    if ".." in Path(name).parts or not path.is_relative_to(folder) or not path.is_file():
        return None
    return path


def _table(answers: Sequence[Answer], paths: dict[str, Path]) -> LabelTable:
    row = {digest: k for k, digest in enumerate(paths)}
    column = {tag: k for k, tag in enumerate(dict.fromkeys(one.tag for one in answers if one.digest in row))}
    y = np.full((len(row), len(column)), -1, np.int8)
    for answer in answers:
        if answer.digest in row:
            y[row[answer.digest], column[answer.tag]] = LABELS[answer.answer]
    return LabelTable(list(paths.values()), tuple(column), y)


def add_answers(table: LabelTable, answered: Answered, keep_out: Sequence[Path] = ()) -> tuple[LabelTable, list[str]]:
    """Add answers to a label table; return the new table, and notes on what was decided.

    Args:
        table: the labels to train on.
        answered: the answers.
        keep_out: images that must not be trained on, because they are the test set.
    """
    notes = answered.notes()
    test = {real_path(path) for path in keep_out}
    rows = [k for k, path in enumerate(answered.table.paths) if real_path(path) not in test]
    if len(rows) < len(answered.table):
        what = counted(len(answered.table) - len(rows), "answered image")
        notes.append(f"{what} of the test set: the answers are not used")
    given = answered.table.select(rows)
    new = [tag for tag in given.classes if tag not in table.classes]
    classes = (*table.classes, *new)
    row_of = {real_path(path): k for k, path in enumerate(table.paths)}
    paths = list(table.paths)
    for path in given.paths:
        if row_of.setdefault(real_path(path), len(paths)) == len(paths):
            paths.append(path)
    y = np.full((len(paths), len(classes)), -1, np.int8)
    y[: len(table), : len(table.classes)] = table.y
    for k, tag in enumerate(new, len(table.classes)):
        # a table that lists all tags of an image says "absent", but not about a tag that did not exist then
        y[: len(table), k] = -1 if tag in answered.added_tags else table.unlisted
    overruled = []
    for path, labels in zip(given.paths, given.y.tolist(), strict=True):
        row = row_of[real_path(path)]
        for tag, label in zip(given.classes, labels, strict=True):
            k = classes.index(tag)
            if label >= 0 and y[row, k] == 1 - label:
                overruled.append(f"{path.name}: {tag!r} is {y[row, k]} in the table, {label} by the answer")
            if label >= 0:
                y[row, k] = label
    if overruled:
        what = counted(len(overruled), "label")
        notes.append(f"answers overrule {what} of the table ({_some(overruled)})")
    return LabelTable(paths, classes, y, table.unlisted), notes


def export_answers(
    run: str | Path, out: Path, *, images: str | Path | None = None, overwrite: bool = False
) -> Exported:
    """Write the labels of a run and the answers of its reviewers into one new label table.

    Args:
        run: the run that was reviewed.
        out: the table to write.
        images: the image folder, if it was moved after training.
        overwrite: replace an existing table, but never the one that the run was trained with.
    """
    record = RunRecord.read(run)
    root = None if images is None else Path(images).absolute()
    if (root := root or record.root()) is None:
        raise TagspreadError(
            f"{run} was started from Python with a list of files; say which folder holds them all with @images.",
            images=Blank("DIR"),
        )
    data = record.config.data
    if out.exists() and data.labels is not None and Path(data.labels).exists() and out.samefile(data.labels):
        raise TagspreadError(f"{out} is the table that {run} was trained with; choose another file.")
    answered = read_answered(run, root)
    parts = [Part.LABELED, Part.APART, Part.HELD_OUT]
    if data.test_labels is None:  # then all labels are of one table: those put aside to test on, and of broken files
        parts += [Part.TEST, Part.OMITTED]
    rows = record.split.rows(*parts)
    known = record.table(rows[(record.split.y[rows] >= 0).any(axis=1)], root)
    table, notes = add_answers(known, answered)
    table.write(out, root, overwrite=overwrite)
    new = tuple(tag for tag in table.classes if tag not in record.split.classes)
    return Exported(len(known), len(answered.table), int((answered.table.y >= 0).sum()), new, tuple(notes))


def _some(phrases: Sequence[str]) -> str:
    return "; ".join(phrases[:NAMED]) + (f"; and {len(phrases) - NAMED:,} more" if len(phrases) > NAMED else "")
