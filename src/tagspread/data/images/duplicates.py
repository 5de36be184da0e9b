"""Find duplicate and near-duplicate images: files with equal bytes, or with similar 64-bit fingerprints and colors.

The fingerprint of an image tells, for each cell of a gray thumbnail of 8 rows and 9 columns, whether it is darker than
its right neighbor. Resizing and recompressing change few of these bits. Images of smooth surfaces share bits by chance;
therefore the colors of the thumbnails must agree as well, and images of one flat color are not compared.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tagspread.errors import TagspreadError

SIDE = 72  # of the images from which thumbnails are computed: divisible by ROWS and COLUMNS
ROWS, COLUMNS = 8, 9
FLAT = 12  # a thumbnail with a smaller range of gray values counts as flat
COLOR = 10.0  # largest mean difference, of 255, between thumbnails of the same image
ALL_PAIRS = 64  # larger groups of equal fingerprints are compared with their first image only
GRAY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
BITS = 64


def thumbnails(images: np.ndarray) -> np.ndarray:
    """Return N x 3 x 8 x 9 bytes: the mean colors of the cells of N images of 3 x 72 x 72.

    >>> thumbnails(np.full((1, 3, 72, 72), 7, dtype=np.uint8))[0, 0, 0].tolist()
    [7, 7, 7, 7, 7, 7, 7, 7, 7]
    """
    cells = images.reshape(-1, 3, ROWS, SIDE // ROWS, COLUMNS, SIDE // COLUMNS)
    means: np.ndarray = np.rint(cells.mean(axis=(3, 5), dtype=np.float32))
    return means.astype(np.uint8)


def fingerprints(thumbs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 64-bit fingerprint of each thumbnail, and whether it shows more than one flat color.

    >>> dark_to_light = np.tile(np.arange(0, 90, 10, dtype=np.uint8), (1, 3, 8, 1))
    >>> bits, shows = fingerprints(dark_to_light)
    >>> hex(bits[0]), bool(shows[0])
    ('0xffffffffffffffff', True)
    """
    gray = np.einsum("nchw,c->nhw", thumbs.astype(np.float32), GRAY)
    bits = np.packbits((gray[:, :, 1:] > gray[:, :, :-1]).reshape(-1, BITS), axis=1)
    shows = np.ptp(gray, axis=(1, 2)) >= FLAT
    return bits.view(">u8").ravel().astype(np.uint64), shows


def close_pairs(prints: np.ndarray, near: int) -> np.ndarray:
    """Return all pairs (i < j) of different fingerprints at most ``near`` bits apart.

    Two such fingerprints share at least one of ``near + 1`` bands of bits, so only fingerprints with a common band are
    compared.

    Args:
        prints: fingerprints, all different.
        near: largest number of different bits.

    >>> close_pairs(np.array([0b0000, 0b1111, 0b0111], dtype=np.uint64), 1).tolist()
    [[1, 2]]
    """
    if not 0 <= near < BITS // 4:
        raise TagspreadError(f"near is {near}; give 0 to {BITS // 4 - 1} bits of {BITS}, usually 4.")
    pairs = [np.empty((0, 2), dtype=np.int64)]
    edges = np.linspace(0, BITS, near + 2).astype(int)
    for low, high in itertools.pairwise(edges):
        band = (prints >> np.uint64(low)) & np.uint64((1 << int(high - low)) - 1)
        order = np.argsort(band, kind="stable")
        band, sorted_prints = band[order], prints[order]
        at = np.arange(len(order))
        for step in range(1, len(order)):  # compare with the next in the bucket, then the one after, ...
            at = at[at < len(order) - step]
            at = at[band[at] == band[at + step]]
            if not len(at):
                break
            close = at[np.bitwise_count(sorted_prints[at] ^ sorted_prints[at + step]) <= near]
            if len(close):
                pairs.append(np.stack([order[close], order[close + step]], axis=1))
    return np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)


def lookalikes(thumbs: np.ndarray, near: int = 4) -> np.ndarray:
    """Return pairs of rows with near-duplicate thumbnails, M x 2.

    In a large group of equal fingerprints, each row is only paired with the first, which suffices to group them.
    """
    bits, shows = fingerprints(thumbs)
    rows = np.flatnonzero(shows)
    prints, group = np.unique(bits[rows], return_inverse=True)
    by_group = rows[np.argsort(group, kind="stable")]
    starts = np.searchsorted(np.sort(group), np.arange(len(prints) + 1))
    members = [by_group[a:b] for a, b in itertools.pairwise(starts)]
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for same in members:
        if 1 < len(same) <= ALL_PAIRS:
            pairs.append(np.stack([same[k] for k in np.triu_indices(len(same), 1)], axis=1))
        elif len(same) > ALL_PAIRS:
            pairs.append(np.stack([np.full(len(same) - 1, same[0]), same[1:]], axis=1))
    for a, b in close_pairs(prints, near):
        few, many = members[a][:ALL_PAIRS], members[b][:ALL_PAIRS]
        pairs.append(np.stack([np.repeat(few, len(many)), np.tile(many, len(few))], axis=1))
    candidates = np.concatenate(pairs)
    verified: np.ndarray = candidates[_same_colors(thumbs, candidates)]
    return verified


def _same_colors(thumbs: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    same = np.zeros(len(pairs), dtype=bool)
    for at in range(0, len(pairs), 65536):  # bounds the memory, whatever the number of pairs
        a, b = pairs[at : at + 65536].T
        apart = np.abs(thumbs[a].astype(np.int16) - thumbs[b]).mean(axis=(1, 2, 3))
        same[at : at + 65536] = apart <= COLOR
    return same


def same_bytes(paths: Sequence[Path], keys: Sequence[Hashable]) -> np.ndarray:
    """Return pairs (i, j) of files with equal bytes, each paired with the first; only equal keys are compared.

    Args:
        paths: the files, all readable.
        keys: a known property that equal files share, such as their size.
    """
    by_key: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        by_key[key].append(index)
    pairs: list[tuple[int, int]] = []
    for candidates in by_key.values():
        first: dict[bytes, int] = {}
        for index in candidates if len(candidates) > 1 else ():
            with paths[index].open("rb") as opened:
                content = hashlib.file_digest(opened, "blake2b").digest()
            if (before := first.setdefault(content, index)) != index:
                pairs.append((before, index))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def groups(pairs: np.ndarray, rows: int) -> list[np.ndarray]:
    """Return the groups of rows that pairs connect, each sorted, in the order of their first rows.

    >>> [group.tolist() for group in groups(np.array([[4, 2], [0, 1], [2, 5]]), 6)]
    [[0, 1], [2, 4, 5]]
    """
    if not len(pairs):
        return []
    graph = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(rows, rows))
    _, label = connected_components(graph, directed=False)
    in_some = np.unique(pairs)
    together: dict[int, list[int]] = defaultdict(list)
    for row in in_some.tolist():
        together[int(label[row])].append(row)
    return [np.array(members) for members in together.values()]
