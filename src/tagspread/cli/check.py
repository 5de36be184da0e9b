"""``tagspread check``: check a dataset for problems before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagspread.cli.common import (
    AsJson,
    BlankRows,
    Delimiter,
    Ignore,
    ImageColumn,
    Labels,
    Outside,
    TagsColumn,
    TestLabels,
    table_options,
)

if TYPE_CHECKING:
    from tagspread.data.check.report import CheckReport


def check(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder with the labeled and unlabeled images.")],
    labels: Labels,
    test_labels: TestLabels = None,
    delimiter: Delimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    blank: BlankRows = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Network to estimate the training time for.", show_default="that of 'tagspread train'"
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            help="Image size to estimate the training time for.",
            show_default="chosen for the network",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a dataset for problems before training.

    Reports all problems at once, how often each tag occurs, and whether the labeled images look like a random sample.
    Then estimates the training time on this machine. Exit code 0 means that training can start, 1 that there are errors
    to fix first, 2 that a table or the folder cannot be read.

    Example:
    $ tagspread check photos --labels labels.csv --test-labels test.csv
    """
    from tagspread.data.check.dataset import run_check

    if backbone is not None:
        from tagspread.vision.backbones import check_network

        check_network(backbone, "none")

    def estimate(report: CheckReport) -> str:
        from tagspread.train.plan import Counts, estimate_in_words

        labeled, unlabeled, test = (report.counts.get(name, 0) for name in ("labeled", "unlabeled", "test"))
        return estimate_in_words(images, Counts(labeled, unlabeled, test, len(report.classes)), backbone, image_size)

    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside, blank)
    raise typer.Exit(run_check(images, labels, test_labels, as_json, table_options=options, estimate=estimate))
