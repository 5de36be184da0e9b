"""``tagspread demo``: compare CAP with the labeled-only baseline on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tagspread.cli.common import Overwrite, Quiet, may_be_stopped, say


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the two runs.")] = Path("demo-run"),
    canvases: Annotated[
        int, typer.Option(min=100, metavar="N", help="Training images; 5 % of them are labeled.")
    ] = 3000,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs on the unlabeled set.")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="Seed of the generated images.")] = 0,
    export: Annotated[
        Path | None, typer.Option("--export-folder", help="Write the images and CSV files to this folder, and exit.")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Compare CAP with the labeled-only baseline on generated images of digits: about a minute, no GPU."""
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
