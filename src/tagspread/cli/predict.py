"""``tagspread predict``: predict tags and probabilities of images, or fill in the unknown labels of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagspread.cli.common import (
    Device,
    Ignore,
    ImageColumn,
    ImagePaths,
    Mirror,
    Outside,
    OverwriteFile,
    Quiet,
    RunBlankRows,
    RunDelimiter,
    RunPath,
    TagsColumn,
    may_be_stopped,
    say,
    table_options,
)
from tagspread.errors import TagspreadError
from tagspread.wording import counted

if TYPE_CHECKING:
    from tagspread.predict.fill import Filled
    from tagspread.predict.predictions import Predictions
    from tagspread.predict.sources import Sources
    from tagspread.progress import Watcher


def predict(
    run: RunPath,
    images: ImagePaths,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Table to write: .csv, .jsonl or .parquet. By default, the tags are printed. With --fill: required, "
            ".csv or .tsv.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Predict the K most probable tags, regardless of thresholds; with --threshold, at most K tags.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="P",
            help="Use this threshold for all tags.",
            show_default="the thresholds stored in the run",
        ),
    ] = None,
    fill: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Copy this label table to --out, fill in its unknown labels, and add a row for each image in IMAGES "
            "that is not listed. Known labels do not change. To fill rows without a tag, add --blank unlabeled. IMAGES "
            "must be a folder.",
        ),
    ] = None,
    mirror: Mirror = False,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Images per batch. Smaller batches need less memory.",
            show_default="chosen for the device",
        ),
    ] = None,
    delimiter: RunDelimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    blank: RunBlankRows = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Write names and tags to a CSV file unchanged. By default, those that a spreadsheet would execute as "
            "a formula (they begin with =, +, - or @) get a prefix: ./ for names, the delimiter for tags.",
        ),
    ] = False,
    device: Device = "auto",
    overwrite: OverwriteFile = False,
    quiet: Quiet = False,
) -> None:
    """Predict tags for images, or fill in the unknown labels of a label table.

    Examples:
    $ tagspread predict run photos -o tags.csv
    $ tagspread predict run photos --fill labels.csv -o completed.csv
    """
    from tagspread.predict.fill import fill_table
    from tagspread.predict.sources import find_sources
    from tagspread.predict.tables import check_output
    from tagspread.predict.tagger import load
    from tagspread.progress import Watcher

    watcher = Watcher(quiet)
    with may_be_stopped("stopped; nothing was written"):
        try:
            if fill is not None:
                if len(images) != 1 or not images[0].is_dir():
                    raise TagspreadError(
                        "--fill needs one folder of images, which the table's paths are relative to; give it as IMAGES."
                    )
                if out is None:
                    completed = fill.with_stem(f"{fill.stem}-completed")
                    raise TagspreadError(
                        f"--out is missing: --fill writes a new table; give its name, such as --out {completed}"
                    )
                filled = fill_table(
                    load(run, device),
                    fill,
                    images[0],
                    out,
                    overwrite=overwrite,
                    options=table_options(delimiter, image_column, tags_column, ignore, allow_outside, blank),
                    progress=watcher.tagging,
                    top=top,
                    threshold=threshold,
                    mirror=mirror,
                    batch=batch,
                )
                watcher.close()
                _report_filled(filled, out, watcher)
                return
            if out is not None:
                check_output(out, overwrite)
            sources, tagger = find_sources(images), load(run, device)
            for note in sources.notes:
                watcher.note(f"note: {note}")
            predict_parts = partial(
                tagger.stream, sources.paths, top=top, threshold=threshold, mirror=mirror, batch=batch
            )
            separator = "|" if delimiter is None else delimiter
            if out is None:
                _print_tags(sources, predict_parts(), separator)
            else:
                _write_table(out, tagger.classes, sources, predict_parts, separator, overwrite, raw, watcher)
        finally:
            watcher.close()


def _print_tags(sources: Sources, parts: Iterable[Predictions], delimiter: str) -> None:
    errors: list[str] = []  # one per image, empty for those that can be read
    waiting: list[str] = []  # printed once an image can be read; if none can, there is one error instead
    for part in parts:
        for name, tags, error in zip(sources.names[len(errors) :], part.tags, part.errors, strict=False):
            waiting.append(f"{name}: cannot be read ({error})" if error else f"{name}: {delimiter.join(tags)}")
        errors += part.errors
        while waiting and not all(errors):
            say(waiting.pop(0))
    _check_any_readable(errors, sources.paths[0])


def _write_table(
    out: Path,
    classes: tuple[str, ...],
    sources: Sources,
    predict_parts: Callable[[], Iterable[Predictions]],
    delimiter: str,
    overwrite: bool,
    raw: bool,
    watcher: Watcher,
) -> None:
    from tagspread.predict.tables import open_table

    errors: list[str] = []  # one per image, empty for those that can be read
    with open_table(out, classes, overwrite=overwrite, delimiter=delimiter, raw=raw) as table:
        for part in predict_parts():  # once the file is reserved
            part.images[:] = sources.names[len(errors) : len(errors) + len(part)]
            table.add(part)
            errors += part.errors
            watcher.tagging(len(errors), len(sources.paths))
        _check_any_readable(errors, sources.paths[0])  # a table without any prediction is not kept
    watcher.close()
    broken = sum(map(bool, errors))
    note = f"; {broken:,} of them cannot be read (see the column 'error')" if broken else ""
    watcher.note(f"{out}: {counted(len(errors), 'image')}{note}")


def _check_any_readable(errors: list[str], first: Path) -> None:
    if all(errors):
        subject = f"none of the {len(errors):,} images can be read; the first is {first}"
        raise TagspreadError(f"{first if len(errors) == 1 else subject}: {errors[0]}; check that the paths are images.")


def _report_filled(filled: Filled, out: Path, watcher: Watcher) -> None:
    watcher.note(
        f"{out}: {counted(filled.cells, 'gap')} filled, {counted(filled.rows, 'image')} added; known labels are "
        "unchanged"
    )
    if filled.broken:
        watcher.note(f"note: {counted(filled.broken, 'image')} cannot be read; the gaps of unreadable images stay")
    for note in filled.notes:
        watcher.note(f"note: {note}")
    if filled.unknown:
        watcher.note(f"note: the run has no tag {', '.join(filled.unknown)}; these columns are unchanged")
    if filled.unlisted:
        watcher.note(f"note: the table has no column for these tags of the run: {', '.join(filled.unlisted)}")
