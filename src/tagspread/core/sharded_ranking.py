r"""Class-distribution-aware targets (CAT) of scores that are sharded over several processes, exactly.

The total order of :mod:`tagspread.core.ranking` holds across all shards: higher score first and, among equal scores,
lower global row number first. A radix select finds the two border scores of each class. Scores become integers that
sort the same way; in each round, every shard counts one digit of :math:`b` bits of its candidates, the counts are
summed over all shards, and the digit that holds the wanted rank extends the prefix:

.. math::
    h_{kd} = \sum_{\text{shards}} \big|\{j : \text{prefix}(s_{jk}) = p_k,\ \text{digit}(s_{jk}) = d\}\big|, \qquad
    p_k \leftarrow \big(p_k,\ \min\{d : \textstyle\sum_{d' \le d} h_{kd'} > r_k\}\big).

If more rows tie with a border than the quota has room for, the same select over row numbers decides between them. A
round sends :math:`2 q 2^b` integers, however many rows there are. The sum over shards is an argument, so threads,
``torch.distributed`` and Ray all serve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from tagspread.core.arrays import Array, ArrayLike, as_scores, like
from tagspread.core.ranking import Counts, rank_dtype
from tagspread.core.thresholds import quotas
from tagspread.errors import TagspreadError

SumOverShards: TypeAlias = Callable[[Tensor], Tensor]

BITS = 11  # of a digit: float32 takes three rounds, with 2,048 counters for each class and side
STRIP = 2**22  # scores processed together, which bounds the memory for indices
POSITIVE, NEGATIVE = 0, 1  # the two sides of a class: a border for each


class Shard(NamedTuple):
    """The part of the rows that one process holds.

    Attributes:
        rows: global number of each local row; no number occurs in two shards.
        total: rows in all shards together.
        sum_over_shards: return the element-wise sum of an int64 tensor over all shards. Every shard calls it equally
            often, with tensors of the same shape.
    """

    rows: Tensor
    total: int
    sum_over_shards: SumOverShards


def cat_targets_of_shard(
    scores: ArrayLike,
    shard: Shard,
    positives: ArrayLike | None = None,
    labeled: ArrayLike | None = None,
    keep_pos: ArrayLike = 1.0,
    keep_neg: ArrayLike = 1.0,
    *,
    priors: ArrayLike | None = None,
) -> Array:
    """Compute the rows of :func:`tagspread.core.thresholds.cat_targets` that belong to one shard.

    All shards together give bit for bit what one process computes from all rows, for any number of shards and any
    distribution of the rows among them.

    Args:
        scores: local rows x classes.
        shard: which rows these are, and how to sum over all shards.
        positives: labeled positives of each class.
        labeled: rows of each class whose label is known.
        keep_pos: share of the expected positives to keep (the paper's eta_1).
        keep_neg: share of the expected negatives to keep (eta_0).
        priors: class frequencies in the unlabeled set, where they are known better than the labeled part tells.

    Returns:
        Local rows x classes, int8: 1 positive, 0 negative, -1 ignored.

    >>> one = Shard(torch.arange(4), 4, lambda counts: counts)
    >>> cat_targets_of_shard([[0.9], [0.2], [0.7], [0.1]], one, positives=[1], labeled=2, keep_pos=0.5).ravel().tolist()
    [1, 0, -1, 0]
    """
    local = as_scores("scores", scores)
    n_pos, n_neg = quotas(positives, labeled, shard.total, local.shape[1], keep_pos, keep_neg, priors=priors)
    return like(targets_of_shard(local, shard, n_pos, n_neg), scores)


def targets_of_shard(scores: Tensor, shard: Shard, n_pos: Counts, n_neg: Counts) -> Tensor:
    """Return int8 targets: 1 for the ``n_pos[k]`` highest of all shards, 0 for the ``n_neg[k]`` lowest, -1 between."""
    _check(scores, shard)
    keys, rows = _sortable(scores), shard.rows.to(scores.device)
    border, row_border = _borders(keys, rows, shard, n_pos, n_neg)
    at_positive, at_negative = (keys == border[side] for side in (POSITIVE, NEGATIVE))
    before = (keys < border[POSITIVE]) | (at_positive & (rows[:, None] <= row_border[POSITIVE]))
    after = (keys > border[NEGATIVE]) | (at_negative & (rows[:, None] >= row_border[NEGATIVE]))
    has_positive, has_negative = (torch.tensor(n, device=keys.device) > 0 for n in (n_pos, n_neg))
    return 2 * (before & has_positive).to(torch.int8) + (after & has_negative).to(torch.int8) - 1


def thresholds_of_shard(scores: Tensor, shard: Shard, n_pos: Counts, n_neg: Counts) -> tuple[Tensor, Tensor]:
    """Return the scores of the last positive and of the last negative of each class, over all shards."""
    _check(scores, shard)
    keys = _sortable(scores)
    border, _ = _borders(keys, shard.rows.to(keys.device), shard, n_pos, n_neg)
    tau_pos, tau_neg = _to_scores(border.to(keys.dtype))
    has_positive, has_negative = (torch.tensor(n, device=keys.device) > 0 for n in (n_pos, n_neg))
    return torch.where(has_positive, tau_pos, math.inf), torch.where(has_negative, tau_neg, -math.inf)


def _borders(keys: Tensor, rows: Tensor, shard: Shard, n_pos: Counts, n_neg: Counts) -> tuple[Tensor, Tensor]:
    """Return, for both sides, the key of each class's border and the row number at which ties with it are divided."""
    # ranks from 0 in the total order; a side without a quota follows rank 0 and is left out by the caller
    ranks = torch.tensor(
        [[max(n - 1, 0) for n in n_pos], [min(shard.total - n, shard.total - 1) for n in n_neg]], device=keys.device
    )
    every = torch.ones((), dtype=torch.bool, device=keys.device).expand(2, *keys.shape)
    border, ranks, ties = _select(keys, every, ranks, torch.iinfo(keys.dtype).bits, shard.sum_over_shards)
    row_border = torch.stack([torch.full_like(border[0], shard.total), torch.zeros_like(border[0])])
    undivided = torch.stack([ranks[POSITIVE] == ties[POSITIVE] - 1, ranks[NEGATIVE] == 0])
    if not bool(undivided.all()):  # known to all shards alike
        tied = torch.stack([keys == border[side] for side in (POSITIVE, NEGATIVE)])
        width = max(1, (shard.total - 1).bit_length())
        row_keys = rows[:, None].expand(keys.shape)
        row_border, _, _ = _select(row_keys, tied, ranks, width + 1, shard.sum_over_shards)  # + 1: the sign
    return border, row_border


def _select(
    keys: Tensor, candidates: Tensor, ranks: Tensor, width: int, sum_over_shards: SumOverShards
) -> tuple[Tensor, Tensor, Tensor]:
    """Find, among the candidates of all shards, the keys with the given ranks.

    Args:
        keys: local rows x classes, signed integers.
        candidates: sides x local rows x classes, true for the entries that take part.
        ranks: sides x classes: the wanted place in ascending order, from 0.
        width: bits that the keys use, the sign among them.
        sum_over_shards: see :class:`Shard`.

    Returns:
        The keys found, the rank of each among the candidates equal to it, and the number of those; sides x classes.
    """
    classes = keys.shape[1]
    prefix, ties = torch.zeros_like(ranks), ranks
    shift = width
    while shift > 0:
        bits = min(BITS, shift)
        shift, before = shift - bits, shift
        first = before == width
        lowest = -(1 << (bits - 1)) if first else 0  # the top digit is signed
        counts = torch.zeros(2, classes << bits, dtype=torch.int64, device=keys.device)
        step = max(1, STRIP // max(1, classes))
        for at in range(0, len(keys), step):
            strip = keys[at : at + step].to(torch.int64)
            digit = (strip >> shift) - lowest if first else (strip >> shift) & ((1 << bits) - 1)
            slot = digit + (torch.arange(classes, device=keys.device) << bits)
            for side in (POSITIVE, NEGATIVE):
                chosen = candidates[side, at : at + step]
                if not first:
                    chosen = chosen & ((strip >> before) == prefix[side])
                counts[side] += torch.bincount(slot[chosen], minlength=counts.shape[1])
        counts = sum_over_shards(counts).view(2, classes, 1 << bits)
        through = counts.cumsum(-1)
        digit = (through <= ranks[..., None]).sum(-1).clamp(max=(1 << bits) - 1)
        ties = counts.gather(-1, digit[..., None])[..., 0]
        ranks = ranks - (through.gather(-1, digit[..., None])[..., 0] - ties)
        prefix = digit + lowest if first else (prefix << bits) | digit
    return prefix, ranks, ties


def _sortable(scores: Tensor) -> Tensor:
    """Return integers that sort ascending as the scores sort descending; equal scores give equal integers."""
    floats = scores.to(rank_dtype(scores)) + 0.0  # -0.0 becomes 0.0
    integers = floats.view(torch.int32 if floats.dtype == torch.float32 else torch.int64)
    return ~_monotone(integers)


def _to_scores(keys: Tensor) -> Tensor:
    """Return the scores of keys from :func:`_sortable`."""
    return _monotone(~keys).view(torch.float32 if keys.dtype == torch.int32 else torch.float64)


def _monotone(integers: Tensor) -> Tensor:
    """Flip all bits but the sign of negative integers: then float bits sort as signed integers. Its own inverse."""
    info = torch.iinfo(integers.dtype)
    return integers ^ ((integers >> (info.bits - 1)) & info.max)


def _check(scores: Tensor, shard: Shard) -> None:
    """Raise on every shard alike: if only one raised, the others would wait for its counts."""
    rows = shard.rows.to(scores.device)
    misplaced = int(((rows < 0) | (rows >= shard.total)).sum()) + abs(len(rows) - len(scores))
    facts = torch.tensor([len(rows), misplaced, int(scores.isnan().sum())], device=scores.device)
    held, misplaced, missing = shard.sum_over_shards(facts).tolist()
    if held != shard.total or misplaced:
        raise TagspreadError(
            f"the shards hold {held:,} rows but total is {shard.total:,}, and {misplaced:,} row numbers do not fit; "
            "give each row from 0 to total - 1 to exactly one shard."
        )
    if missing:
        raise TagspreadError(
            f"scores hold NaN in {missing:,} entries of all shards; NaN has no rank. Find where it comes from."
        )
