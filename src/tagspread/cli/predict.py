"""``tagspread predict``: tag images, or complete a table of labels."""

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
    Mirror,
    Outside,
    Quiet,
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
    from tagspread.predict.fill import fill_table
    from tagspread.predict.sources import find_sources
    from tagspread.predict.tables import check_output
    from tagspread.predict.tagger import load
    from tagspread.progress import Watcher

    watcher = Watcher(quiet)
    with may_be_stopped("stopped; nothing was written"):
        try:
            if fill is not None:
                if out is None or len(images) != 1 or not images[0].is_dir():
                    raise TagspreadError(
                        "--fill needs one folder of images, which the table's paths start from, and -o FILE."
                    )
                filled = fill_table(
                    load(run, device),
                    fill,
                    images[0],
                    out,
                    overwrite=overwrite,
                    blank=fill_blank,
                    options=table_options(delimiter, image_column, tags_column, ignore, allow_outside),
                    progress=watcher.tagging,
                    top=top,
                    threshold=threshold,
                    mirror=mirror,
                    batch=batch,
                )
                watcher.close()
                _tell_filled(filled, out, watcher)
                return
            if out is not None:
                check_output(out, overwrite)
            sources, tagger = find_sources(images), load(run, device)
            predict_parts = partial(
                tagger.stream, sources.paths, top=top, threshold=threshold, mirror=mirror, batch=batch
            )
            separator = "|" if delimiter is None else delimiter
            if out is None:
                _print_tags(sources, predict_parts(), separator)
            else:
                _write_table(out, tagger.classes, sources, predict_parts, separator, overwrite, watcher)
        finally:
            watcher.close()


def _print_tags(sources: Sources, parts: Iterable[Predictions], delimiter: str) -> None:
    errors: list[str] = []  # one per image, empty for those that can be read
    waiting: list[str] = []  # until one can be read: if none can, that is said once
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
    watcher: Watcher,
) -> None:
    from tagspread.predict.tables import open_table

    errors: list[str] = []  # one per image, empty for those that can be read
    with open_table(out, classes, overwrite=overwrite, delimiter=delimiter) as table:
        for part in predict_parts():  # once the file is reserved
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


def _tell_filled(filled: Filled, out: Path, watcher: Watcher) -> None:
    watcher.note(
        f"{out}: {counted(filled.cells, 'gap')} filled, {counted(filled.rows, 'image')} added; what was known is as it "
        "was"
    )
    if filled.broken:
        watcher.note(f"note: {counted(filled.broken, 'image')} cannot be read, left as before")
    if filled.unknown:
        watcher.note(f"note: the run does not know {', '.join(filled.unknown)}; those columns were left as they were")
    if filled.unlisted:
        watcher.note(f"note: the table has no column for {', '.join(filled.unlisted)}")
