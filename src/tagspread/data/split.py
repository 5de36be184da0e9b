"""Data splits: the paper's split into labeled and unlabeled set, and stratified multi-label splits for testing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tagspread.errors import TagspreadError
from tagspread.wording import counted

WANDERINGS = 50  # swaps without fewer gaps before the repair of a split stops
GAPS, GIVERS, TAKERS = 32, 40, 256  # candidates for a swap: bounds the time for any number of rows


def paper_split(rows: int, share: float, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return (labeled, unlabeled): the first ``int(share * rows)`` rows of one permutation, and the rest.

    The labeled set of a larger share contains that of a smaller one.

    >>> labeled, unlabeled = paper_split(5717, 0.05)
    >>> len(labeled), len(unlabeled)
    (285, 5432)
    """
    if not 0 < share < 1:
        raise TagspreadError(f"share is {share}; give the labeled share of the data, between 0 and 1.")
    # the legacy generator on purpose: the published split was drawn with it
    order = np.random.RandomState(seed).permutation(rows)
    count = int(share * rows)
    return order[:count], order[count:]


class Split(NamedTuple):
    """A split of rows into parts, with notes on classes that are not in every part."""

    parts: tuple[np.ndarray, ...]  # the rows of each part, sorted
    notes: tuple[str, ...]


def stratified_split(
    y: npt.ArrayLike,
    shares: Sequence[float],
    seed: int = 0,
    *,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Split:
    """Split rows into parts so that the positives of each class are distributed by the shares.

    Every part gets its share of the rows, to within one row. If a class has at least as many positives as there are
    parts, each part gets at least one if the data allow it. The positives of a rarer class go to the first parts, so
    the first part should be the training set; the notes name such classes. Rows without positives are assigned at
    random.

    Args:
        y: rows x classes of 1, 0 and -1 (unknown).
        shares: share of the rows for each part; they add up to 1. A part with share 0 stays empty.
        seed: seed of the random split.
        classes: names of the classes, for the notes.
        names: names of the parts, for the notes; by default "training" and "test" for two parts.

    >>> y = np.repeat(np.eye(3, dtype=int), [12, 4, 1], axis=0)  # 12 cats, 4 dogs, 1 owl
    >>> split = stratified_split(y, [0.75, 0.25], classes=["cat", "dog", "owl"])
    >>> [y[rows].sum(0).tolist() for rows in split.parts]
    [[9, 3, 1], [3, 1, 0]]
    >>> split.notes
    ('owl has 1 labeled image: it is in training only',)
    """
    labels, weights = _check_labels(y), _check_shares(shares)
    sizes = _part_sizes(len(labels), weights)
    tags = _check_names("classes", classes, [f"class {k}" for k in range(labels.shape[1])])
    usual = ["training", "test"] if len(sizes) == 2 else [f"part {p + 1}" for p in range(len(sizes))]
    parts = _check_names("names", names, usual)

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    positive = (labels[order] == 1).astype(np.int32)
    wanted, required = _wishes(positive.sum(0), weights, sizes)
    part = _deal(positive, wanted, sizes, rng)
    _repair(part, positive, required, rng)
    counts = _count(part, positive, len(sizes))
    notes = [
        f"{name} stays empty: {weights[p]:.3g} of {len(labels):,} rows is less than one"
        for p, name in enumerate(parts)
        if sizes[p] == 0 and weights[p] > 0
    ]
    notes += _notes(counts, sizes, tags, parts)
    return Split(tuple(np.sort(order[part == p]) for p in range(len(sizes))), tuple(notes))


def hold_out(
    y: npt.ArrayLike, share: float, seed: int = 0, *, classes: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return (kept, held out, notes): hold out a share of the rows for testing, by :func:`stratified_split`.

    >>> kept, held, notes = hold_out(np.ones((10, 1)), 0.2)
    >>> len(kept), len(held), notes
    (8, 2, ())
    """
    if not 0 < share < 1:
        raise TagspreadError(f"share is {share}; give the share to hold out, between 0 and 1.")
    split = stratified_split(y, (1 - share, share), seed, classes=classes, names=("training", "the held-out set"))
    return *split.parts, split.notes  # type: ignore[return-value]  # two shares in, two parts out


def _check_labels(y: npt.ArrayLike) -> np.ndarray:
    labels = np.asarray(y)
    if labels.ndim != 2:
        raise TagspreadError(f"y has shape {labels.shape}; give rows x classes.")
    wrong = np.argwhere(~np.isin(labels, (1, 0, -1)))
    if len(wrong):
        row, k = wrong[0]
        raise TagspreadError(f"y holds {labels[row, k]} in row {row}, class {k}; give 1, 0 or -1 (unknown).")
    return labels


def _check_shares(shares: Sequence[float]) -> np.ndarray:
    weights = np.asarray(shares, dtype=float)
    if weights.ndim != 1 or not weights.size or not (weights >= 0).all() or abs(weights.sum() - 1) > 1e-6:
        raise TagspreadError(f"shares are {list(shares)}; give one per part, none below 0, that add up to 1.")
    exact: np.ndarray = weights / weights.sum()
    return exact


def _check_names(argument: str, given: Sequence[str] | None, usual: list[str]) -> list[str]:
    if given is not None and len(given) != len(usual):
        raise TagspreadError(f"{argument} has {len(given)} names for {len(usual)}; give one for each.")
    return usual if given is None else list(given)


def _part_sizes(rows: int, weights: np.ndarray) -> np.ndarray:
    """Round the part sizes so that they add up to ``rows``; parts that would be empty are rounded up first."""
    exact = weights * rows
    sizes = np.floor(exact + 1e-9).astype(int)  # 0.1 * 30 may be below 3 in floating point
    rest = exact - sizes
    urgent = (sizes == 0) & (weights > 0)
    sizes[np.lexsort((-rest, ~urgent))[: rows - sizes.sum()]] += 1
    return sizes


def _wishes(positives: np.ndarray, weights: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the target number of positives per part and class, and whether at least one is required."""
    filled = np.flatnonzero(sizes)
    wanted = np.outer(weights * (sizes > 0), positives).astype(float)
    required = np.zeros(wanted.shape, dtype=bool)
    if not len(filled):
        return wanted, required
    first, others = filled[0], filled[1:]
    by_share = [first, *others[np.argsort(-weights[others], kind="stable")]]
    scarce = positives < len(filled)
    wanted[:, scarce] = positives[scarce] > np.array(
        [[by_share.index(p) if p in filled else np.inf] for p in range(len(sizes))]
    )
    required[np.ix_(filled, np.flatnonzero(~scarce))] = True
    required[first] |= positives > 0
    # raise targets to at least one each, at the cost of parts with more
    raised = np.where(required, np.maximum(wanted, 1), wanted)
    spare = np.maximum(raised - 1, 0)
    excess = raised.sum(0) - wanted.sum(0)
    return raised - spare * excess / np.maximum(spare.sum(0), 1e-9), required


def _deal(positive: np.ndarray, wanted: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Assign the rows of the rarest class first, each to the part with room that lacks most positives of it."""
    wanted, room = wanted.copy(), sizes.tolist()
    part = np.full(len(positive), -1)
    left = positive.sum(0)
    while left.any():
        k = int(np.where(left > 0, left, np.iinfo(left.dtype).max).argmin())
        rows = np.flatnonzero((part < 0) & (positive[:, k] > 0))
        for row in rows.tolist():
            lacking = wanted[:, k].tolist()
            p = max((p for p, free in enumerate(room) if free), key=lambda p: (lacking[p], room[p]))
            part[row] = p
            room[p] -= 1
            wanted[p] -= positive[row]
        left = left - positive[rows].sum(0)
    part[part < 0] = rng.permutation(np.repeat(np.arange(len(room)), room))
    return part


def _count(part: np.ndarray, positive: np.ndarray, parts: int) -> np.ndarray:
    return np.stack([positive[part == p].sum(0) for p in range(parts)])


def _repair(part: np.ndarray, positive: np.ndarray, required: np.ndarray, rng: np.random.Generator) -> None:
    """Swap rows between parts, in place, until no required positive is missing or no swap helps.

    A swap that closes one gap and opens another is also made, a limited number of times, because the new gap may be
    easier to close. The best split found is kept.
    """
    counts = _count(part, positive, len(required))
    gaps = np.argwhere(required & (counts == 0))
    best, fewest, in_vain = part.copy(), len(gaps), 0
    while len(gaps) and in_vain < WANDERINGS:
        swap: tuple[float, int, int] | None = None
        for p, k in rng.permutation(gaps)[:GAPS].tolist():
            candidate = _best_swap(p, k, part, positive, required, counts, rng)
            if candidate is not None and (swap is None or candidate < swap):
                swap = candidate
            if swap is not None and swap[0] < 0:  # fewer gaps: stop the search
                break
        if swap is None:
            break
        _, giver, taker = swap
        moved = positive[giver] - positive[taker]
        counts[part[taker]] += moved
        counts[part[giver]] -= moved
        part[giver], part[taker] = part[taker], part[giver]
        gaps = np.argwhere(required & (counts == 0))
        in_vain += 1
        if len(gaps) < fewest:
            best, fewest, in_vain = part.copy(), len(gaps), 0
    part[:] = best


def _best_swap(
    p: int, k: int, part: np.ndarray, positive: np.ndarray, required: np.ndarray, counts: np.ndarray,
    rng: np.random.Generator,
) -> tuple[float, int, int] | None:  # fmt: skip
    """Return the cheapest swap that gives part p a positive of class k: (cost, row of another part, row of part p).

    The cost is the change in the number of gaps, plus a tie breaker below 1. None if no swap exists without more gaps.
    """
    givers = _some(np.flatnonzero((positive[:, k] > 0) & (part != p)), GIVERS, rng)
    takers = _some(np.flatnonzero(part == p), TAKERS, rng)
    if not len(givers) or not len(takers):
        return None
    best: tuple[float, int, int] | None = None
    for giver in givers:
        q = part[giver]
        moved = positive[giver] - positive[takers]
        before = (required[p] & (counts[p] <= 0)).sum() + (required[q] & (counts[q] <= 0)).sum()
        after = (required[p] & (counts[p] + moved <= 0)).sum(1) + (required[q] & (counts[q] - moved <= 0)).sum(1)
        # of equal swaps, that of the two most similar rows changes the frequencies least; swaps that close no gap
        # get a random tie breaker, because otherwise they would repeat in a cycle
        tie = np.abs(moved).sum(1) / (moved.shape[1] + 1)
        cost = after - before + np.where(after < before, tie, rng.random(len(tie)))
        at = int(cost.argmin())
        if best is None or cost[at] < best[0]:
            best = (float(cost[at]), int(giver), int(takers[at]))
    return best if best is not None and best[0] < 1 else None


def _some(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= most else rng.choice(rows, most, replace=False)


def _notes(counts: np.ndarray, sizes: np.ndarray, tags: list[str], parts: list[str]) -> list[str]:
    """Return notes on the classes that are not in every part."""
    filled = np.flatnonzero(sizes)
    notes = []
    for k, tag in enumerate(tags):
        total = int(counts[:, k].sum())
        having = [parts[p] for p in filled if counts[p, k]]
        lacking = [parts[p] for p in filled if not counts[p, k]]
        images = counted(total, "labeled image")
        if not total:
            notes.append(f"{tag} has no labeled image, so it is in no part")
        elif total < len(filled):
            they = "it is" if total == 1 else "they are"
            notes.append(f"{tag} has {images}: {they} in {' and '.join(having)} only")
        elif lacking:
            notes.append(f"{tag} has {images}, but none in {' and '.join(lacking)}, where other tags need the rows")
    return notes
