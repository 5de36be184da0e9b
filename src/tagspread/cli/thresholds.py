"""``tagspread thresholds``: choose decision thresholds and fit the calibration of a run on labeled images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagspread.cli.common import (
    Device,
    Ignore,
    ImageColumn,
    Outside,
    Quiet,
    RunDelimiter,
    RunPath,
    TableImages,
    TagsColumn,
    may_be_stopped,
    table_options,
)
from tagspread.wording import counted

if TYPE_CHECKING:
    pass


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
    min_positives: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Tags with fewer than N images in --labels share one threshold."),
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
    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside)
    with may_be_stopped("stopped; nothing was changed"):
        try:
            facts = decide_on_table(
                load(run, device),
                labels,
                images,
                policy,
                table_options=options,
                calibrate=calibrate,
                min_positives=min_positives,
                progress=watcher.tagging,
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
    if pooled := chosen["classes_with_pooled_threshold"]:
        watcher.note(f"note: these tags share one threshold, as they have too few positives: {', '.join(pooled)}")
        if 2 * len(pooled) > len(facts["thresholds"]):
            other = "" if policy == "match" else "use --policy match, or "
            watcher.note(f"note: this concerns most tags; {other}label more images")
    if nowhere := chosen["classes_chosen_nowhere"]:
        watcher.note(f"note: none of these images reaches the threshold of: {', '.join(nowhere)}")
    if never := chosen["classes_never_chosen"]:
        watcher.note(f"note: these tags are never predicted, as no threshold satisfies the policy: {', '.join(never)}")
    watcher.note("evaluate on other images; on these the metrics would be too high")
