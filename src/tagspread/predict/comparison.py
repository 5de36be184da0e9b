"""Compare two runs on the same images: the paired difference of their mAP and of the average precision of each tag."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tagspread.aliases import JsonObject, Progress
from tagspread.core.bootstrap import MIN_POSITIVES, count_rare_classes, rare_classes_warning
from tagspread.core.compare import paired_difference_interval
from tagspread.core.metrics import average_precision, mean_average_precision
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.options import GivenOptions
from tagspread.errors import TagspreadError
from tagspread.predict.evaluation import read_table_for_run, score_table
from tagspread.predict.tagger import Tagger, load
from tagspread.run.record import RunRecord
from tagspread.run.split import NONE, Digests, Part, digest_files
from tagspread.wording import counted, points


@dataclass(frozen=True)
class TagDifference:
    """Average precision of one tag in both runs; None where it is undefined.

    Attributes:
        name: the tag.
        positives: number of images with the tag.
        before: average precision of the first run.
        after: average precision of the second run.
        low: lower end of the interval of ``after - before``; None with too few positives for an interval.
        high: upper end of the interval.
    """

    name: str
    positives: int
    before: float | None
    after: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same images, with 90 % intervals of the differences.

    Attributes:
        first: folder of the first run.
        second: folder of the second run.
        images: number of images.
        description: description of the images.
        before: mAP of the first run.
        after: mAP of the second run.
        difference: ``after - before``.
        low: lower end of its interval.
        high: upper end of its interval.
        tags: the tags of both runs.
        notes: what was left out, and why.
    """

    first: str
    second: str
    images: int
    description: str
    before: float
    after: float
    difference: float
    low: float
    high: float
    tags: list[TagDifference]
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """State the result in a sentence."""
        before, after = (round(100 * value, 1) for value in (self.before, self.after))
        what = "is better" if self.low > 0 else "is worse" if self.high < 0 else "is not measurably different"
        return (
            f"{self.second} {what}: mAP {after:.1f} against {before:.1f} of {self.first}, a difference of "
            f"{points((after - before) / 100)} points on {counted(self.images, self.description)} "
            f"(90 % interval {points(self.low)} to {points(self.high)})"
        )

    def to_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        return asdict(self)


def compare_runs(
    first: str | PathLike[str],
    second: str | PathLike[str],
    labels: str | Path | None = None,
    images: str | Path | None = None,
    *,
    table_options: GivenOptions | Mapping[str, Any] | None = None,
    samples: int = 1000,
    device: str = "auto",
    progress: Progress | None = None,
) -> Comparison:
    """Compare two runs on the test images that both have, by content, or on the images of a label table.

    Args:
        first: folder of the earlier run.
        second: folder of the later run; its labels count where the runs have different labels for an image.
        labels: label table of images that neither run was trained on.
        images: folder of the images in ``labels``, or of the second run's images if they were moved.
        table_options: options for reading ``labels``; by default those of the second run.
        samples: number of bootstrap samples.
        device: device to run the taggers on.
        progress: called with (done, total).
    """
    before, after = load(first, device), load(second, device)
    classes, notes = [name for name in after.classes if name in before.classes], list[str]()
    if not classes:
        raise TagspreadError(f"{first} and {second} have no tag in common, so they cannot be compared.")
    if other := [name for name in (*before.classes, *after.classes) if name not in classes]:
        notes.append(f"left out, because only one of the runs has them: {', '.join(other)}")
    if labels is None:
        table, description = _common_test_images(first, second, images, notes), "common test image"
    else:
        table, description = read_table_for_run(after, labels, images, table_options), "image"
        all_classes = (*classes, *(name for name in table.classes if name not in classes))
        table = LabelTable(table.paths, all_classes, table.aligned(all_classes, str(labels)))
        _note_trained_on((first, second), table, notes)
    return _measure(before, after, classes, table, description, samples, notes, progress)


def _measure(
    before: Tagger,
    after: Tagger,
    classes: list[str],
    table: LabelTable,
    description: str,
    samples: int,
    notes: list[str],
    progress: Progress | None,
) -> Comparison:
    taggers, readable = (before, after), np.ones(len(table), bool)
    logits = []
    for number, tagger in enumerate(taggers):
        values, errors = score_table(tagger, table, _part(progress, number))
        readable &= np.array([not error for error in errors])
        logits.append(values[:, [tagger.classes.index(name) for name in classes]])
    if unreadable := int((~readable).sum()):
        notes.append(f"{counted(unreadable, 'image')} cannot be read and {'is' if unreadable == 1 else 'are'} left out")
    y = table.y[readable][:, [table.classes.index(name) for name in classes]]
    old, new = (values[readable] for values in logits)
    difference, low, high = paired_difference_interval(new, old, y, samples=samples)
    if math.isnan(difference):
        raise TagspreadError(
            f"none of the {counted(len(y), description)} has a tag of both runs, so nothing can be compared; give "
            "labeled images with @labels.",
            labels=...,
        )
    few = count_rare_classes((y == 1).sum(axis=0).tolist())
    if (warning := rare_classes_warning(few, len(classes))) is not None:
        notes.append(warning)
    aps = np.stack([average_precision(values, y) for values in (old, new)], axis=1)
    tags = [_tag(name, y[:, [k]], old[:, [k]], new[:, [k]], aps[k], samples) for k, name in enumerate(classes)]
    return Comparison(
        str(before.artifact.path),
        str(after.artifact.path),
        len(y),
        description,
        mean_average_precision(old, y),
        mean_average_precision(new, y),
        difference,
        low,
        high,
        tags,
        notes,
    )


def _tag(name: str, y: np.ndarray, old: np.ndarray, new: np.ndarray, aps: np.ndarray, samples: int) -> TagDifference:
    positives, (before, after) = int((y == 1).sum()), aps.tolist()
    if not positives:
        return TagDifference(name, 0, None, None, None, None)
    if positives < MIN_POSITIVES:
        return TagDifference(name, positives, before, after, None, None)
    _, low, high = paired_difference_interval(new, old, y, samples=samples)
    return TagDifference(name, positives, before, after, low, high)


def _part(progress: Progress | None, number: int) -> Callable[[int, int], None] | None:
    """Return the progress of one of the two runs as part of the whole."""
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, 2 * total)


def _common_test_images(
    first: str | PathLike[str], second: str | PathLike[str], images: str | Path | None, notes: list[str]
) -> LabelTable:
    """Return the images that are test images of both runs, by content, with the labels of the second run."""
    before, after = RunRecord.read(first), RunRecord.read(second)
    tests = [record.split.rows(Part.TEST) for record in (before, after)]
    for run, rows in zip((first, second), tests, strict=True):
        if not len(rows):
            raise TagspreadError(
                f"{run} has no test images to compare on; give labeled images that neither run was trained on with "
                "@labels.",
                labels=...,
            )
    digests = before.split.digests[tests[0]], after.split.digests[tests[1]]
    trained = np.concatenate(
        [record.split.digests[record.split.rows(Part.LABELED, Part.HELD_OUT)] for record in (before, after)]
    )
    is_common = np.isin(digests[1], digests[0]) & (digests[1] != NONE) & ~np.isin(digests[1], trained)
    _, unique = np.unique(digests[1], return_index=True)  # a copy of an image counts once
    rows = tests[1][np.intersect1d(np.flatnonzero(is_common), unique)]
    if not len(rows):
        raise TagspreadError(
            f"{first} and {second} have no test image in common ({len(tests[0]):,} and {len(tests[1]):,} test images); "
            f"give labeled images that neither run was trained on with @labels, or train again with the test images of "
            f"the first run: tagspread train ... --compare {first}",
            labels=...,
        )
    if not len(rows) == len(tests[0]) == len(tests[1]):
        notes.append(
            f"the runs have different test images ({len(tests[0]):,} and {len(tests[1]):,}); compared on the "
            f"{len(rows):,} that they have in common"
        )
    table = after.table(rows, images)
    is_same = digest_files(table.paths) == after.split.digests[rows]
    if changed := int((~is_same).sum()):
        if changed == len(rows):
            after.test_table(images)  # raises if the images or their folder are gone
            raise TagspreadError(
                f"the test images of {second} are missing or were changed since training, such as {table.paths[0]}; "
                "give their folder with @images, if they were moved.",
                images=...,
            )
        notes.append(f"{counted(changed, 'image')} missing or changed since training; left out")
    _note_relabeled(before, after, rows[is_same], notes)
    return table.select(is_same)


def _note_relabeled(before: RunRecord, after: RunRecord, rows: np.ndarray, notes: list[str]) -> None:
    """Add a note on the images whose labels differ between the runs."""
    old, new = before.split, after.split
    common = [name for name in new.classes if name in old.classes]
    columns = [[split.classes.index(name) for name in common] for split in (old, new)]
    row_of = {digest: row for row, digest in enumerate(old.digests) if old.parts[row] == Part.TEST}
    old_rows = np.array([row_of[new.digests[row]] for row in rows], np.int64)
    differs = (old.y[old_rows][:, columns[0]] != new.y[rows][:, columns[1]]).any(axis=1)
    if count := int(differs.sum()):
        notes.append(f"{counted(count, 'image')} labeled differently in the two runs; the labels of {after.path} count")


def _note_trained_on(runs: tuple[str | PathLike[str], ...], table: LabelTable, notes: list[str]) -> None:
    digests: Digests = digest_files(table.paths)
    for run in runs:
        record = RunRecord.find(run)
        if record is not None and (count := record.trained_on(digests)):
            notes.append(f"{run} was trained on {count:,} of these {counted(len(table), 'image')}, which favors it")
