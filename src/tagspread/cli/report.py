"""``tagspread report``: write one page about a run."""

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
    TagsColumn,
    may_be_stopped,
    say,
    table_options,
)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Page to write, .html; else RUN/report.html is renewed."),
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Table with tags to judge by, if not the run's own.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder the table's paths start from, or the run's images were moved to.")
    ] = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    no_images: Annotated[
        bool, typer.Option("--no-images", help="Score and show no image: only what the run folder tells.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already at --out.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write one page about a run: figures, charts, images; for any browser, without a network."""
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
