"""Which rows come next: an endless shuffled stream that is a pure function of how far it has been read.

Each pass over the rows is a new permutation, and a batch may reach into the next pass: no row is favored, no batch is
short, and resuming needs one number.
"""

from __future__ import annotations

import numpy as np

LABELED, UNLABELED = 0, 1  # streams differ even where seed and size agree


def stream(rows: np.ndarray, start: int, count: int, seed: int, which: int) -> np.ndarray:
    """Return ``count`` rows from position ``start`` of the endless stream.

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
