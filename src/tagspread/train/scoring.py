"""What a network says about many items: logits in float32, in inference mode, a large batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from tagspread.data.images.store import Store, prefetch


def resolve_precision(device: torch.device, precision: str) -> str:
    """Return what ``"auto"`` means on a device: bf16 on GPUs that have it themselves, where others would imitate it."""
    if precision != "auto":
        return precision
    native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if native else "fp32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return bfloat16 autocast where it is wanted and the device has it."""
    if resolve_precision(device, precision) == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


@torch.inference_mode()
def score(
    network: Callable[[Tensor], Tensor],
    store: Store,
    rows: np.ndarray,
    *,
    device: torch.device,
    batch: int | None = None,
    precision: str = "auto",
    flips: bool = False,
) -> Tensor:
    """Return the outputs for ``rows``, one line each; with ``flips`` the mean over a image and its mirror image.

    The view is the plain one: the same item gets the same score every time. ``batch`` items at a time; as many as suit
    the device if not given.
    """
    batch = batch or store.modality.suitable_batch(device)
    if isinstance(network, nn.Module):
        network.eval()
    parts = [rows[at : at + batch] for at in range(0, len(rows), batch)]
    outputs: list[Tensor] = []
    for items in prefetch(store.batch, parts) if store.placement == "disk" else map(store.batch, parts):
        with autocast(device, precision):
            out = network(items).float()
            if flips:
                out = (out + network(store.modality.mirror(items)).float()) / 2
        outputs.append(out)
    return torch.cat(outputs)
