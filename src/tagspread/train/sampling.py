"""Sampling of labeled and unlabeled rows: an endless shuffled stream, which resumes from its position.

Each pass over the rows is a new permutation, and a batch may continue into the next pass. All rows are therefore
equally frequent, all batches are full, and the position is all that a resumed run needs to know.
"""

from __future__ import annotations

import numpy as np

LABELED, UNLABELED = 0, 1  # stream numbers, so that streams of the same seed and size differ


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
