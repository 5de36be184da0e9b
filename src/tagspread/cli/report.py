"""``tagspread report``: write a run's metrics, charts, thresholds and doubtful images as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import (
    Ignore,
    ImageColumn,
    Outside,
    Quiet,
    RunDelimiter,
    TableImages,
    TagsColumn,
    may_be_stopped,
    say,
    table_options,
)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML page to write; by default RUN/report.html, which is replaced."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Table with tags to evaluate on; by default the run's test images.")
    ] = None,
    images: TableImages = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    no_images: Annotated[
        bool, typer.Option("--no-images", help="Score and show no images; use only the files of the run.")
    ] = False,
    device: Annotated[str, typer.Option(help="Device to run on: auto, cpu or cuda.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file at --out.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write an HTML report about a run: metrics, charts and images in one file that works offline."""
    from tagspread.progress import Watcher
    from tagspread.report.page import write_report

    watcher = Watcher(quiet)
    given = (delimiter, image_column, tags_column, ignore, allow_outside)
    options = table_options(*given) if any(value not in (None, False) for value in given) else None
    with may_be_stopped("stopped; nothing was written"):
        try:
            written = write_report(
                run,
                out,
                labels=labels,
                images=images,
                table_options=options,
                show_images=not no_images,
                device=device,
                overwrite=overwrite,
                progress=watcher.tagging,
            )
        finally:
            watcher.close()
    for what, why in written.missing:
        watcher.note(f"note: not shown: {what[:1].lower()}{what[1:]} ({why})")
    say(str(written.path))
