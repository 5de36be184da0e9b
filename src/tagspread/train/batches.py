"""Training batches: the augmented views of labeled and unlabeled rows, computed on the device in chunks of steps.

The views of thirty batches need hardly more kernel launches than those of one. While the device trains on one chunk,
the next one is read from disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from torch import Tensor

from tagspread.data.images.store import Store, prefetch
from tagspread.vision.augment import Views
from tagspread.vision.backbones import TagNet

ITEMS_PER_CHUNK = 1024
BYTES_PER_CHUNK = 2**28  # size of the finished views; computing them needs eight times this memory


def steps_per_chunk(steps: np.ndarray) -> int:
    """Return how many steps of ``steps`` (steps x batch) to prepare at once."""
    return max(1, ITEMS_PER_CHUNK // int(steps.shape[1]))


def _views_at_once(network: TagNet, store: Store, steps: np.ndarray) -> int:
    """Return for how many steps to compute views at once: fewer if images are large or shown in several parts."""
    bytes_per_step = int(steps.shape[1]) * math.prod(store.shape) * network.parts
    return max(1, min(steps_per_chunk(steps), BYTES_PER_CHUNK // bytes_per_step))


def training_batches(
    network: TagNet, store: Store, views: Views, steps: np.ndarray, epoch: int, *, cutout: bool
) -> Iterator[Tensor]:
    """Yield the network's input for each step of ``steps`` (steps x batch, rows of the store)."""
    per_chunk = _views_at_once(network, store, steps)
    chunks = [steps[at : at + per_chunk] for at in range(0, len(steps), per_chunk)]
    flat = [chunk.reshape(-1) for chunk in chunks]
    items = prefetch(store.batch, flat) if store.placement == "disk" else map(store.batch, flat)
    for chunk, rows, loaded in zip(chunks, flat, items, strict=True):
        inputs = network.show(views, loaded, rows, epoch, cutout) if store.modality.has_views else loaded
        yield from inputs.reshape(*chunk.shape, *inputs.shape[1:])
