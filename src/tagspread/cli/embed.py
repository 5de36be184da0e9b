"""``tagspread embed``: compute embeddings (features) of images with a frozen network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Device, ImagePaths, OverwriteFile, Quiet, may_be_stopped, say
from tagspread.vision.sizes import LARGEST, SMALLEST
from tagspread.wording import counted

BACKBONE = "tf_efficientnet_lite0"


def embed(
    images: ImagePaths,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help=".npz file to write, with the arrays 'images' (names) and 'features'."
        ),
    ],
    backbone: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Network: any model of the timm library. By default EfficientNet-Lite0.",
            show_default=False,
        ),
    ] = BACKBONE,
    weights: Annotated[
        str, typer.Option(metavar="WEIGHTS", help="Weights: pretrained, or a .safetensors or .pth file.")
    ] = "pretrained",
    image_size: Annotated[
        int | None,
        typer.Option(
            min=SMALLEST,
            max=LARGEST,
            metavar="PIXELS",
            help="Height and width to which images are resized.",
            show_default="chosen for the network",
        ),
    ] = None,
    mirror: Annotated[
        bool,
        typer.Option(
            "--mirror/--no-mirror", help="Average the features of each image and its mirror image. Takes twice as long."
        ),
    ] = True,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder in which to cache features. Later runs of 'embed' and of 'tagspread train --cache DIR' reuse "
            "them.",
        ),
    ] = None,
    device: Device = "auto",
    overwrite: OverwriteFile = False,
    quiet: Quiet = False,
) -> None:
    """Compute embeddings (features) of images with a pretrained network, for scikit-learn and other tools.

    Example:
    $ tagspread embed photos -o features.npz
    """
    from tagspread.predict.embedding import check_file, embed_images, write_features
    from tagspread.predict.sources import find_sources
    from tagspread.progress import Watcher

    check_file(out, overwrite)
    watcher = Watcher(quiet)
    with may_be_stopped("stopped; nothing was written"):
        try:
            sources = find_sources(images)
            for note in sources.notes:
                watcher.note(f"note: {note}")
            embedded = embed_images(
                sources.paths, backbone=backbone, weights=weights, image_size=image_size, mirror=mirror,
                device=device, cache=cache, watcher=watcher,
            )  # fmt: skip
        finally:
            watcher.close()
    names = dict(zip(map(str, sources.paths), map(str, sources.names), strict=True))
    embedded = embedded._replace(images=[names[image] for image in embedded.images])
    write_features(embedded, out, backbone, overwrite=overwrite)
    for name, error in list(embedded.errors.items())[:10]:
        say(f"left out: {name} ({error})", error=True)
    rows, width = embedded.features.shape
    left_out = f"; {counted(len(embedded.errors), 'unreadable image')} left out" if embedded.errors else ""
    say(f"wrote {out}: {counted(rows, 'image')}, {width:,} features each{left_out}")
