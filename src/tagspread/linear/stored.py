r"""Feature matrices larger than memory: rows are read from the file block by block, in every pass over them.

Neither their features nor their scores are kept. CAP's quotas need the two border scores of each class over all rows,
which a radix select finds in a few passes (:mod:`tagspread.core.sharded_ranking`). A pseudo-label follows from them and
from the head that scored the rows, so that it is computed again, block by block, whenever the solver needs it. The
memory depends on the size of a block only, and the time grows linearly with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tagspread.core.sharded_ranking import Borders, ScoreBlock, ScorePasses, find_borders
from tagspread.core.thresholds import quotas
from tagspread.errors import TagspreadError
from tagspread.linear.heads import NUMBERS_PER_BLOCK, Block, DenseBlock, DenseRows, Head, Layers, Part, Rows
from tagspread.linear.rounds import Fitted, Settings, confidence, constant_classes
from tagspread.methods.base import Method
from tagspread.methods.cap import CAP

Scale: TypeAlias = Callable[[Any], Tensor]


class Piece(NamedTuple):
    """Some rows of a matrix that is read from a file."""

    matrix: Any  # slices and sorted indices of it are arrays
    rows: np.ndarray  # in ascending order


class StoredRows:
    """Rows of matrices that are read from files, scaled on the way.

    Args:
        pieces: the rows, one matrix after the other.
        scale: returns the scaled float32 rows of a block.
        width: number of features.
        device: device of the blocks.
    """

    views = 1

    def __init__(self, pieces: Sequence[Piece], scale: Scale, width: int, device: torch.device | str = "cpu") -> None:
        self.width, self._pieces, self.device = width, list(pieces), torch.device(device)
        self._scale: Scale = lambda block: scale(block).to(self.device)
        self._starts = np.cumsum([0, *(len(piece.rows) for piece in pieces)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def numbers(self) -> int:
        """Rows x features."""
        return len(self) * self.width

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Read the rows once, in blocks of the same size as :class:`DenseRows`."""
        step = max(1, NUMBERS_PER_BLOCK // max(1, self.width))
        for at in range(0, len(self), step):
            where = slice(at, min(at + step, len(self)))
            yield where, DenseBlock(torch.cat(list(self._read(where.start, where.stop))))

    def _read(self, start: int, stop: int) -> Iterator[Tensor]:
        for (matrix, rows), first, end in zip(self._pieces, self._starts, self._starts[1:], strict=False):
            low, high = max(start, first) - first, min(stop, end) - first
            if low < high:
                wanted = rows[low:high]
                is_range = wanted[-1] - wanted[0] == len(wanted) - 1  # then reading is one copy
                yield self._scale(matrix[wanted[0] : wanted[-1] + 1] if is_range else matrix[wanted])

    def take(self, rows: Tensor) -> DenseRows:
        """Read some rows, given in ascending order, into memory."""
        wanted, parts = rows.cpu().numpy(), []
        for (matrix, own), first, end in zip(self._pieces, self._starts, self._starts[1:], strict=False):
            places = wanted[(wanted >= first) & (wanted < end)] - first
            if len(places):
                parts.append(self._scale(matrix[own[places]]))
        return DenseRows(torch.cat(parts) if parts else torch.zeros(0, self.width))


@dataclass(frozen=True)
class StoredLabels:
    """Pseudo-labels of stored rows, computed block by block.

    Attributes:
        layers: the head that scores the rows.
        borders: the border scores of each class.
        constant: log-odds of constant classes, NaN for all others.
        calibration: see :class:`tagspread.linear.rounds.Settings`.
    """

    layers: Layers
    borders: Borders
    constant: Tensor
    calibration: tuple[float, float] | None = None

    def of(self, where: slice, block: Block) -> tuple[Tensor, Tensor | None]:
        """Return the labels of a block for training, without constant classes, and their weights."""
        scores = forward(block, self.layers)
        targets = self._targets(where, scores)
        weight = None if self.calibration is None else confidence(targets, scores, self.calibration)
        return torch.where(self.constant.isnan(), targets, -1), weight

    def targets(self, where: slice, block: Block) -> Tensor:
        """Return the pseudo-labels of a block; a constant class is labeled as in all labeled rows."""
        return self._targets(where, forward(block, self.layers))

    def _targets(self, where: slice, scores: Tensor) -> Tensor:
        targets = self.borders.targets(ScoreBlock(_numbers(where).to(scores.device), scores))
        always = torch.where(self.constant == 0, -1, (self.constant > 0).to(torch.int8)).to(torch.int8)
        return torch.where(self.constant.isnan(), targets, always)


def check_stored(method: Method, head: str = "linear") -> None:
    """Raise unless method and head need no scores or features of all rows in memory."""
    if head != "linear":
        raise TagspreadError(
            f"head is {head!r}, which reads the rows in random order, but the features are memory-mapped; use head "
            "'linear', or load the features, such as with np.array(X)."
        )
    if method.uses_unlabeled and type(method) is not CAP:
        raise TagspreadError(
            f"{type(method).__name__} needs the scores of all rows in memory, but the features are memory-mapped; use "
            "method 'cap' or 'bce', or load the features, such as with np.array(X)."
        )


def spread_stored(
    labeled: Rows,
    y: Tensor,
    unlabeled: Rows,
    settings: Settings,
    start: Layers,
    *,
    head: Head,
    classes: Sequence[str],
    max_rounds: int = 5,
    tolerance: float = 0.0,
    watch: Callable[..., None] | None = None,
) -> Fitted:
    """Fit the head as :func:`tagspread.linear.rounds.spread` does, without pseudo-labels in memory."""
    method = settings.method
    check_stored(method)
    if not settings.uses_unlabeled or not isinstance(method, CAP) or not len(unlabeled):
        return Fitted(start)
    constant, layers, previous = constant_classes(y), start, None
    n_pos, n_neg = _quotas(method, y, len(unlabeled), classes)
    known = torch.where(constant.isnan(), y, -1)
    log: list[dict[str, float]] = []
    for number in range(1, max_rounds + 1):
        borders = find_borders(_passes(unlabeled, layers), n_pos, n_neg)
        labels = StoredLabels(layers, borders, constant, settings.calibration)
        share, positives = _changes(unlabeled, labels, previous)
        if previous is not None and share <= tolerance:
            break
        if watch is not None:
            watch(number)
        parts = [Part(labeled, known), Part(unlabeled, labels, None, settings.unlabeled_weight)]
        layers = head.fit(parts, layers, settings.penalty(len(labeled), len(unlabeled)))
        previous = labels
        log.append({"round": number, "moved": share, "positives": positives})
    return Fitted(layers, log=log)


def forward(block: Block, layers: Layers) -> Tensor:
    """Return the logits of a block."""
    (first, offset), *rest = layers
    out = block.times(first) + offset
    for weight, bias in rest:
        out = out.relu() @ weight.T + bias
    return out


def _passes(rows: Rows, layers: Layers) -> ScorePasses:
    """Return passes over the scores, which are computed again in each of them."""

    def blocks() -> Iterator[ScoreBlock]:
        for where, block in rows.blocks():
            yield ScoreBlock(_numbers(where).to(rows.device), forward(block, layers))

    return ScorePasses(blocks, len(layers[-1][1]), len(rows), lambda counts: counts, device=rows.device)


def _quotas(method: CAP, y: Tensor, rows: int, classes: Sequence[str]) -> tuple[list[int], list[int]]:
    positives, known = (y == 1).sum(0), (y >= 0).sum(0)
    return quotas(
        positives, known, rows, y.shape[1], method.keep_pos, method.keep_neg, priors=method.priors_of(tuple(classes))
    )


def _changes(rows: Rows, labels: StoredLabels, previous: StoredLabels | None) -> tuple[float, int]:
    """Return the share of pseudo-labels that differ from the previous ones, and the number of positives."""
    changed = positives = 0
    for where, block in rows.blocks():
        targets = labels.targets(where, block)
        positives += int((targets == 1).sum())
        if previous is not None:
            changed += int((targets != previous.targets(where, block)).sum())
    share = 1.0 if previous is None else changed / (len(rows) * targets.shape[1])
    return share, positives


def _numbers(where: slice) -> Tensor:
    return torch.arange(where.start, where.stop)
