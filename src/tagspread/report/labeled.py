"""Which labeled images a page is about: those that show best how good the tagger is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.options import GivenOptions
from tagspread.data.tables.read import options_for_run, read_table
from tagspread.errors import Blank, TagspreadError
from tagspread.report.summary import Missing, RunSummary
from tagspread.run import split
from tagspread.run.record import RunRecord

GIVEN = "images you gave"


@dataclass(frozen=True)
class Part:
    """Images to look at, with their labels.

    Attributes:
        table: the images; the columns are those of the run.
        words: what they are called on the page, such as "test images".
        fair: whether the tagger has not seen their labels.
        root: the folder that their names are shown from.
        digests: digests that the run recorded for the images; None for images that the user named.
    """

    table: LabelTable
    words: str
    fair: bool
    root: Path
    digests: split.Digests | None = None


@dataclass(frozen=True)
class LabeledImages:
    """What is labeled.

    Attributes:
        trained_y: labels of the images that were trained on with them; None if the run does not say.
        part: the images to look at; None if there are none.
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
    """Return a run's labeled images, from its record; what cannot be found is added to ``summary.missing``.

    Args:
        summary: the run.
        labels: a table to judge by, instead of the run's own test images.
        images: the folder that its paths start from, or that the run's own images have been moved to.
        show_images: also choose images to look at.
        table_options: how to read the table, if not as the run reads its own.
    """
    root = images or summary.data.images
    if labels is not None and (root is None or not Path(root).is_dir()):
        raise TagspreadError(
            f"which folder do the paths in {labels} start from? Give it with @images.", images=Blank("DIR")
        )
    if not summary.classes:
        return LabeledImages(None, None)
    trained_y, record = None, summary.record
    if record is None:
        summary.missing.append(Missing("How often each tag is labeled", f"the run has no {split.FILE}"))
    else:
        trained_y = record.split.y[record.split.rows(split.Part.LABELED)]
    if not show_images:
        return LabeledImages(trained_y, None)
    if labels is not None:
        given = GivenOptions.of(table_options).to_dict()
        options = options_for_run(Path(labels), summary.data.table_options, given)
        table = read_table(labels, Path(str(root)), **options)
        table = LabelTable(table.paths, summary.classes, table.aligned(summary.classes, str(labels)))
        return LabeledImages(trained_y, Part(table, GIVEN, True, Path(str(root))))
    try:
        part = None if record is None else _fairest(summary, record, images)
    except TagspreadError as error:
        why = f"{error.on_command_line.rstrip('.')}; or name other images with --labels FILE and --images DIR"
        summary.missing.append(Missing("How good each tag is, and example images", why))
        part = None
    return LabeledImages(trained_y, part)


def _fairest(summary: RunSummary, record: RunRecord, images: str | Path | None) -> Part:
    """Return the images that show best how good the tagger is: test, held out, or else those it was trained on."""
    root = record.root(images) or Path()
    digests = record.split.digests
    if len(rows := record.split.rows(split.Part.TEST)):
        return Part(record.table(rows, images), record.test_words, True, root, digests[rows])
    if len(rows := record.split.rows(split.Part.HELD_OUT)):
        words = "images that were held out to choose by"
        return Part(record.table(rows, images), words, True, root, digests[rows])
    rows = record.split.rows(split.Part.LABELED)
    words = "labeled images, which it was trained on"
    part = Part(record.table(rows, images), words, False, root, digests[rows])
    why = "no image was kept to test on; train with --test-labels or --test-share, or give --labels FILE"
    summary.missing.append(Missing("How good each tag is", why))
    return part
