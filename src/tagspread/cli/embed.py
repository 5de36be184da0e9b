"""``tagspread embed``: compute features of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Quiet, may_be_stopped, say
from tagspread.vision.sizes import SMALLEST


def embed(
    images: Annotated[list[Path], typer.Argument(help="A folder, images, or a list of them (.txt, .csv).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .npz with images and features.")],
    backbone: Annotated[str, typer.Option(help="Any timm name.")] = "tf_efficientnet_lite0",
    weights: Annotated[str, typer.Option(help="pretrained or a file.")] = "pretrained",
    image_size: Annotated[
        int | None,
        typer.Option(min=SMALLEST, help="Side to which images are resized; what suits the network if not given."),
    ] = None,
    mirror: Annotated[bool, typer.Option("--mirror/--no-mirror", help="Average with the mirror image.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn images into features with a frozen network, for scikit-learn and other tools."""
    from tagspread.predict.embedding import check_file, embed_images, write_features
    from tagspread.predict.sources import find_sources
    from tagspread.progress import Watcher

    check_file(out, overwrite)
    watcher = Watcher(quiet)
    with may_be_stopped("stopped; nothing was written"):
        try:
            sources = find_sources(images)
            found = embed_images(
                sources.paths, backbone=backbone, weights=weights, image_size=image_size, mirror=mirror,
                device=device, watcher=watcher,
            )  # fmt: skip
        finally:
            watcher.close()
    names = dict(zip(map(str, sources.paths), map(str, sources.names), strict=True))
    found = found._replace(images=[names[image] for image in found.images])
    write_features(found, out, backbone, overwrite=overwrite)
    for name, error in list(found.errors.items())[:10]:
        say(f"left out: {name} ({error})", error=True)
    rows, width = found.features.shape
    left_out = f", {len(found.errors):,} left out" if found.errors else ""
    say(f"wrote {out}: {rows:,} images, {width:,} features each{left_out}")
