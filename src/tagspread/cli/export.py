"""``tagspread export``: export a run as an ONNX file, or as a folder with weights and a model card to share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Quiet, RunPath, may_be_stopped
from tagspread.errors import TagspreadError


def export(
    run: RunPath,
    onnx: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="ONNX file to write. The exported model takes images and returns tag probabilities. Needs the extra "
            "'onnx': pip install '.[onnx]' in the source tree.",
        ),
    ] = None,
    hub: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder to write: weights, tags and a model card, ready to share or to upload to a model hub.",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --onnx: image folder on which to compare the ONNX file with PyTorch.",
            show_default="the image folder used in training",
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --hub: output of 'tagspread evaluate --json', to include in the model card."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    quiet: Quiet = False,
) -> None:
    """Export a run as an ONNX file (--onnx), as a folder to share (--hub), or as both.

    Example:
    $ tagspread export run --onnx tagger.onnx
    """
    from tagspread.progress import Watcher

    if onnx is None and hub is None:
        raise TagspreadError("there is nothing to export; give --onnx FILE, --hub DIR, or both.")
    for given, name, needs, other in ((images, "images", onnx, "onnx"), (metrics, "metrics", hub, "hub")):
        if given is not None and needs is None:
            raise TagspreadError(f"--{name} is used with --{other} only; give that as well, or leave out --{name}.")
    watcher = Watcher(quiet)
    with may_be_stopped("stopped; unfinished files were not kept"):
        if onnx is not None:
            from tagspread.export.compare import LIMIT
            from tagspread.export.onnx import export_onnx

            comparison = export_onnx(run, onnx, images=images, overwrite=overwrite)
            watcher.note(
                f"{onnx}: predicts the same tags as PyTorch on {comparison.words}; probabilities differ by at most "
                f"{comparison.difference:.1g}"
            )
            if comparison.resized > LIMIT:
                watcher.note(
                    "note: the ONNX file resizes images itself, without Pillow; this changes probabilities by up to "
                    f"{comparison.resized:.1g}"
                )
        if hub is not None:
            from tagspread.export.hub import export_hub

            written = export_hub(run, hub, metrics=metrics, overwrite=overwrite)
            watcher.note(f"{written}: ready to upload, or to load with ts.load")
