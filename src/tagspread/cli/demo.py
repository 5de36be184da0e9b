"""``tagspread demo``: the main job on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tagspread.cli.common import Overwrite, Quiet, may_be_stopped, say


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the two runs.")] = Path("demo-run"),
    canvases: Annotated[int, typer.Option(min=100, help="Training canvases, of which 5 % are labeled.")] = 3000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs with the unlabeled set.")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Another seed, other canvases.")] = 0,
    export: Annotated[
        Path | None, typer.Option("--export-folder", help="Only write the images and their CSV files here.")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train labeled-only and CAP on canvases of handwritten digits: no download, no GPU, about a minute."""
    from tagspread.demo import DemoSize, export_folder, run_demo, show_demo
    from tagspread.progress import Watcher

    size = DemoSize(canvases=canvases, test=canvases // 2, epochs=epochs)
    if export is not None:
        export_folder(export, size, seed)
        say(f"wrote {canvases + canvases // 2:,} images, labels.csv and test.csv to {export}")
        return
    with may_be_stopped("stopped"):
        runs = run_demo(out, size, seed, Watcher(quiet), overwrite)
    show_demo(runs, Console())
