"""``tagspread pseudo-labels``: show a run's pseudo-labels, export them, merge corrections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tagspread.cli.common import RunPath, say
from tagspread.errors import TagspreadError
from tagspread.progress import Output
from tagspread.wording import counted

if TYPE_CHECKING:
    from tagspread.run.pseudo_labels import Entry, PseudoLabeledImage


def pseudo_labels(
    run: RunPath,
    label_studio: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file to write: Label Studio tasks with pseudo-labels.")
    ] = None,
    fiftyone: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON file to write: the labels of a FiftyOneImageClassificationDataset."),
    ] = None,
    image_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --label-studio: URL of the image folder, unless Label Studio reads the images as local files.",
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="With --label-studio: write at most N images, the least certain ones first."
        ),
    ] = None,
    corrected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Label Studio export with corrected labels; needs --out."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="With --corrected: label table to write. It holds the labels of the run merged with the corrections.",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --corrected: the image folder, if it was moved after training."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
) -> None:
    """Show the pseudo-labels of a run, export them for correction, or merge the corrected labels.

    Pseudo-labels are the labels that the model assigned to unlabeled images in training.

    Examples:
    $ tagspread pseudo-labels run
    $ tagspread pseudo-labels run --label-studio tasks.json --most 100
    $ tagspread pseudo-labels run --corrected corrected.json --out merged.csv
    """
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
        raise TagspreadError("--corrected FILE and --out TABLE are used together; give both or neither.")
    if images is not None and corrected is None:
        raise TagspreadError("--images is used with --corrected FILE only; give that as well.")
    if label_studio is None and (image_url is not None or most is not None):
        raise TagspreadError("--image-url and --most are used with --label-studio FILE only; give that as well.")
    interface = None if label_studio is None else interface_file(label_studio)
    for file in (label_studio, fiftyone, out):  # check all before writing the first
        if file is not None:
            check_output(file, overwrite, ())
    artifact = read_artifact(run)
    check_weights(artifact)
    if label_studio is not None:
        check_interface(label_studio, artifact.classes, overwrite)
    if corrected is not None and out is not None:
        from tagspread.export.corrections import merge_corrected

        labeled, corrections, new_tags = merge_corrected(run, corrected, out, images=images, overwrite=overwrite)
        say(
            f"{out}: {counted(labeled, 'labeled image')} of the run and {counted(corrections, 'corrected image')}; to "
            f"train on it, use --labels {out}"
        )
        if new_tags:
            say(f"note: new tags, unknown (blank) for the run's labeled images: {', '.join(new_tags)}")
        return
    pseudo_labeled, classes = read_pseudo_labels(run), artifact.classes
    if label_studio is not None:
        tasks = write_label_studio(label_studio, pseudo_labeled, classes, run.resolve().name, image_url, most)
        say(f"{label_studio}: {tasks:,} tasks, the least certain first; labeling interface: {interface}")
    if fiftyone is not None:
        write_text(fiftyone, as_json(fiftyone_labels(pseudo_labeled, classes)), errors=ESCAPED)
        say(f"{fiftyone}: {len(pseudo_labeled):,} images for a FiftyOneImageClassificationDataset")
    if label_studio is None and fiftyone is None:
        _show(pseudo_labeled, classes)


def _show(images: Sequence[PseudoLabeledImage], classes: Sequence[str]) -> None:
    table = Table("tag", box=None)
    for heading in ("positive", "ignored", "ever flipped", "lowest positive score"):
        table.add_column(heading, justify="right")
    by_tag: dict[str, list[Entry]] = {name: [] for name in classes}
    for image in images:
        for entry in image.entries:
            by_tag.setdefault(entry.tag, []).append(entry)
    for name, entries in by_tag.items():
        scores = [entry.score for entry in entries if entry.given]
        counts = (len(scores), sum(entry.target == -1 for entry in entries), sum(entry.flips > 0 for entry in entries))
        table.add_row(escape(name), *(f"{count:,}" for count in counts), f"{min(scores):.3f}" if scores else "")
    Output().print(table)
    without = sum(not image.given for image in images)
    say(f"{len(images):,} unlabeled images, {without:,} of them without a positive pseudo-label")
