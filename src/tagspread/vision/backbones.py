"""Backbones by name: any timm model, ``resnet50`` and ``resnet50_v1`` as in the papers, ``small`` for tiny images.

A :class:`TagNet` takes uint8 images. Scaling and normalization are part of the network, so training, scoring and
exported models always agree on them.
"""

from __future__ import annotations

import difflib
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tagspread.errors import Blank, TagspreadError, check_choice
from tagspread.vision.augment import Views
from tagspread.vision.heads import LinearHead, MLDecoder
from tagspread.vision.offline import packaged_file, packaged_weights
from tagspread.vision.weights import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Weights,
    read_weights,
    timm_download,
    torchvision_resnet50,
    without_classifier,
)


class TagNet(nn.Module):
    """A tagging network: a backbone and a head, from images (B x 3 x H x W, uint8) to logits (B x classes)."""

    parts = 1  # number of inputs made from each image in training

    def __init__(
        self, backbone: nn.Module, head: LinearHead | MLDecoder, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        # (x / 255 - mean) / std as one multiply-add
        self.register_buffer("scale", (1 / (255 * torch.tensor(std))).view(1, -1, 1, 1))
        self.register_buffer("shift", (-torch.tensor(mean) / torch.tensor(std)).view(1, -1, 1, 1))
        self.scale: Tensor
        self.shift: Tensor

    def prepare(self, images: Tensor) -> Tensor:
        """Scale and normalize images, in channels-last memory format, which is fastest for convolutions."""
        values = images.to(torch.float32, memory_format=torch.channels_last)
        return torch.addcmul(self.shift, values, self.scale)

    def show(self, views: Views, images: Tensor, rows: np.ndarray, epoch: int, cutout: bool) -> Tensor:
        """Return the network's training input for these images: their strong views."""
        return views.strong(images, rows, epoch, cutout=cutout)

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features that a linear head takes."""
        return self.backbone(self.prepare(images))  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        """Return one logit per class."""
        if self.head.wants_map:
            return self.head(self.backbone.forward_features(self.prepare(images)))  # type: ignore[operator, no-any-return]
        return self.head(self.features(images))  # type: ignore[no-any-return]


def check_linear(network: TagNet, method: str) -> None:
    """Raise unless the network has a linear head, which the method replaces by its own."""
    if not isinstance(network.head, LinearHead):
        raise TagspreadError(f"{method} replaces the linear head by its own; set head to 'linear'.")


class SmallNet(nn.Module):
    """Four convolutions for tiny images and tests; trains from scratch on a CPU in seconds."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        channels = (3, width, width, 2 * width, 4 * width)
        blocks: list[nn.Module] = []
        for i, (a, b) in enumerate(itertools.pairwise(channels)):
            blocks += [nn.Conv2d(a, b, 3, stride=1 + i % 2, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*blocks)
        self.num_features = channels[-1]

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature map."""
        return self.body(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Return the features pooled by their maximum, since a tag may be in any corner of the image."""
        return self.forward_features(x).amax((2, 3))


class _Plan(NamedTuple):
    architecture: str
    download: str | None  # "timm", "torchvision", or None if there are no weights to download


def _plan(name: str) -> _Plan:
    if name == "small":
        return _Plan("small", None)
    if name == "resnet50":
        return _Plan("resnet50", "torchvision")
    if name == "resnet50_v1":
        return _Plan("resnet50", None)
    import timm  # takes as long to import as torch, so it is imported only where needed

    if not timm.is_model(name) or ("." in name and not timm.is_model_pretrained(name)):
        names = ["small", "resnet50_v1", *timm.list_models()]
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        raise TagspreadError(
            f"there is no backbone {name!r}; use 'small', 'resnet50_v1' or any timm name"
            + (f", such as {', '.join(close)}." if close else ".")
        )
    return _Plan(name, "timm")


def check_network(name: str, weights: str) -> None:
    """Raise if a network or a weights file does not exist, before any time is spent."""
    _plan(name)
    if weights not in ("pretrained", "none") and not Path(weights).is_file():
        read_weights(weights)


def build_network(
    name: str, classes: int, *, weights: str = "pretrained", head: str = "linear", normalize: str = "weights"
) -> TagNet:
    """Build the network of that name with a new head for ``classes`` classes.

    Args:
        name: ``small``, ``resnet50``, ``resnet50_v1``, or any timm name.
        classes: number of classes.
        weights: ``"pretrained"`` (downloaded), ``"none"`` or a file (safetensors, or torch tensors).
        head: ``"linear"`` or ``"ml_decoder"``.
        normalize: ``"weights"`` (as the weights were trained), ``"imagenet"``, or ``"none"`` (images in 0..1).

    >>> build_network("small", 3, weights="none")(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 3])
    """
    check_choice("head", head, ("linear", "ml_decoder"))
    check_choice("normalize", normalize, ("weights", "imagenet", "none"))
    return add_head(build_backbone(name, weights), classes, head=head, normalize=normalize)


class Backbone(NamedTuple):
    """A network without its classifier, and the normalization that its weights were trained with."""

    network: nn.Module
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


def build_backbone(name: str, weights: str = "pretrained") -> Backbone:
    """Build the network of that name without a head and load its weights; this needs no data."""
    network, loaded = _backbone(name, _plan(name), weights)
    return Backbone(network, loaded.mean, loaded.std)


def add_head(made: Backbone, classes: int, *, head: str = "linear", normalize: str = "weights") -> TagNet:
    """Add a new head to a backbone; the arguments are those of :func:`build_network`."""
    backbone = made.network
    channels = int(backbone.num_features)  # type: ignore[arg-type]
    pooled = int(getattr(backbone, "head_hidden_size", channels))  # some networks widen the pooled features
    top = LinearHead(pooled, classes) if head == "linear" else MLDecoder(channels, classes)
    default = getattr(backbone, "pretrained_cfg", {})  # timm's normalization, for weights that do not state theirs
    mean, std = {
        "weights": (made.mean or default.get("mean", IMAGENET_MEAN), made.std or default.get("std", IMAGENET_STD)),
        "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
        "none": ((0.0,) * 3, (1.0,) * 3),
    }[normalize]
    network = TagNet(backbone, top, tuple(mean), tuple(std))
    return network.to(memory_format=torch.channels_last)  # convolutions are faster in this format, also on CPUs


def _backbone(name: str, plan: _Plan, weights: str) -> tuple[nn.Module, Weights]:
    """Return the network without its classifier and with its weights loaded, and the facts about the weights."""
    if plan.architecture == "small":
        if weights not in ("none", "pretrained"):
            raise TagspreadError("backbone 'small' has no pretrained weights; it trains from scratch, so give 'none'.")
        return SmallNet(), Weights({}, (0.5,) * 3, (0.5,) * 3)
    import timm

    if weights == "pretrained" and plan.download == "timm":
        if (file := packaged_file(name)) is None:
            return timm_download(name), Weights({})
        loaded = packaged_weights(file, name, timm.create_model(name, pretrained=False))
        network = timm.create_model(name, pretrained=False, num_classes=0)
        _load(network, loaded, name)
        return network, loaded

    network = timm.create_model(plan.architecture, pretrained=False, num_classes=0)
    if name == "resnet50_v1":
        _original_strides(network)
    if weights == "none":
        return network, Weights({})
    if weights == "pretrained":
        if plan.download is None:
            raise TagspreadError(
                f"{name} has no weights to download; give a file with @weights.", weights=Blank("FILE")
            )
        loaded = torchvision_resnet50()
    else:
        loaded = read_weights(weights)
    _load(network, loaded, name)
    return network, loaded


def _original_strides(network: nn.Module) -> None:
    """Put the stride of each stage into its first 1 x 1 convolution, as in the original paper by He et al."""
    for stage in ("layer2", "layer3", "layer4"):
        for convolution, stride in (("conv1", 2), ("conv2", 1)):
            network.get_submodule(f"{stage}.0.{convolution}").stride = (stride, stride)  # type: ignore[assignment]


def _load(network: nn.Module, loaded: Weights, name: str) -> None:
    """Load the weights strictly, except for the classifier: a silent mismatch would train a half-random network."""
    state = network.state_dict()
    given = without_classifier(loaded.tensors, state)
    missing = [key for key in state if key not in given and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in given if key not in state]
    misshapen = [key for key in given if key in state and given[key].shape != state[key].shape]
    if missing or unexpected or misshapen:
        example = (missing or unexpected or misshapen)[0]
        raise TagspreadError(
            f"the weights of {loaded.source} do not fit {name}: {len(missing)} tensors missing, {len(unexpected)} "
            f"unknown, {len(misshapen)} of another shape (such as {example!r}). Give weights of exactly this network."
        )
    network.load_state_dict(given, strict=False)
