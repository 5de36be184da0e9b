"""``tagspread evaluate``: report mAP, precision, recall and calibration of a run on labeled images."""

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
    Mirror,
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
from tagspread.progress import Output
from tagspread.wording import counted

if TYPE_CHECKING:
    from tagspread.predict.evaluation import Evaluation

WIDE = 140  # width of the table in a file, where nothing needs to be truncated


def evaluate(
    run: RunPath,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Label table of images that were not used in training.",
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
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Bootstrap samples for the intervals.")] = 1000,
    mirror: Mirror = False,
    as_json: AsJson = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure mAP, precision, recall and calibration of a run on labeled images.

    Examples:
    $ tagspread evaluate run
    $ tagspread evaluate run --labels test.csv
    """
    from tagspread.predict.evaluation import evaluate as measure
    from tagspread.predict.evaluation import own_test_part
    from tagspread.predict.tagger import load
    from tagspread.progress import Watcher

    watcher = Watcher(quiet or as_json)
    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside, blank)
    with may_be_stopped("stopped"):
        try:
            tagger = load(run, device)
            if labels is None:
                table, description = own_test_part(tagger, images)
                watcher.note(f"no --labels given: evaluating on the run's {len(table):,} {description}")
            evaluation = measure(
                tagger,
                table if labels is None else labels,
                images,
                table_options=options,
                samples=samples,
                watcher=watcher,
                mirror=mirror,
            )
        finally:
            watcher.close()
    if as_json:
        say(json.dumps(evaluation.to_dict(), indent=2, ensure_ascii=False))
    else:
        console = Output()
        _show(evaluation, console if console.is_terminal else Output(width=WIDE))


def _show(evaluation: Evaluation, console: Console) -> None:
    from tagspread.core.bootstrap import count_rare_classes, rare_classes_warning

    table = Table("tag", "images", "AP", "90 %", "threshold", "precision", "recall", "F1")
    for tag in sorted(evaluation.classes, key=lambda row: -1 if row.ap is None else row.ap, reverse=True):
        positives = f"{tag.positives:,}" + (f" of {tag.known:,}" if tag.known != evaluation.images else "")
        interval = "too few" if tag.ap_low is None else f"{_per_cent(tag.ap_low)}-{_per_cent(tag.ap_high)}"
        threshold = "never" if tag.threshold is None else f"{tag.threshold:.3f}"
        ap = (_per_cent(tag.ap), "" if tag.ap is None else interval)
        rates = map(_per_cent, (tag.precision, tag.recall, tag.f1))
        table.add_row(escape(tag.name), positives, *ap, threshold, *rates)
    console.print(table)
    if evaluation.map is not None:
        interval = f"{_per_cent(evaluation.map_low)} to {_per_cent(evaluation.map_high)}"
        say(f"mAP {_per_cent(evaluation.map)} (90 % interval {interval}) on {counted(evaluation.images, 'image')}")
    else:
        say(f"no mAP: none of the {counted(evaluation.images, 'image')} has a tag")
    few = count_rare_classes([tag.positives for tag in evaluation.classes])
    if (warning := rare_classes_warning(few, len(evaluation.classes))) is not None:
        say(f"note: {warning}")
    precision, recall = (_per_cent(evaluation.decisions[name]) for name in ("OP", "OR"))
    say(f"of 100 predicted tags, {precision} are correct (OP); of 100 true tags, {recall} are predicted (OR)")
    say("   ".join(f"{name} {_per_cent(value)}" for name, value in evaluation.decisions.items()))
    say(f"calibration error: probabilities are off by {_per_cent(evaluation.calibration_error)} points on average")
    if evaluation.absent:
        zero = _per_cent(evaluation.map_absent_zero)
        names = ", ".join(evaluation.absent)
        say(f"note: no image has these tags, so the mAP leaves them out: {names} (mAP {zero} if they count as 0)")
    for note in evaluation.notes:
        say(f"note: {note}")
    total = evaluation.images + len(evaluation.unreadable)
    images = counted(total, "image")
    if evaluation.trained_on is None:
        say("note: the run has no split.csv with files, so it is unknown whether it was trained on these images")
    if evaluation.trained_on:
        say(f"note: {evaluation.trained_on:,} of these {images} were used in training; the metrics are too high")
    if evaluation.thresholds_chosen_on:
        count = evaluation.thresholds_chosen_on
        which = "these images" if count >= total else f"{count:,} of these {images}"
        say(f"note: the thresholds were chosen on {which}; precision, recall, F1 and calibration are too good")
    for line in evaluation.unreadable[:10]:
        say(f"left out: {line}")
    if len(evaluation.unreadable) > 10:
        say(f"and {len(evaluation.unreadable) - 10:,} more that cannot be read")


def _per_cent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
