"""Score images with a network: float32 logits, computed in inference mode in large batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from tagspread.aliases import Progress
from tagspread.data.images.store import Store, prefetch


def resolve_precision(device: torch.device, precision: str) -> str:
    """Return the precision that ``"auto"`` means on a device: bf16 on GPUs with native support, otherwise fp32."""
    if precision != "auto":
        return precision
    native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if native else "fp32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return a bfloat16 autocast context, or a null context for fp32."""
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
    progress: Progress | None = None,
) -> Tensor:
    """Compute the network's outputs for some rows of the store, without augmentation.

    Args:
        network: the network; put into evaluation mode.
        store: the images.
        rows: rows of the store.
        device: device of the network.
        batch: batch size; chosen for the device if not given.
        precision: ``"auto"``, ``"bf16"`` or ``"fp32"``.
        flips: return the mean over each image and its mirror image.
        progress: called with the number of scored rows and their total.
    """
    batch = batch or store.modality.suitable_batch(device)
    if isinstance(network, nn.Module):
        network.eval()
    parts = [rows[at : at + batch] for at in range(0, len(rows), batch)]
    outputs: list[Tensor] = []
    done = 0
    for items in prefetch(store.batch, parts) if store.placement == "disk" else map(store.batch, parts):
        with autocast(device, precision):
            out = network(items).float()
            if flips:
                out = (out + network(store.modality.mirror(items)).float()) / 2
        outputs.append(out)
        if progress is not None:
            done += len(out)
            progress(done, len(rows))
    return torch.cat(outputs)
