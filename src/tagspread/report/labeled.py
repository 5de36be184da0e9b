"""Find the labeled images to evaluate in the report: a given table, the test images, or the held-out images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tagspread.data.tables.label_table import LabelTable, foreign_in_words
from tagspread.data.tables.options import GivenOptions
from tagspread.data.tables.read import options_for_run, read_table
from tagspread.errors import Blank, TagspreadError
from tagspread.report.summary import Missing, RunSummary
from tagspread.run import split
from tagspread.run.record import RunRecord

GIVEN = "images of the given label table"
METRICS_AND_EXAMPLES = "Metrics per tag and examples"


@dataclass(frozen=True)
class Part:
    """Labeled images to evaluate.

    Attributes:
        table: the images and their labels, with the run's classes.
        description: description of the images on the page, such as "test images".
        unseen: whether the model was not trained on their labels.
        root: folder that displayed file names are relative to.
        digests: digests that the run recorded for the images; None for images of a given table.
    """

    table: LabelTable
    description: str
    unseen: bool
    root: Path
    digests: split.Digests | None = None


@dataclass(frozen=True)
class LabeledImages:
    """Labels of the training images, and the images to evaluate.

    Attributes:
        trained_y: labels of the labeled training images; None if the run does not record them.
        part: the images to evaluate; None if there are none.
    """

    trained_y: np.ndarray | None
    part: Part | None


def find_labeled(
    summary: RunSummary,
    labels: str | Path | None = None,
    images: str | Path | None = None,
    *,
    show_images: bool = True,
    table_options: GivenOptions | Mapping[str, Any] | None = None,
) -> LabeledImages:
    """Find a run's labeled images in its record, and add what cannot be found to ``summary.missing``.

    Args:
        summary: the run.
        labels: label table of the images to evaluate, instead of the run's own test images.
        images: folder that the paths in ``labels`` are relative to, or the run's folder of images, if it was moved.
        show_images: also choose images to evaluate.
        table_options: options for reading ``labels``; by default those of the run.
    """
    root = images or summary.data.images
    if labels is not None and (root is None or not Path(root).is_dir()):
        raise TagspreadError(
            f"the folder of the images in {labels} is unknown; give it with @images.", images=Blank("DIR")
        )
    if not summary.classes:
        return LabeledImages(None, None)
    trained_y, record = None, summary.record
    if record is None:
        summary.missing.append(Missing("Label frequencies", f"the run has no {split.FILE}"))
    else:
        trained_y = record.split.y[record.split.rows(split.Part.LABELED)]
    if not show_images:
        return LabeledImages(trained_y, None)
    if labels is not None:
        given = GivenOptions.of(table_options).to_dict()
        options = options_for_run(Path(labels), summary.data.table_options, given)
        table = read_table(labels, Path(str(root)), **options)
        if (foreign := foreign_in_words(table, summary.classes, str(labels))) is not None:
            summary.missing.append(Missing("Metrics of all tags", foreign))
        table = LabelTable(table.paths, summary.classes, table.aligned(summary.classes, str(labels)))
        return LabeledImages(trained_y, Part(table, GIVEN, True, Path(str(root))))
    try:
        part = None if record is None else _most_informative(summary, record, images)
    except TagspreadError as error:
        why = f"{error.on_command_line.rstrip('.')}; or give other labeled images with --labels FILE and --images DIR"
        summary.missing.append(Missing(METRICS_AND_EXAMPLES, why))
        part = None
    return LabeledImages(trained_y, part)


def _most_informative(summary: RunSummary, record: RunRecord, images: str | Path | None) -> Part:
    """Return the run's test images, or its held-out images, or else its labeled training images."""
    root = record.root(images) or Path()
    digests = record.split.digests
    if len(rows := record.split.rows(split.Part.TEST)):
        return Part(record.table(rows, images), record.test_words, True, root, digests[rows])
    if len(rows := record.split.rows(split.Part.HELD_OUT)):
        return Part(record.table(rows, images), "held-out images", True, root, digests[rows])
    rows = record.split.rows(split.Part.LABELED)
    part = Part(record.table(rows, images), "labeled training images", False, root, digests[rows])
    why = "the run has no test images; train with --test-labels or --test-share, or give --labels FILE"
    summary.missing.append(Missing("Metrics per tag", why))
    return part
