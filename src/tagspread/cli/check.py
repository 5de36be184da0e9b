"""``tagspread check``: find the problems of a dataset before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Delimiter, Ignore, ImageColumn, Outside, TagsColumn, table_options


def check(
    images: Annotated[Path, typer.Argument(help="Folder with the labeled and unlabeled images.")],
    labels: Annotated[
        Path, typer.Option(help="Tags of the labeled images: CSV, TSV, Parquet, JSON lines or Label Studio export.")
    ],
    test_labels: Annotated[
        Path | None, typer.Option(help="Tags of the test images, in one of the same formats.")
    ] = None,
    delimiter: Delimiter = "|",
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the problems of a dataset before training.

    The exit code is 1 if something must be fixed, and 2 if the table or the folder cannot be read.
    """
    from tagspread.data.check.dataset import run_check

    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside)
    raise typer.Exit(run_check(images, labels, test_labels, as_json, table_options=options))
