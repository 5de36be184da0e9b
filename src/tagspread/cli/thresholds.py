"""``tagspread thresholds``: choose the thresholds and the calibration of a run."""

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
    labels: Annotated[Path, typer.Option(help="Table with tags of images that were not trained on.")],
    policy: Annotated[str, typer.Option(help="f1, fbeta:B, precision:P or match.")] = "f1",
    images: TableImages = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    min_positives: Annotated[int, typer.Option(min=1, help="Classes with fewer share one threshold.")] = 5,
    calibrate: Annotated[bool, typer.Option(help="Also fit the probabilities.")] = True,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Choose the run's thresholds, and its calibration, on labeled images of yours; kept in its labels.json."""
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
    if seen := chosen["trained_on"]:
        watcher.note(
            f"note: {seen:,} of these {counted(chosen['images'], 'image')} were trained on, so thresholds and "
            "probabilities will be too sure elsewhere; better leave those out of the table"
        )
    watcher.note(f"thresholds for {policy} on {chosen['chosen_on']}: {run / 'labels.json'}")
    if shared := chosen["classes_with_pooled_threshold"]:
        watcher.note(f"note: too few positives for a threshold of their own, so they share one: {', '.join(shared)}")
        if 2 * len(shared) > len(facts["thresholds"]):
            other = "" if policy == "match" else "by --policy match or "
            watcher.note(f"note: that is most of them; thresholds {other}on more images may serve better")
    if nowhere := chosen["classes_chosen_nowhere"]:
        watcher.note(f"note: none of these images reaches the threshold of: {', '.join(nowhere)}")
    if never := chosen["classes_never_chosen"]:
        watcher.note(f"note: never chosen, as no threshold keeps the policy: {', '.join(never)}")
    watcher.note("measure on other images: on these the figures would flatter")
