"""``tagspread thresholds``: choose decision thresholds and fit the calibration of a run on labeled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

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
from tagspread.run.thresholds import Expected, ThresholdRow, threshold_rows
from tagspread.wording import counted

WIDE = 140  # width of the table in a file, where nothing needs to be truncated


def thresholds(
    run: RunPath,
    labels: Annotated[Path, typer.Option(metavar="FILE", help="Label table of images that were not used in training.")],
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How to choose the threshold of each tag: f1 (best F1), fbeta:B (best F-beta; B above 1 favors "
            "recall), precision:P (best recall at a precision of at least P, such as precision:0.9), or match (predict "
            "the tag as often as it occurs in the labels).",
        ),
    ] = "f1",
    images: TableImages = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    blank: RunBlankRows = None,
    min_positives: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Tags with fewer than N positive images in --labels share one threshold."
        ),
    ] = 5,
    calibrate: Annotated[bool, typer.Option(help="Also calibrate the probabilities.")] = True,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Choose decision thresholds and calibrate probabilities on labeled images, and store both in the run.

    Evaluate on other images afterwards: on the images that thresholds were chosen on, the metrics are too high.

    Example:
    $ tagspread thresholds run --labels tuning.csv --policy precision:0.9
    """
    from tagspread.predict.evaluation import decide_on_table
    from tagspread.predict.tagger import load
    from tagspread.progress import Watcher
    from tagspread.run.folder import RunFolder

    RunFolder(run).check_idle()
    watcher = Watcher(quiet)
    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside, blank)
    with may_be_stopped("stopped; nothing was changed"):
        try:
            tagger = load(run, device)
            facts = decide_on_table(
                tagger,
                labels,
                images,
                policy,
                table_options=options,
                calibrate=calibrate,
                min_positives=min_positives,
                progress=watcher.tagging,
                note=lambda text: watcher.note(f"note: {text}"),
            )
        finally:
            watcher.close()
    chosen = facts["decision"]
    if trained_on := chosen["trained_on"]:
        watcher.note(
            f"note: {trained_on:,} of these {counted(chosen['images'], 'image')} were used in training, where the "
            "network is overconfident; leave them out of the table"
        )
    watcher.note(f"{run / 'labels.json'}: stored thresholds chosen by policy {policy} on {chosen['chosen_on']}")
    rows = threshold_rows(tagger.classes, facts)
    if not quiet:
        _show(rows)
    if pooled := chosen["classes_with_pooled_threshold"]:
        watcher.note(f"note: these tags share one threshold, as they have too few positives: {', '.join(pooled)}")
        if 2 * len(pooled) > len(facts["thresholds"]):
            other = "" if policy == "match" else "use --policy match, or "
            watcher.note(f"note: this concerns most tags; {other}label more images")
    if shrunken := chosen["classes_with_shrunken_threshold"]:
        watcher.note(
            f"note: these tags have fewer than {chosen['enough_positives']} positives, so the images of the other tags "
            f"count for their thresholds, too: {', '.join(shrunken)}"
        )
    if nowhere := chosen["classes_chosen_nowhere"]:
        watcher.note(f"note: none of these images reaches the threshold of: {', '.join(nowhere)}")
    if never := chosen["classes_never_chosen"]:
        watcher.note(f"note: these tags are never predicted, as no threshold satisfies the policy: {', '.join(never)}")
    if weak := [row.name for row in rows if row.precision is not None and row.precision.value < 0.5]:
        watcher.note(
            f"note: expect less than half of the predictions of these tags to be correct: {', '.join(weak)}. Label "
            "more images of them, or use --policy precision:0.5"
        )
    watcher.note("evaluate on other images; on these the metrics would be too high")


def _show(rows: Sequence[ThresholdRow]) -> None:
    """Print the threshold of each tag with the precision and recall to expect on new images."""
    table = Table("tag", "images", "threshold", "precision", "recall")
    for row in rows:
        cut = "never" if row.threshold is None else f"{row.threshold:.3f}"
        table.add_row(escape(row.name), f"{row.positives:,}", cut, _interval(row.precision), _interval(row.recall))
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)
    say("precision and recall: to expect on new images, with 90 % intervals")


def _interval(rate: Expected | None) -> str:
    return "unknown" if rate is None else f"{100 * rate.value:.0f} ({100 * rate.low:.0f} to {100 * rate.high:.0f})"
