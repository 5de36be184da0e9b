"""``tagspread check``: find every problem of a data set before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Delimiter, Ignore, ImageColumn, Outside, TagsColumn, table_options


def check(
    images: Annotated[Path, typer.Argument(help="Folder of images, tagged and unlabeled.")],
    labels: Annotated[
        Path, typer.Option(help="CSV, TSV, Parquet, JSON lines or Label Studio export with the tags of some.")
    ],
    test_labels: Annotated[Path | None, typer.Option(help="The same with tags to evaluate on.")] = None,
    delimiter: Delimiter = "|",
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Find every problem of a data set before it is trained on; exit code 1 if something must be fixed.

    A table or folder that cannot be read is exit code 2, as everywhere.
    """
    from tagspread.data.check.dataset import run_check

    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside)
    raise typer.Exit(run_check(images, labels, test_labels, as_json, table_options=options))
