"""``tagspread report``: write a run's metrics, charts, thresholds and doubtful images as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import (
    Device,
    Ignore,
    ImageColumn,
    Outside,
    Quiet,
    RunBlankRows,
    RunDelimiter,
    RunPath,
    TableImages,
    TagsColumn,
    may_be_stopped,
    say,
    table_options,
)


def report(
    run: RunPath,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="HTML file to write. RUN/report.html is replaced without asking.",
            show_default="RUN/report.html",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Label table of the images to evaluate on.",
            show_default="the run's own test images",
        ),
    ] = None,
    images: TableImages = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    blank: RunBlankRows = None,
    no_images: Annotated[
        bool,
        typer.Option("--no-images", help="Use only the files of the run: do not read, score or show images."),
    ] = False,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file given with --out.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write an HTML report about a run: metrics, charts and example images in one file that works offline.

    Example:
    $ tagspread report run
    """
    from tagspread.progress import Watcher
    from tagspread.report.page import write_report

    watcher = Watcher(quiet)
    given = (delimiter, image_column, tags_column, ignore, allow_outside, blank)
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
                watcher=watcher,
            )
        finally:
            watcher.close()
    for what, why in written.missing:
        watcher.note(f"note: not shown: {what[:1].lower()}{what[1:]} ({why})")
    say(str(written.path))
