"""Commands that use a run: ``predict``, ``evaluate`` and ``thresholds``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

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
from tagspread.errors import TagspreadError
from tagspread.wording import counted

if TYPE_CHECKING:
    from tagspread.predict.evaluation import Evaluation
    from tagspread.predict.tagger import Tagger
    from tagspread.progress import Watcher

WIDE = 140  # columns of a table that goes to a file, which cuts nothing off
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Mirror = Annotated[bool, typer.Option("--mirror", help="Average with the mirror image, at twice the time.")]
Images = Annotated[Path | None, typer.Option(help="Folder the table's paths start from; by default the run's.")]


def predict(
    run: RunPath,
    images: Annotated[list[Path], typer.Argument(help="A folder, images, or a list of them (.txt, .csv).")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Table to write: .csv, .jsonl or .parquet.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Choose the K most probable tags.", metavar="K")] = None,
    threshold: Annotated[float | None, typer.Option(min=0, max=1, help="Choose by this, not the run's own.")] = None,
    fill: Annotated[Path | None, typer.Option(help="Complete this table of labels instead.")] = None,
    fill_blank: Annotated[
        bool, typer.Option("--fill-blank", help="Also fill rows with an empty list of tags.")
    ] = False,
    mirror: Mirror = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Images at a time; fewer need less memory.")] = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Tag images: a table with tags and probabilities, or your own table completed."""
    from tagspread.predict.tagger import load
    from tagspread.progress import Watcher

    if fill is not None and (out is None or len(images) != 1 or not images[0].is_dir()):
        raise TagspreadError("--fill needs one folder of images, which the table's paths start from, and -o FILE.")
    how: dict[str, Any] = {"top": top, "threshold": threshold, "mirror": mirror, "batch": batch}
    watcher = Watcher(quiet)
    with may_be_stopped("stopped; nothing was written"):
        try:
            if fill is None:
                _predict(run, images, out, "|" if delimiter is None else delimiter, device, overwrite, watcher, how)
            else:
                options = table_options(delimiter, image_column, tags_column, ignore, allow_outside)
                more = {"overwrite": overwrite, "blank": fill_blank, "options": options, "progress": watcher.tagging}
                _fill(load(run, device), fill, images[0], out, watcher, how | more)
        finally:
            watcher.close()


def _predict(
    run: Path,
    images: list[Path],
    out: Path | None,
    delimiter: str,
    device: str,
    overwrite: bool,
    watcher: Watcher,
    how: dict[str, Any],
) -> None:
    from tagspread.predict.sources import find_sources
    from tagspread.predict.tables import check_output, open_table
    from tagspread.predict.tagger import load

    if out is not None:
        check_output(out, overwrite)
    sources = find_sources(images)
    tagger = load(run, device)
    errors: list[str] = []  # one per image, empty for those that can be read
    if out is None:
        waiting: list[str] = []  # until one can be read: if none can, that is said once
        for part in tagger.stream(sources.paths, **how):
            for name, tags, error in zip(sources.names[len(errors) :], part.tags, part.errors, strict=False):
                waiting.append(f"{name}: cannot be read ({error})" if error else f"{name}: {delimiter.join(tags)}")
            errors += part.errors
            while waiting and not all(errors):
                say(waiting.pop(0))
        _check_any_readable(errors, sources.paths[0])
        return
    with open_table(out, tagger.classes, overwrite=overwrite, delimiter=delimiter) as table:
        for part in tagger.stream(sources.paths, **how):
            part.images[:] = sources.names[len(errors) : len(errors) + len(part)]
            table.add(part)
            errors += part.errors
            watcher.tagging(len(errors), len(sources.paths))
        _check_any_readable(errors, sources.paths[0])  # or the table would hold nothing, and is not kept
    watcher.close()
    broken = sum(map(bool, errors))
    note = f", {broken:,} of them cannot be read (see its column error)" if broken else ""
    watcher.note(f"{out}: {counted(len(errors), 'image')}{note}")


def _check_any_readable(errors: list[str], first: Path) -> None:
    if all(errors):
        which = f"none of the {len(errors):,} images can be read; the first is {first}"
        raise TagspreadError(f"{first if len(errors) == 1 else which}: {errors[0]}; do the paths lead to images?")


def _fill(tagger: Tagger, table: Path, images: Path, out: Path | None, watcher: Watcher, how: dict[str, Any]) -> None:
    from tagspread.predict.fill import fill_table

    done = fill_table(tagger, table, images, Path(str(out)), **how)
    watcher.close()
    watcher.note(
        f"{out}: {counted(done.cells, 'gap')} filled, {counted(done.rows, 'image')} added; what was known is as it was"
    )
    if done.broken:
        watcher.note(f"note: {counted(done.broken, 'image')} cannot be read, left as before")
    if done.unknown:
        watcher.note(f"note: the run does not know {', '.join(done.unknown)}; those columns were left as they were")
    if done.unlisted:
        watcher.note(f"note: the table has no column for {', '.join(done.unlisted)}")


def evaluate(
    run: RunPath,
    labels: Annotated[
        Path | None,
        typer.Option(help="Table with tags of images that were not trained on; by default the run's test images."),
    ] = None,
    images: Images = None,
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
    how: dict[str, Any] = {"table_options": options, "samples": samples, "progress": watcher.tagging, "mirror": mirror}
    with may_be_stopped("stopped"):
        try:
            tagger = load(run, device)
            if labels is None:
                table, words = own_test_part(tagger, images)
                watcher.note(f"on the run's own {len(table):,} {words}, as no --labels are given:")
            found = measure(tagger, table if labels is None else labels, images, **how)
        finally:
            watcher.close()
    if as_json:
        say(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        console = Console()
        _show(found, console if console.is_terminal else Console(width=WIDE))


def thresholds(
    run: RunPath,
    labels: Annotated[Path, typer.Option(help="Table with tags of images that were not trained on.")],
    policy: Annotated[str, typer.Option(help="f1, fbeta:B, precision:P or match.")] = "f1",
    images: Images = None,
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

    watcher = Watcher(quiet)
    options = table_options(delimiter, image_column, tags_column, ignore, allow_outside)
    how: dict[str, Any] = {"table_options": options, "min_positives": min_positives, "calibrate": calibrate}
    with may_be_stopped("stopped; nothing was changed"):
        try:
            facts = decide_on_table(load(run, device), labels, images, policy, progress=watcher.tagging, **how)
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


def _show(found: Evaluation, console: Console) -> None:
    from tagspread.core.bootstrap import few_in_words, few_positives

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
    few = few_positives([one.positives for one in found.classes])
    if (words := few_in_words(few, len(found.classes))) is not None:
        say(f"note: {words}")
    right, there = (_per_cent(found.decisions[name]) for name in ("OP", "OR"))
    say(f"of 100 tags it gives, {right} are right (OP); of 100 tags that are there, it gives {there} (OR)")
    say("   ".join(f"{name} {_per_cent(value)}" for name, value in found.decisions.items()))
    off, looked_at = _per_cent(found.calibration_error), counted(found.images, "image")
    say(f"probabilities are off by {off} points on average; {looked_at}")
    if found.absent:
        zero = _per_cent(found.map_absent_zero)
        say(f"note: on none of them, so left out of the mAP: {', '.join(found.absent)} (counted as 0: mAP {zero})")
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
