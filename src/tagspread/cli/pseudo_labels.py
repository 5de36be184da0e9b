"""``tagspread pseudo-labels``: show a run's pseudo-labels, export them, merge corrections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tagspread.cli.common import say
from tagspread.errors import TagspreadError

if TYPE_CHECKING:
    from tagspread.run.pseudo_labels import Entry, PseudoLabeledImage


def pseudo_labels(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    label_studio: Annotated[Path | None, typer.Option(help="File to write: tasks with predictions, as JSON.")] = None,
    fiftyone: Annotated[
        Path | None, typer.Option(help="File to write: labels of a FiftyOne data set, as JSON.")
    ] = None,
    image_url: Annotated[
        str | None, typer.Option(help="What goes before a name to make a image's address for Label Studio.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="Only the N least sure, for Label Studio.", metavar="N")
    ] = None,
    corrected: Annotated[
        Path | None, typer.Option(help="What Label Studio exported after people corrected it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Table to write: the run's labels and corrections.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of images, for --corrected, if it was moved since training.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are already there.")] = False,
) -> None:
    """Show what the unlabeled images were taken for, have people correct it, and take their corrections back."""
    from tagspread.export.annotation_tools import (
        ESCAPED,
        as_json,
        check_interface,
        fiftyone_labels,
        interface_file,
        write_label_studio,
    )
    from tagspread.files import write_text
    from tagspread.predict.tables import check_output
    from tagspread.run.artifact import check_weights, read_artifact
    from tagspread.run.pseudo_labels import read_pseudo_labels

    if (corrected is None) != (out is None):
        raise TagspreadError("--corrected FILE and --out TABLE belong together; give both or neither.")
    if images is not None and corrected is None:
        raise TagspreadError("--images is about --corrected FILE; give that, too.")
    if label_studio is None and (image_url is not None or most is not None):
        raise TagspreadError("--image-url and --most are about --label-studio FILE; give that, too.")
    interface = None if label_studio is None else interface_file(label_studio)
    for file in (label_studio, fiftyone, out):  # all of them before the first is written
        if file is not None:
            check_output(file, overwrite, ())
    artifact = read_artifact(run)
    check_weights(artifact)
    if label_studio is not None:
        check_interface(label_studio, artifact.classes, overwrite)
    if corrected is not None and out is not None:
        from tagspread.export.corrections import merge_corrected

        known, new, new_tags = merge_corrected(run, corrected, out, images=images, overwrite=overwrite)
        say(f"{out}: {known:,} images of the run's labels and {new:,} corrected by people; train on it with --labels")
        if new_tags:
            say(f"new to the run, so unknown (blank) in its own images: {', '.join(new_tags)}")
        return
    pseudo_labeled, classes = read_pseudo_labels(run), artifact.classes
    if label_studio is not None:
        tasks = write_label_studio(label_studio, pseudo_labeled, classes, run.resolve().name, image_url, most)
        say(f"{label_studio}: {tasks:,} tasks, the least sure first; their labeling interface is {interface}")
    if fiftyone is not None:
        write_text(fiftyone, as_json(fiftyone_labels(pseudo_labeled, classes)), errors=ESCAPED)
        say(f"{fiftyone}: {len(pseudo_labeled):,} images for a FiftyOneImageClassificationDataset")
    if label_studio is None and fiftyone is None:
        _show(pseudo_labeled, classes)


def _show(images: Sequence[PseudoLabeledImage], classes: Sequence[str]) -> None:
    table = Table("tag", box=None)
    for heading in ("given", "left open", "changed at least once", "least sure given"):
        table.add_column(heading, justify="right")
    by_tag: dict[str, list[Entry]] = {name: [] for name in classes}
    for image in images:
        for entry in image.entries:
            by_tag.setdefault(entry.tag, []).append(entry)
    for name, mine in by_tag.items():
        given = [entry.score for entry in mine if entry.given]
        counts = (len(given), sum(entry.target == -1 for entry in mine), sum(entry.flips > 0 for entry in mine))
        table.add_row(escape(name), *(f"{count:,}" for count in counts), f"{min(given):.3f}" if given else "")
    Console().print(table)
    none = sum(not image.given for image in images)
    say(f"{len(images):,} unlabeled images, {none:,} of them without any tag")
