"""Which rows are labelled: the paper's split."""

from __future__ import annotations

import numpy as np

from tagspread.errors import TagspreadError


def paper_split(rows: int, share: float, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return (labelled, pile): the first ``int(share * rows)`` of one permutation; larger shares contain smaller ones.

    >>> labelled, pile = paper_split(5717, 0.05)
    >>> len(labelled), len(pile)
    (285, 5432)
    """
    if not 0 < share < 1:
        raise TagspreadError(f"share is {share}; give the labelled share of the data, between 0 and 1.")
    # the legacy generator on purpose: it is what the published split was drawn with
    order = np.random.RandomState(seed).permutation(rows)
    count = int(share * rows)
    return order[:count], order[count:]
