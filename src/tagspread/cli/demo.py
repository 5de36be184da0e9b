"""``tagspread demo``: compare CAP with the labeled-only baseline on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Overwrite, Quiet, may_be_stopped, say
from tagspread.progress import Output


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the two runs to.")] = Path("demo-run"),
    canvases: Annotated[
        int,
        typer.Option(
            min=100,
            metavar="N",
            help="Number of training images ('canvases', with several digits each); 5 % of them are labeled.",
        ),
    ] = 3000,
    epochs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Epochs on labeled and unlabeled images, after the warm-up.")
    ] = 10,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="Random seed for the images and for training.")
    ] = 0,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export-folder",
            metavar="DIR",
            help="Write the images and their label tables (labels.csv, test.csv) to this folder, and do not train.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Compare CAP with a labeled-only model on generated images of handwritten digits.

    The demo trains two models: one on the labeled images alone, one on labeled and unlabeled images with CAP. It takes
    about a minute, downloads nothing and needs no GPU.

    Example:
    $ tagspread demo --canvases 1000
    """
    from tagspread.demo import DemoSize, export_folder, run_demo, show_demo
    from tagspread.progress import Watcher

    size = DemoSize(canvases=canvases, test=canvases // 2, epochs=epochs)
    if export is not None:
        export_folder(export, size, seed)
        say(f"wrote {canvases + canvases // 2:,} images, labels.csv and test.csv to {export}")
        return
    with may_be_stopped("stopped"):
        runs = run_demo(out, size, seed, Watcher(quiet), overwrite)
    show_demo(runs, Output())
