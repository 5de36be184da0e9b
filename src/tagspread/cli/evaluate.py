"""``tagspread evaluate``: measure a run on labeled images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tagspread.cli.common import (
    Device,
    Ignore,
    ImageColumn,
    Mirror,
    Outside,
    Quiet,
    RunDelimiter,
    RunPath,
    TableImages,
    TagsColumn,
    may_be_stopped,
    say,
    table_options,
)
from tagspread.wording import counted

if TYPE_CHECKING:
    from tagspread.predict.evaluation import Evaluation

WIDE = 140  # columns of a table that goes to a file, which cuts nothing off


def evaluate(
    run: RunPath,
    labels: Annotated[
        Path | None,
        typer.Option(help="Table with tags of images that were not trained on; by default the run's test images."),
    ] = None,
    images: TableImages = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    samples: Annotated[int, typer.Option(min=1, help="Drawings for the intervals.")] = 1000,
    mirror: Mirror = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure a run on labeled images that it was not trained on."""
    from tagspread.predict.evaluation import evaluate as measure
    from tagspread.predict.evaluation import own_test_part
    from tagspread.predict.tagger import load
    from tagspread.progress import Watcher

    watcher = Watcher(quiet or as_json)
    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside)
    with may_be_stopped("stopped"):
        try:
            tagger = load(run, device)
            if labels is None:
                table, words = own_test_part(tagger, images)
                watcher.note(f"on the run's own {len(table):,} {words}, as no --labels are given:")
            found = measure(
                tagger,
                table if labels is None else labels,
                images,
                table_options=options,
                samples=samples,
                progress=watcher.tagging,
                mirror=mirror,
            )
        finally:
            watcher.close()
    if as_json:
        say(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        console = Console()
        _show(found, console if console.is_terminal else Console(width=WIDE))


def _show(found: Evaluation, console: Console) -> None:
    from tagspread.core.bootstrap import count_rare_classes, rare_classes_warning

    table = Table("tag", "images", "AP", "90 %", "threshold", "precision", "recall", "F1")
    for one in sorted(found.classes, key=lambda figures: -1 if figures.ap is None else figures.ap, reverse=True):
        number = f"{one.positives:,}" + (f" of {one.known:,}" if one.known != found.images else "")
        ends = "too few" if one.ap_low is None else f"{_per_cent(one.ap_low)}-{_per_cent(one.ap_high)}"
        cut = "never" if one.threshold is None else f"{one.threshold:.3f}"
        shares = map(_per_cent, (one.precision, one.recall, one.f1))
        table.add_row(escape(one.name), number, _per_cent(one.ap), "" if one.ap is None else ends, cut, *shares)
    console.print(table)
    if found.map is not None:
        say(f"mAP {_per_cent(found.map)} (90 % interval {_per_cent(found.map_low)} to {_per_cent(found.map_high)})")
    few = count_rare_classes([one.positives for one in found.classes])
    if (words := rare_classes_warning(few, len(found.classes))) is not None:
        say(f"note: {words}")
    right, there = (_per_cent(found.decisions[name]) for name in ("OP", "OR"))
    say(f"of 100 tags it gives, {right} are right (OP); of 100 tags that are there, it gives {there} (OR)")
    say("   ".join(f"{name} {_per_cent(value)}" for name, value in found.decisions.items()))
    off, looked_at = _per_cent(found.calibration_error), counted(found.images, "image")
    say(f"probabilities are off by {off} points on average; {looked_at}")
    if found.absent:
        zero = _per_cent(found.map_absent_zero)
        say(f"note: on none of them, so left out of the mAP: {', '.join(found.absent)} (counted as 0: mAP {zero})")
    if found.trained_on is None:
        say("note: the run does not know whether it was trained on any of them: it has no split.csv of files")
    if found.trained_on:
        say(f"note: {found.trained_on:,} of them were trained on with their labels, so the figures flatter")
    if found.thresholds_chosen_on:
        say(
            f"note: the thresholds were chosen on {_of_them(found)}, so precision, recall, F1 and probabilities flatter"
        )
    for line in found.unreadable[:10]:
        say(f"left out: {line}")
    if len(found.unreadable) > 10:
        say(f"and {len(found.unreadable) - 10:,} more that cannot be read")


def _of_them(found: Evaluation) -> str:
    chosen, count = found.thresholds_chosen_on or 0, found.images + len(found.unreadable)
    return "these very images" if chosen >= count else f"{chosen:,} of them"


def _per_cent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
