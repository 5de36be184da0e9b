"""``tagspread suggest``: which unlabeled images of a run to label next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Device, OverwriteFile, Quiet, RunPath, say


def suggest(
    run: RunPath,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="CSV file to write: image, strategy, and tags to check first."
        ),
    ],
    count: Annotated[int, typer.Option("--number", "-n", min=1, metavar="N", help="Number of images.")] = 100,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="mixture (border, disagree and random images), border (images at the border between positive "
            "and negative pseudo-labels of a tag), rare (images that probably have a tag with few positive labels), "
            "disagree (images on which the model and the labeled-only model, or the image and its mirror image, "
            "disagree), diverse (images unlike all labeled ones), or random (an unbiased sample).",
        ),
    ] = "mixture",
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The image folder, if it was moved after training.")
    ] = None,
    device: Device = "auto",
    overwrite: OverwriteFile = False,
    quiet: Quiet = False,
) -> None:
    """Suggest which unlabeled images of a run to label next.

    The first call scores all unlabeled images; later calls reuse the scores. Reviewed images are not suggested again.
    The images of the strategy 'random' are an unbiased sample: after you review them with 'tagspread review',
    'tagspread audit' estimates class frequencies from them.

    Example:
    $ tagspread suggest run -n 100 -o next.csv
    """
    from tagspread.predict.tables import check_output
    from tagspread.progress import Watcher
    from tagspread.review.strategies import check_strategy
    from tagspread.review.suggest import suggest_images, write_suggestions

    check_strategy(strategy)
    check_output(out, overwrite, (".csv",))
    suggestions = suggest_images(run, count, strategy, images=images, device=device, watcher=Watcher(quiet))
    write_suggestions(out, suggestions)
    if not quiet:
        for note in suggestions.notes:
            say(note)
        say(f"{out}: {suggestions.in_words()}; {suggestions.left:,} unlabeled images are left")
