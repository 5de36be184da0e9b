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
``torch.distributed`` and Ray all serve. The scores are read block by block, once per round, so that a shard may be
larger than memory (:class:`ScorePasses`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from tagspread.core.arrays import Array, ArrayLike, as_tensor, like, nan_error
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
        rows: global number of each local row; no number occurs in two shards. A shard may have no rows.
        total: rows in all shards together.
        sum_over_shards: return the element-wise sum of an int64 tensor over all shards. Every shard calls it equally
            often, with tensors of the same shape.
    """

    rows: Tensor
    total: int
    sum_over_shards: SumOverShards


class ScoreBlock(NamedTuple):
    """Some rows of a shard: their global numbers, and their scores (rows x classes)."""

    rows: Tensor
    scores: Tensor


@dataclass(frozen=True)
class ScorePasses:
    """The scores of one shard, to be read several times, block by block.

    Attributes:
        blocks: start a pass over the scores; every pass yields the same blocks.
        classes: number of classes.
        total: rows in all shards together.
        sum_over_shards: see :class:`Shard`.
        dtype: dtype to rank in.
        device: device of the scores.
    """

    blocks: Callable[[], Iterator[ScoreBlock]]
    classes: int
    total: int
    sum_over_shards: SumOverShards
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    @classmethod
    def of(cls, scores: Tensor, shard: Shard) -> ScorePasses:
        """Return passes over scores in memory."""
        rows = shard.rows.to(scores.device, torch.int64)
        step = max(1, STRIP // max(1, scores.shape[1]))

        def blocks() -> Iterator[ScoreBlock]:
            for at in range(0, len(scores), step):
                yield ScoreBlock(rows[at : at + step], scores[at : at + step])

        return cls(
            blocks, scores.shape[1], shard.total, shard.sum_over_shards, rank_dtype(scores), device=scores.device
        )

    @property
    def key_bits(self) -> int:
        """Bits of the integers that the scores become."""
        return 64 if self.dtype == torch.float64 else 32


@dataclass(frozen=True)
class Borders:
    """The place in the total order where each class's positives end and where its negatives begin; sides x classes.

    Attributes:
        keys: the border scores, as sortable integers.
        rows: global row number of the last positive, and of the first negative, among those equal to the border.
        exist: whether the side has a quota at all.
        dtype: dtype that the scores are ranked in.
    """

    keys: Tensor
    rows: Tensor
    exist: Tensor
    dtype: torch.dtype

    def targets(self, block: ScoreBlock) -> Tensor:
        """Return the int8 targets of some rows."""
        keys, rows = _sortable(block.scores.to(self.dtype)), block.rows[:, None]
        (pos, neg), (pos_row, neg_row), (has_pos, has_neg) = self.keys, self.rows, self.exist
        positive = has_pos & ((keys < pos) | ((keys == pos) & (rows <= pos_row)))
        negative = has_neg & ((keys > neg) | ((keys == neg) & (rows >= neg_row)))
        targets: Tensor = 2 * positive.to(torch.int8) + negative.to(torch.int8) - 1
        return targets

    @property
    def thresholds(self) -> tuple[Tensor, Tensor]:
        """The scores of the last positive and of the first negative of each class; infinite without a quota."""
        integers = torch.int64 if self.dtype == torch.float64 else torch.int32
        scores: Tensor = _monotone(~self.keys.to(integers)).view(self.dtype)
        tau_pos, tau_neg = scores
        has_pos, has_neg = self.exist
        return torch.where(has_pos, tau_pos, math.inf), torch.where(has_neg, tau_neg, -math.inf)


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
    local = as_tensor("scores", scores)  # without a check for rows: a shard may be empty
    local = local if local.is_floating_point() else local.to(torch.float64)
    n_pos, n_neg = quotas(positives, labeled, shard.total, local.shape[1], keep_pos, keep_neg, priors=priors)
    return like(targets_of_shard(local, shard, n_pos, n_neg), scores)


def targets_of_shard(scores: Tensor, shard: Shard, n_pos: Counts, n_neg: Counts) -> Tensor:
    """Return int8 targets: 1 for the ``n_pos[k]`` highest of all shards, 0 for the ``n_neg[k]`` lowest, -1 between."""
    passes = ScorePasses.of(scores, shard)
    borders = find_borders(passes, n_pos, n_neg)
    targets = torch.empty(scores.shape, dtype=torch.int8, device=scores.device)
    done = 0
    for block in passes.blocks():
        targets[done : done + len(block.rows)] = borders.targets(block)
        done += len(block.rows)
    return targets


def thresholds_of_shard(scores: Tensor, shard: Shard, n_pos: Counts, n_neg: Counts) -> tuple[Tensor, Tensor]:
    """Return the scores of the last positive and of the last negative of each class, over all shards."""
    return find_borders(ScorePasses.of(scores, shard), n_pos, n_neg).thresholds


def find_borders(passes: ScorePasses, n_pos: Counts, n_neg: Counts) -> Borders:
    """Find the border scores of each class over all shards, in a few passes.

    Args:
        passes: the scores of this shard.
        n_pos: number of positives of each class.
        n_neg: number of negatives of each class.
    """
    _check(passes)
    # ranks from 0 in the total order; a side without a quota follows rank 0 and is left out by Borders.exist
    ranks = torch.tensor(
        [[max(n - 1, 0) for n in n_pos], [min(passes.total - n, passes.total - 1) for n in n_neg]],
        device=passes.device,
    )

    def scored() -> Iterator[Candidates]:
        for block in passes.blocks():
            yield Candidates(_sortable(block.scores.to(passes.dtype)), None)

    keys, ranks, ties = _select(passes, scored, ranks, passes.key_bits)
    rows = torch.stack([torch.full_like(keys[0], passes.total), torch.zeros_like(keys[0])])
    undivided = torch.stack([ranks[POSITIVE] == ties[POSITIVE] - 1, ranks[NEGATIVE] == 0])
    if not bool(undivided.all()):  # known to all shards alike

        def tied() -> Iterator[Candidates]:
            for block in passes.blocks():
                equal = _sortable(block.scores.to(passes.dtype)) == keys[:, None]
                yield Candidates(block.rows[:, None].expand(equal.shape[1:]), equal)

        rows, _, _ = _select(passes, tied, ranks, _row_bits(passes.total))
    exist = torch.tensor([n_pos, n_neg], device=passes.device) > 0
    return Borders(keys, rows, exist, passes.dtype)


class Candidates(NamedTuple):
    """Keys to select from (rows x classes, signed integers), and which of them take part on each side; None for all."""

    keys: Tensor
    take_part: Tensor | None


def _select(
    passes: ScorePasses, blocks: Callable[[], Iterator[Candidates]], ranks: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Find, among the candidates of all shards, the keys with the given ranks.

    Args:
        passes: number of classes, device, and how to sum over all shards.
        blocks: start a pass over the candidates.
        ranks: sides x classes: the wanted place in ascending order, from 0.
        width: bits that the keys use, the sign among them.

    Returns:
        The keys found, the rank of each among the candidates equal to it, and the number of those; sides x classes.
    """
    prefix, ties = torch.zeros_like(ranks), ranks
    shift = width
    while shift > 0:
        bits = min(BITS, shift)
        shift, before = shift - bits, shift
        first = before == width
        lowest = -(1 << (bits - 1)) if first else 0  # the top digit is signed
        counts = torch.zeros(2, passes.classes << bits, dtype=torch.int64, device=passes.device)
        offset = torch.arange(passes.classes, device=passes.device) << bits
        for keys, take_part in blocks():
            wide = keys.to(torch.int64)
            digit = (wide >> shift) - lowest if first else (wide >> shift) & ((1 << bits) - 1)
            slot = digit + offset
            if first and take_part is None:  # both sides count every row
                counts += torch.bincount(slot.flatten(), minlength=counts.shape[1])
                continue
            for side in (POSITIVE, NEGATIVE):
                chosen = torch.ones_like(slot, dtype=torch.bool) if first else (wide >> before) == prefix[side]
                if take_part is not None:
                    chosen &= take_part[side]
                counts[side] += torch.bincount(slot[chosen], minlength=counts.shape[1])
        counts = passes.sum_over_shards(counts).view(2, passes.classes, 1 << bits)
        digit, ranks, ties = choose_digit(counts, ranks)
        prefix = digit + lowest if first else (prefix << bits) | digit
    return prefix, ranks, ties


def choose_digit(counts: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the digit that holds each rank, the rank among the candidates with that digit, and their number.

    Args:
        counts: sides x classes x digits: number of candidates with each digit, over all shards.
        ranks: sides x classes: the wanted place in ascending order, from 0.
    """
    through = counts.cumsum(-1)
    digit = (through <= ranks[..., None]).sum(-1).clamp(max=counts.shape[-1] - 1)
    ties = counts.gather(-1, digit[..., None])[..., 0]
    return digit, ranks - (through.gather(-1, digit[..., None])[..., 0] - ties), ties


def _row_bits(total: int) -> int:
    return max(1, (total - 1).bit_length()) + 1  # + 1: the sign


def _sortable(scores: Tensor) -> Tensor:
    """Return integers that sort ascending as the scores sort descending; equal scores give equal integers."""
    floats = scores + 0.0  # -0.0 becomes 0.0
    return ~_monotone(floats.view(torch.int32 if floats.dtype == torch.float32 else torch.int64))


def _monotone(integers: Tensor) -> Tensor:
    """Flip all bits but the sign of negative integers: then float bits sort as signed integers. Its own inverse."""
    info = torch.iinfo(integers.dtype)
    return integers ^ ((integers >> (info.bits - 1)) & info.max)


def _check(passes: ScorePasses) -> None:
    """Raise on every shard alike: if only one raised, the others would wait for its counts."""
    total, facts = passes.total, torch.zeros(5, dtype=torch.int64, device=passes.device)
    for rows, scores in passes.blocks():
        misplaced = int(((rows < 0) | (rows >= total)).sum()) + abs(len(rows) - len(scores))
        # a row that two shards hold changes the sums of the row numbers and of their squares, which wrap at 64 bits
        sums = [int(rows.sum()), int((rows * rows).sum())]
        facts += torch.tensor([len(rows), misplaced, int(scores.isnan().sum()), *sums], device=passes.device)
    held, misplaced, missing, *sums = passes.sum_over_shards(facts).tolist()
    expected = [total * (total - 1) // 2, (total - 1) * total * (2 * total - 1) // 6]
    repeated = any((found - wanted) % 2**64 for found, wanted in zip(sums, expected, strict=True))
    if held != total or misplaced or repeated:
        raise TagspreadError(
            f"the shards hold {held:,} rows but total is {total:,}, and {misplaced:,} row numbers do not fit; "
            "give each row from 0 to total - 1 to exactly one shard."
        )
    if missing:

        def not_a_number() -> Iterator[Candidates]:
            for rows, scores in passes.blocks():
                is_nan = scores.isnan()
                yield Candidates(rows[:, None].expand(is_nan.shape), is_nan.expand(2, *is_nan.shape))

        first_rank = torch.zeros(2, passes.classes, dtype=torch.int64, device=passes.device)
        row, _, ties = _select(passes, not_a_number, first_rank, _row_bits(total))
        column = int((ties[POSITIVE] > 0).int().argmax())
        raise nan_error("scores", int(row[POSITIVE, column]), column)
