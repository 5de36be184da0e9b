"""``tagspread export``: write a run as ONNX or as a folder to share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Quiet, may_be_stopped
from tagspread.errors import TagspreadError


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    onnx: Annotated[Path | None, typer.Option(help="One file for any ONNX runtime: images in, tags out.")] = None,
    hub: Annotated[Path | None, typer.Option(help="Folder with weights, tags and a model card, to hand on.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="Images to compare ONNX and PyTorch on; by default the run's own.")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="What 'tagspread evaluate --json' printed, for the model card.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are already there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a run as one ONNX file, or as a folder with a model card."""
    from tagspread.progress import Watcher

    if onnx is None and hub is None:
        raise TagspreadError("say what to write: --onnx FILE, --hub DIR, or both.")
    for given, name, needs, other in ((images, "images", onnx, "onnx"), (metrics, "metrics", hub, "hub")):
        if given is not None and needs is None:
            raise TagspreadError(f"--{name} goes with --{other}, which is not there.")
    watcher = Watcher(quiet)
    with may_be_stopped("stopped; what was not finished is not there"):
        if onnx is not None:
            from tagspread.export.compare import LIMIT
            from tagspread.export.onnx import export_onnx

            found = export_onnx(run, onnx, images=images, overwrite=overwrite)
            watcher.note(f"{onnx}: same tags as PyTorch on {found.words}, probabilities within {found.difference:.1g}")
            if found.resized > LIMIT:
                watcher.note(
                    f"note: where the file resizes, not Pillow, probabilities differ by up to {found.resized:.1g}"
                )
        if hub is not None:
            from tagspread.export.hub import export_hub

            watcher.note(f"{export_hub(run, hub, metrics=metrics, overwrite=overwrite)}: for ts.load, or to upload")
