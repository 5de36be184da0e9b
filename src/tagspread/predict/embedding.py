"""``tagspread embed``: compute embeddings (features) of images and write them to a file for other tools."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tagspread.data.images.store import TensorStore
from tagspread.data.modality import ImageModality
from tagspread.errors import TagspreadError
from tagspread.files import atomic_file
from tagspread.predict.images import ImageInput, read_chunks
from tagspread.predict.tables import reserve_output
from tagspread.progress import Watcher
from tagspread.train.features import embed
from tagspread.train.trainer import choose_device
from tagspread.vision.backbones import build_network
from tagspread.vision.sizes import default_image_size


class Embedded(NamedTuple):
    """Features of images.

    Attributes:
        images: what each image is called; those that could not be read are left out.
        features: one row each: the mean of the image's features and its mirror image's.
        errors: images that could not be read, and why.
    """

    images: list[str]
    features: np.ndarray
    errors: dict[str, str]


def embed_images(
    images: ImageInput | Iterable[ImageInput],
    *,
    backbone: str = "tf_efficientnet_lite0",
    weights: str = "pretrained",
    image_size: int | None = None,
    mirror: bool = True,
    device: str = "auto",
    watcher: Watcher | None = None,
) -> Embedded:
    """Return what a pretrained network sees in images, for ``TagSpreadClassifier`` or any other tool.

    Args:
        images: paths, a folder, Pillow images or arrays.
        backbone: the network; any timm name.
        weights: ``"pretrained"`` or a file.
        image_size: side to which images are resized; what suits the network if not given.
        mirror: average with the mirror image's features, at twice the time.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        watcher: is shown the progress.
    """
    place, watcher = choose_device(device), watcher or Watcher(quiet=True)
    network = build_network(backbone, 1, weights=weights).to(place)
    side = default_image_size(backbone) if image_size is None else image_size
    names: list[str] = []
    errors: dict[str, str] = {}
    parts: list[np.ndarray] = []
    total = len(images) if isinstance(images, Sized) else 0
    shape = (3, side, side)
    for chunk in read_chunks(images, shape, ImageModality(shape).suitable_batch(place)):
        good = np.flatnonzero([not error for error in chunk.errors])
        errors |= {name: error for name, error in zip(chunk.names, chunk.errors, strict=True) if error}
        names += [chunk.names[row] for row in good]
        if len(good):
            store = TensorStore(chunk.images, place)
            mirrored = (False, True) if mirror else (False,)
            views = [embed(network, store, good, place, mirror=which) for which in mirrored]
            parts.append(torch.stack(views).mean(0).numpy())
        watcher.embedding(len(names) + len(errors), total or len(names) + len(errors))
    if not parts:
        why = next(iter(errors.items()), None)
        found = "there are none" if why is None else f"the first is {why[0]}: {why[1]}"
        raise TagspreadError(f"no image could be read ({found}); there is nothing to embed.")
    return Embedded(names, np.concatenate(parts), errors)


def check_file(file: Path, overwrite: bool) -> None:
    """Raise unless features may be written there."""
    if file.suffix != ".npz":
        raise TagspreadError(f"{file}: features are written as .npz; give a name that ends so.")
    if file.exists() and not overwrite:
        raise TagspreadError(f"{file} exists; give another name, or replace it with @overwrite.", overwrite=True)


def write_features(found: Embedded, file: Path, backbone: str, *, overwrite: bool = False) -> None:
    """Write ``images``, ``features`` and ``backbone`` into an ``.npz`` file."""
    check_file(file, overwrite)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TagspreadError(f"{file} cannot be written ({error.strerror}); give another place.") from None
    with reserve_output(file, overwrite, (".npz",)), atomic_file(file) as opened:
        np.savez(opened, images=np.array(found.images), features=found.features, backbone=np.array(backbone))
