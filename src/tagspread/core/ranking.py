r"""Pick a given number of highest and lowest scores of each class, exactly.

One total order per class: higher score first, and among equal scores the lower row first. With
:math:`r_{jk}` the place of row j in the order of class k (0 is the highest),

.. math:: T_{jk} = 1 \;\text{if}\; r_{jk} < K^+_k, \quad 0 \;\text{if}\; r_{jk} \ge m - K^-_k, \quad -1 \;\text{else.}

On the CPU a partial sort per class finds the two border scores in linear time and comparisons do the
rest; a GPU sorts faster than it selects.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tagspread.core.arrays import check_no_nan, nan_error

Column: TypeAlias = np.ndarray[Any, Any]
Counts: TypeAlias = list[int]

CLASSES_PER_BLOCK = 8  # few enough that the copies stay small beside the score matrix
STRIP = 2048  # rows transposed at a time: such a strip stays in the cache
SMALL = 100_000  # below this many scores, threads cost more than they save


def targets_by_rank(scores: Tensor, n_pos: Counts, n_neg: Counts) -> Tensor:
    """Return int8 targets: 1 for the ``n_pos[k]`` highest, 0 for the ``n_neg[k]`` lowest, -1 between."""
    if scores.device.type != "cpu":
        return _targets_by_sorting(scores, n_pos, n_neg)
    rows, classes = scores.shape
    by_class = np.empty((classes, rows), dtype=np.int8)

    def label(column: Column, k: int) -> None:
        by_class[k] = _label_column(column, n_pos[k], n_neg[k])

    _for_each_column(scores, label)
    targets = np.empty((rows, classes), dtype=np.int8)
    for at in range(0, rows, STRIP):
        targets[at : at + STRIP] = by_class[:, at : at + STRIP].T
    return torch.from_numpy(targets)


def thresholds_by_rank(scores: Tensor, n_pos: Counts, n_neg: Counts) -> tuple[Tensor, Tensor]:
    """Return the scores of the last positive and of the last negative of each class."""
    rows, classes = scores.shape
    if scores.device.type != "cpu":
        ranked = _ranked(scores).values
        each = torch.arange(classes, device=scores.device)
        pos, neg = (torch.tensor(n, device=scores.device) for n in (n_pos, n_neg))
        tau_pos = torch.where(pos > 0, ranked[each, (pos - 1).clamp(min=0)], torch.inf)
        tau_neg = torch.where(neg > 0, ranked[each, (rows - neg).clamp(max=rows - 1)], -torch.inf)
        return tau_pos, tau_neg
    borders = np.empty((classes, 2), dtype=np.float64 if scores.dtype == torch.float64 else np.float32)

    def find(column: Column, k: int) -> None:
        borders[k] = _borders(column, n_pos[k], n_neg[k])

    _for_each_column(scores, find)
    return torch.from_numpy(borders[:, 0].copy()), torch.from_numpy(borders[:, 1].copy())


def rank_dtype(scores: Tensor) -> torch.dtype:
    """Half-precision scores are ranked in float32, so that no arithmetic on the way can tie two of them."""
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def sort_rows(matrix: Tensor) -> Tensor:
    """Return ``matrix`` with each row in ascending order."""
    if matrix.device.type != "cpu":
        return matrix.contiguous().sort(dim=1).values
    result = matrix.clone(memory_format=torch.contiguous_format)
    rows = result.numpy()  # numpy sorts values alone, with vector instructions; torch always sorts an index along
    threads = _threads(rows.size)
    _in_threads(lambda thread: rows[thread::threads].sort(axis=1), threads)
    return result


def _borders(column: Column, n_pos: int, n_neg: int) -> tuple[float, float]:
    """Return (lowest positive score, highest negative score); an infinity for an empty side."""
    part, cut = column.copy(), len(column) - n_pos
    if n_pos:
        part.partition(cut)
    tau_pos = part[cut] if n_pos else np.inf
    below = part[:cut]  # in no order, but all of it lies below the positives
    between = cut - n_neg
    if n_neg and between > 1:
        below.partition(n_neg - 1)
        return tau_pos, below[n_neg - 1]
    if n_neg and between == 1:  # the usual case, rounding leaves one row over: the second largest is wanted
        below[below.argmax()] = -np.inf
    return tau_pos, (below.max() if n_neg else -np.inf)


def _label_column(column: Column, n_pos: int, n_neg: int) -> Column:
    tau_pos, tau_neg = _borders(column, n_pos, n_neg)
    positive, negative = column >= tau_pos, column <= tau_neg
    # rows tied with a border may be too many: the lower rows go to the positives, the higher to the negatives
    if (excess := np.count_nonzero(positive) - n_pos) > 0:
        positive[np.flatnonzero(column == tau_pos)[-excess:]] = False
    if (excess := np.count_nonzero(negative) - n_neg) > 0:
        negative[np.flatnonzero(column == tau_neg)[:excess]] = False
    return (2 * positive.view(np.int8) + negative.view(np.int8) - 1).astype(np.int8, copy=False)


def _for_each_column(scores: Tensor, work: Callable[[Column, int], None]) -> None:
    """Call ``work(column, class)`` with each column as contiguous memory, on all cores."""
    rows, classes = scores.shape
    threads = _threads(rows * classes)
    # one buffer for each thread, made here: what threads allocate themselves, the allocator is slow to give back
    buffers = torch.empty(threads, CLASSES_PER_BLOCK, rows, dtype=rank_dtype(scores)).numpy()

    def every_nth_block(thread: int) -> None:
        for first in range(thread * CLASSES_PER_BLOCK, classes, threads * CLASSES_PER_BLOCK):
            block = scores[:, first : first + CLASSES_PER_BLOCK]
            columns = buffers[thread, : block.shape[1]]
            for at in range(0, rows, STRIP):
                columns[:, at : at + STRIP] = _as_numpy(block[at : at + STRIP]).T
            if np.isnan(lowest := columns.min(axis=1)).any():  # min passes NaN on, at the price of one read
                k = int(np.isnan(lowest).argmax())
                raise nan_error("scores", int(np.isnan(columns[k]).argmax()), first + k)
            for k, column in enumerate(columns, start=first):
                work(column, k)

    _in_threads(every_nth_block, threads)


def _threads(cells: int) -> int:
    return 1 if cells <= SMALL else torch.get_num_threads()


def _in_threads(work: Callable[[int], None], threads: int) -> None:
    """Call ``work(0)`` to ``work(threads - 1)`` side by side; numpy lets go of the interpreter lock meanwhile."""
    if threads == 1:
        work(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))


def _as_numpy(values: Tensor) -> Column:
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _ranked(scores: Tensor) -> torch.return_types.sort:
    check_no_nan("scores", scores)
    # adding zero turns -0.0 into 0.0: equal numbers that a radix sort may tell apart by their bits
    by_class = (scores.to(rank_dtype(scores)) + 0.0).t().contiguous()
    return torch.sort(by_class, dim=1, descending=True, stable=True)


def _targets_by_sorting(scores: Tensor, n_pos: Counts, n_neg: Counts) -> Tensor:
    rows = len(scores)
    order = _ranked(scores).indices
    rank = torch.arange(rows, device=scores.device)
    pos, neg = (torch.tensor(n, device=scores.device).unsqueeze(1) for n in (n_pos, n_neg))
    by_rank = 2 * (rank < pos).to(torch.int8) + (rank >= rows - neg).to(torch.int8) - 1
    return torch.empty_like(by_rank).scatter_(1, order, by_rank).t().contiguous()
