"""Training batches: sample labeled and unlabeled rows, and compute their augmented views.

Sampling reads an endless shuffled stream. Each pass over the rows is a new permutation, and a batch may continue into
the next pass. All rows are therefore equally frequent and all batches are full. To resume, a run only needs its
position in the stream.

Views are computed on the device for a chunk of several steps at once, because thirty batches need hardly more kernel
launches than one. While the device trains on one chunk, the images of the next one are read from disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from torch import Tensor

from tagspread.data.images.store import Store, prefetch
from tagspread.train.sharded_store import ShardedStore
from tagspread.vision.augment import Views
from tagspread.vision.backbones import TagNet

LABELED, UNLABELED = 0, 1  # stream numbers, so that streams of the same seed and size differ
ITEMS_PER_CHUNK = 1024
BYTES_PER_CHUNK = 2**28  # size of the finished views; computing them needs eight times this memory


def stream(rows: np.ndarray, start: int, count: int, seed: int, which: int) -> np.ndarray:
    """Return ``count`` rows from position ``start`` of an endless shuffled stream.

    Args:
        rows: the rows to shuffle.
        start: number of rows that were read before.
        count: number of rows to return.
        seed: seed of the permutations.
        which: ``LABELED`` or ``UNLABELED``.

    >>> together = stream(np.arange(5), 0, 12, seed=0, which=UNLABELED)
    >>> parts = [stream(np.arange(5), at, 4, seed=0, which=UNLABELED) for at in (0, 4, 8)]
    >>> bool((np.concatenate(parts) == together).all()), sorted(together[:5].tolist())
    (True, [0, 1, 2, 3, 4])
    """
    if count == 0:
        return rows[:0]
    size = len(rows)
    first, last = start // size, (start + count - 1) // size
    passes = [np.random.default_rng([seed, which, cycle]).permutation(size) for cycle in range(first, last + 1)]
    order = np.concatenate(passes)[start - first * size :][:count]
    return rows[order]


def steps_per_chunk(steps: np.ndarray) -> int:
    """Return how many steps of ``steps`` (steps x batch) to prepare at once."""
    return max(1, ITEMS_PER_CHUNK // int(steps.shape[1]))


def _views_at_once(network: TagNet, store: Store, steps: np.ndarray) -> int:
    """Return for how many steps to compute views at once: fewer if images are large or shown in several parts."""
    bytes_per_step = int(steps.shape[1]) * math.prod(store.shape) * network.parts
    return max(1, min(steps_per_chunk(steps), BYTES_PER_CHUNK // bytes_per_step))


def training_batches(
    network: TagNet,
    store: Store,
    views: Views,
    steps: np.ndarray,
    epoch: int,
    *,
    cutout: bool,
    own: slice = slice(None),
) -> Iterator[Tensor]:
    """Yield the network's input for each step of ``steps`` (steps x batch, rows of the store).

    Args:
        network: the network.
        store: the images.
        views: the augmentation.
        steps: rows of the store, steps x batch.
        epoch: number of the epoch.
        cutout: whether strong views are cut out.
        own: which rows of each batch this process trains on.
    """
    per_chunk = _views_at_once(network, store, steps)  # the same in all processes
    chunks = [steps[at : at + per_chunk, own] for at in range(0, len(steps), per_chunk)]
    flat = [chunk.reshape(-1) for chunk in chunks]
    if isinstance(store, ShardedStore):
        items: Iterable[Tensor] = store.batches(flat)
    else:
        items = prefetch(store.batch, flat) if store.placement == "disk" else map(store.batch, flat)
    for chunk, rows, loaded in zip(chunks, flat, items, strict=True):
        has_views = store.modality.has_views and len(loaded)
        inputs = network.show(views, loaded, rows, epoch, cutout) if has_views else loaded
        yield from inputs.reshape(*chunk.shape, *inputs.shape[1:])
