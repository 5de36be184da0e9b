r"""Top-k selection per class: label an exact number of the highest and lowest scores of each class.

Each class has one total order: higher scores first, and among equal scores the lower row first. Let :math:`r_{jk}` be
the rank of row j in the order of class k (0 is the highest). Then

.. math:: T_{jk} = 1 \;\text{if}\; r_{jk} < K^+_k, \quad 0 \;\text{if}\; r_{jk} \ge m - K^-_k, \quad -1 \;\text{else.}

On the CPU, a partial sort per class finds the two threshold scores in linear time, and comparisons do the rest. On a
GPU, a full sort is faster than a selection.
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

CLASSES_PER_BLOCK = 8  # keeps the copies small compared with the score matrix
STRIP = 2048  # rows transposed at a time: a strip of this size fits in the cache
SMALL = 100_000  # below this many scores, threads cost more than they save


def targets_by_rank(scores: Tensor, n_pos: Counts, n_neg: Counts) -> Tensor:
    """Return int8 targets: 1 for the ``n_pos[k]`` highest scores of class k, 0 for the ``n_neg[k]`` lowest, else -1."""
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
    """Return, for each class, the lowest score among its positives and the highest score among its negatives."""
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
    """Return the dtype to rank in: half precision is widened to float32, so that later arithmetic adds no ties."""
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def sort_rows(matrix: Tensor) -> Tensor:
    """Return ``matrix`` with each row sorted in ascending order."""
    if matrix.device.type != "cpu":
        return matrix.contiguous().sort(dim=1).values
    result = matrix.clone(memory_format=torch.contiguous_format)
    rows = result.numpy()  # numpy sorts the values only, with vector instructions; torch always sorts indices, too
    threads = _threads(rows.size)
    _in_threads(lambda thread: rows[thread::threads].sort(axis=1), threads)
    return result


def _borders(column: Column, n_pos: int, n_neg: int) -> tuple[float, float]:
    """Return (lowest positive score, highest negative score); infinite if that side is empty."""
    part, n_below = column.copy(), len(column) - n_pos
    if n_pos:
        part.partition(n_below)
    tau_pos = part[n_below] if n_pos else np.inf
    below = part[:n_below]  # unordered, but all of it lies below the positives
    n_ignored = n_below - n_neg
    if n_neg and n_ignored > 1:
        below.partition(n_neg - 1)
        return tau_pos, below[n_neg - 1]
    if n_neg and n_ignored == 1:  # most common: rounding ignores one row, so the second largest is the threshold
        below[below.argmax()] = -np.inf
    return tau_pos, (below.max() if n_neg else -np.inf)


def _label_column(column: Column, n_pos: int, n_neg: int) -> Column:
    tau_pos, tau_neg = _borders(column, n_pos, n_neg)
    positive, negative = column >= tau_pos, column <= tau_neg
    # ties may select too many rows: keep the lower rows as positives, and the higher rows as negatives
    if (excess := np.count_nonzero(positive) - n_pos) > 0:
        positive[np.flatnonzero(column == tau_pos)[-excess:]] = False
    if (excess := np.count_nonzero(negative) - n_neg) > 0:
        negative[np.flatnonzero(column == tau_neg)[:excess]] = False
    return (2 * positive.view(np.int8) + negative.view(np.int8) - 1).astype(np.int8, copy=False)


def _for_each_column(scores: Tensor, work: Callable[[Column, int], None]) -> None:
    """Call ``work(column, class)`` for each column, as contiguous memory, on all cores."""
    rows, classes = scores.shape
    threads = _threads(rows * classes)
    # allocate one buffer per thread here: the allocator is slow to release memory that threads allocate themselves
    buffers = torch.empty(threads, CLASSES_PER_BLOCK, rows, dtype=rank_dtype(scores)).numpy()

    def every_nth_block(thread: int) -> None:
        for first in range(thread * CLASSES_PER_BLOCK, classes, threads * CLASSES_PER_BLOCK):
            block = scores[:, first : first + CLASSES_PER_BLOCK]
            columns = buffers[thread, : block.shape[1]]
            for at in range(0, rows, STRIP):
                columns[:, at : at + STRIP] = _as_numpy(block[at : at + STRIP]).T
            if np.isnan(lowest := columns.min(axis=1)).any():  # min propagates NaN and needs only one pass
                k = int(np.isnan(lowest).argmax())
                raise nan_error("scores", int(np.isnan(columns[k]).argmax()), first + k)
            for k, column in enumerate(columns, start=first):
                work(column, k)

    _in_threads(every_nth_block, threads)


def _threads(cells: int) -> int:
    return 1 if cells <= SMALL else torch.get_num_threads()


def _in_threads(work: Callable[[int], None], threads: int) -> None:
    """Call ``work(0)`` to ``work(threads - 1)`` in parallel; numpy releases the interpreter lock while it works."""
    if threads == 1:
        work(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))


def _as_numpy(values: Tensor) -> Column:
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _ranked(scores: Tensor) -> torch.return_types.sort:
    check_no_nan("scores", scores)
    # adding zero turns -0.0 into 0.0: the two are equal, but a radix sort may order them by their bits
    by_class = (scores.to(rank_dtype(scores)) + 0.0).t().contiguous()
    return torch.sort(by_class, dim=1, descending=True, stable=True)


def _targets_by_sorting(scores: Tensor, n_pos: Counts, n_neg: Counts) -> Tensor:
    rows = len(scores)
    order = _ranked(scores).indices
    rank = torch.arange(rows, device=scores.device)
    pos, neg = (torch.tensor(n, device=scores.device).unsqueeze(1) for n in (n_pos, n_neg))
    by_rank = 2 * (rank < pos).to(torch.int8) + (rank >= rows - neg).to(torch.int8) - 1
    return torch.empty_like(by_rank).scatter_(1, order, by_rank).t().contiguous()
