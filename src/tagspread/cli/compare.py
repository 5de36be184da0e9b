"""``tagspread compare``: the paired difference of two runs on the same images, overall and per tag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tagspread.cli.common import (
    AsJson,
    Device,
    Ignore,
    ImageColumn,
    Outside,
    Quiet,
    RunBlankRows,
    RunDelimiter,
    TagsColumn,
    may_be_stopped,
    say,
    table_options,
)
from tagspread.wording import points

if TYPE_CHECKING:
    from tagspread.predict.comparison import Comparison

WIDE = 140  # width of the table in a file, where nothing needs to be truncated


def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="Folder of the first run, the earlier one.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Folder of the second run, the later one.")],
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Label table of images that neither run was trained on.",
            show_default="the test images that both runs have",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Image folder. With --labels: the folder that its paths are relative to. Otherwise: the new path of "
            "the image folder of RUN_B, if it was moved.",
            show_default="the image folder of RUN_B",
        ),
    ] = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    blank: RunBlankRows = None,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Bootstrap samples for the intervals.")] = 1000,
    as_json: AsJson = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Compare two runs on the same images: the difference in mAP, and in average precision per tag, with intervals.

    Images are matched by content, so they may have been moved or renamed. To retrain with the same test images, use
    'tagspread train ... --compare RUN_A'.

    Example:
    $ tagspread compare run corrected-run
    """
    from tagspread.predict.comparison import compare_runs
    from tagspread.progress import Watcher

    watcher = Watcher(quiet or as_json)
    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside, blank)
    with may_be_stopped("stopped"):
        try:
            comparison = compare_runs(
                first,
                second,
                labels,
                images,
                table_options=options,
                samples=samples,
                device=device,
                progress=watcher.tagging,
            )
        finally:
            watcher.close()
    if as_json:
        say(json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False))
    else:
        show_comparison(comparison)


def show_comparison(comparison: Comparison) -> None:
    """Print the tags, from the largest gain to the largest loss, and the verdict."""
    table = Table("tag", "images", "AP before", "AP after", "difference", "90 %")
    for tag in sorted(comparison.tags, key=lambda tag: (tag.before is None, (tag.before or 0.0) - (tag.after or 0.0))):
        if tag.before is None or tag.after is None:
            table.add_row(escape(tag.name), f"{tag.positives:,}", "", "", "", "")
            continue
        interval = "too few" if tag.low is None or tag.high is None else f"{points(tag.low)} to {points(tag.high)}"
        before, after = (f"{100 * value:.1f}" for value in (tag.before, tag.after))
        table.add_row(escape(tag.name), f"{tag.positives:,}", before, after, points(tag.after - tag.before), interval)
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)
    say(comparison.verdict)
    for note in comparison.notes:
        say(f"note: {note}")
