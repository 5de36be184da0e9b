"""Where pretrained weights come from: a file of yours, or a download, and what they expect of the pictures."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tagspread.errors import TagspreadError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSIFIERS = ("fc.", "classifier.", "head.fc.", "head.")  # the part that knows ImageNet's classes, left behind


class Weights(NamedTuple):
    """A network's tensors by name, and the normalisation they were trained with."""

    tensors: dict[str, Tensor]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    source: str = ""


def read_weights(path: str | Path) -> Weights:
    """Read a safetensors file, or a torch file that holds tensors only: no code in it is ever run."""
    file = Path(path)
    if not file.is_file():
        raise TagspreadError(f"weights: there is no file {file}; give a .safetensors or .pth file, or 'none'.")
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, framework="pt") as opened:
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
                about = opened.metadata() or {}
        except SafetensorError as error:
            raise TagspreadError(
                f"weights: {file} is no readable safetensors file ({error}); fetch it again."
            ) from None
        return Weights(
            _as_float(tensors),
            _numbers(about.get("mean"), IMAGENET_MEAN),
            _numbers(about.get("std"), IMAGENET_STD),
            about.get("source", file.name),
        )
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; all mean that the file is not plain tensors
        first = str(error).splitlines()[0]
        raise TagspreadError(
            f"weights: {file} does not hold plain tensors ({first}); convert it to safetensors where you trust it."
        ) from None
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else {}
    if not tensors or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise TagspreadError(f"weights: {file} holds no dictionary of tensors; save model.state_dict().")
    return Weights(_as_float(tensors), source=file.name)


def torchvision_resnet50() -> Weights:
    """Download torchvision's IMAGENET1K_V1 weights, the ones of the paper."""
    from torchvision.models import ResNet50_Weights

    try:
        tensors = ResNet50_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True)
    except OSError as error:
        raise no_download("resnet50", error) from None
    return Weights(dict(tensors), source="torchvision ResNet50_Weights.IMAGENET1K_V1")


def timm_download(name: str) -> nn.Module:
    """Return timm's pretrained network without its classifier; from the local cache where there is no network."""
    import timm
    from huggingface_hub import constants

    online = constants.HF_HUB_OFFLINE
    try:
        socket.getaddrinfo("huggingface.co", 443)
    except OSError:
        constants.HF_HUB_OFFLINE = True  # or the hub's client would go on trying for most of a minute
    try:
        return timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError) as error:
        raise no_download(name, error) from None
    finally:
        constants.HF_HUB_OFFLINE = online


def no_download(backbone: str, error: Exception) -> TagspreadError:
    """Return the error for weights that cannot be had from here."""
    return TagspreadError(
        f"the pretrained weights of {backbone} could not be downloaded ({str(error).splitlines()[0][:120]}). "
        "Give a file with --weights FILE, start untrained with --weights none, or choose another --backbone."
    )


def without_classifier(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the old classifier; ours has other classes."""
    return {name: value for name, value in tensors.items() if not name.startswith(CLASSIFIERS)}


def _as_float(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}


def _numbers(text: str | None, otherwise: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split()) if text else otherwise
