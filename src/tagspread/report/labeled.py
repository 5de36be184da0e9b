"""Which labeled images a page is about: those that show best how good the tagger is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tagspread.data.tables.given_options import GivenOptions
from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import Blank, TagspreadError
from tagspread.report.summary import Missing, RunSummary
from tagspread.train.again import PUT_ASIDE, TEST_TABLE, Again, count_trained, find_again, read_for_run

GIVEN = "images you gave"


@dataclass(frozen=True)
class Part:
    """Images to look at, with their labels.

    Attributes:
        table: the images; the columns are those of the run.
        words: what they are called on the page, such as "test images".
        fair: whether the tagger has not seen their labels.
        root: the folder that their names are shown from.
        trained_on: how many of images the user gave were trained on, as far as that is known.
    """

    table: LabelTable
    words: str
    fair: bool
    root: Path
    trained_on: int = 0


@dataclass(frozen=True)
class LabeledImages:
    """What is labeled.

    Attributes:
        trained: images that were trained on with their labels; None if they cannot be found.
        part: the images to look at; None if there are none.
    """

    trained: LabelTable | None
    part: Part | None


def find_labeled(
    summary: RunSummary,
    labels: str | Path | None = None,
    images: str | Path | None = None,
    *,
    show_images: bool = True,
    table_options: GivenOptions | Mapping[str, Any] | None = None,
) -> LabeledImages:
    """Find a run's labeled images again; what cannot be found is added to ``summary.missing``.

    Args:
        summary: the run.
        labels: a table to judge by, instead of the run's own test table.
        images: the folder that its paths start from; by default the run's own.
        show_images: also open the images, where that matters for how training sorted them.
        table_options: how to read the table, if not as the run reads its own.
    """
    root = images or summary.data.get("images")
    if labels is not None and (root is None or not Path(root).is_dir()):
        raise TagspreadError(
            f"which folder do the paths in {labels} start from? Give it with @images.", images=Blank("DIR")
        )
    if not summary.classes:
        return LabeledImages(None, None)
    try:
        again = find_again(summary.settings, summary.data, summary.classes, show_images=show_images)
        trained = again.trained
    except TagspreadError as error:
        trained = None
        summary.missing.append(Missing("How often each tag is labeled", error.on_command_line.rstrip(".")))
        if show_images and labels is None:
            why = "its images cannot be found again; name some with --labels FILE and --images DIR"
            summary.missing.append(Missing("How good each tag is, and example images", why))
    if labels is not None:
        given = GivenOptions.of(table_options).to_dict()
        table = read_for_run(Path(labels), Path(str(root)), summary.data, summary.classes, given)
        seen = count_trained({} if summary.artefact is None else summary.artefact.facts, table.paths, lambda: trained)
        return LabeledImages(trained, Part(table, GIVEN, True, Path(str(root)), seen))
    if trained is None or not show_images:
        return LabeledImages(trained, None)
    return LabeledImages(trained, _fairest(summary, again))


def _fairest(summary: RunSummary, again: Again) -> Part | None:
    """Return the images that show best how good the tagger is: test, held out, or else those it was trained on."""
    root, own = Path(summary.data["images"]), summary.data.get("test_labels")
    table, problem = again
    if own:
        try:
            return Part(read_for_run(Path(own), root, summary.data, summary.classes), TEST_TABLE, True, root)
        except TagspreadError as error:
            summary.missing.append(
                Missing("How good each tag is, and example images", error.on_command_line.rstrip("."))
            )
            return None
    if len(problem.test):
        return Part(table.select(problem.test), PUT_ASIDE, True, root)
    if len(problem.held_out):
        return Part(table.select(problem.held_out), "images that were held out to choose by", True, root)
    why = "no image was kept to test on; train with --test-labels or --test-share, or give --labels FILE"
    summary.missing.append(Missing("How good each tag is", why))
    return Part(table.select(problem.labeled), "labeled images, which it was trained on", False, root)
