"""Image embeddings (features) of a pretrained network, for other tools: ``tagspread embed``."""

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
from tagspread.train.feature_cache import FeatureCache, cache_key
from tagspread.train.features import embed
from tagspread.train.preflight import choose_device
from tagspread.train.scoring import resolve_precision
from tagspread.vision.backbones import build_network
from tagspread.vision.sizes import default_image_size


class Embedded(NamedTuple):
    """Embeddings of images.

    Attributes:
        images: names of the images that could be read.
        features: one row per image, averaged over the image and its mirror image if ``mirror`` was set.
        errors: the reason for each image that could not be read, by name.
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
    cache: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Embedded:
    """Compute embeddings of images with a pretrained network, for ``TagSpreadClassifier`` or other tools.

    Args:
        images: paths, a folder, Pillow images or arrays.
        backbone: name of the network: any timm model.
        weights: ``"pretrained"`` or a file.
        image_size: height and width to which images are resized; by default the network's own input size.
        mirror: average over each image and its mirror image; takes twice as long.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        cache: folder of features; images that it holds are not computed again, the others are added. Training with
            the same folder uses the same features.
        watcher: shows the progress.
    """
    place, watcher = choose_device(device), watcher or Watcher(quiet=True)
    network = build_network(backbone, 1, weights=weights).to(place)
    side = default_image_size(backbone) if image_size is None else image_size
    names: list[str] = []
    errors: dict[str, str] = {}
    parts: list[np.ndarray] = []
    total = len(images) if isinstance(images, Sized) else 0
    progress = watcher.begin("computing features")
    shape = (3, side, side)
    caches: dict[bool, FeatureCache | None] = {False: None, True: None}
    if cache is not None:
        for mirrored in caches:
            key = cache_key(network, shape, mirror=mirrored, precision=resolve_precision(place, "auto"))
            caches[mirrored] = FeatureCache(Path(cache), key)
    for chunk in read_chunks(images, shape, ImageModality(shape).suitable_batch(place)):
        good = np.flatnonzero([not error for error in chunk.errors])
        errors |= {name: error for name, error in zip(chunk.names, chunk.errors, strict=True) if error}
        names += [chunk.names[row] for row in good]
        if len(good):
            store = TensorStore(chunk.images, place)
            views = [
                embed(network, store, good, place, mirror=mirrored, cache=caches[mirrored])
                for mirrored in ((False, True) if mirror else (False,))
            ]
            parts.append(torch.stack(views).mean(0).numpy())
        progress(len(names) + len(errors), total or len(names) + len(errors))
    if not parts:
        first = next(iter(errors.items()), None)
        reason = "none was given" if first is None else f"the first is {first[0]}: {first[1]}"
        raise TagspreadError(f"no image could be read ({reason}); give at least one readable image.")
    return Embedded(names, np.concatenate(parts), errors)


def check_file(file: Path, overwrite: bool) -> None:
    """Raise unless embeddings can be written to this file."""
    if file.suffix != ".npz":
        raise TagspreadError(f"{file} does not end in .npz, the format of embeddings; give a file name that does.")
    if file.exists() and not overwrite:
        raise TagspreadError(f"{file} exists; choose another name, or replace it with @overwrite.", overwrite=True)


def write_features(found: Embedded, file: Path, backbone: str, *, overwrite: bool = False) -> None:
    """Write ``images``, ``features`` and ``backbone`` into an ``.npz`` file."""
    check_file(file, overwrite)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TagspreadError(f"{file} cannot be written ({error.strerror}); choose another location.") from None
    with reserve_output(file, overwrite, (".npz",)), atomic_file(file) as opened:
        np.savez(opened, images=np.array(found.images), features=found.features, backbone=np.array(backbone))
