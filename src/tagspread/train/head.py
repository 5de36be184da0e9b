"""Start from a head that already works: the method itself, on the frozen network's features, by logistic regression.

Features of each image and its mirror image are standardized; the rounds are those of :mod:`tagspread.linear.rounds`,
first over the labeled rows (a probe), then with the unlabeled set, a few times over. Seconds, and the same answer every
time. On the way the network gets, for a moment, the head that the labeled part alone gives, so that it can be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tagspread.linear.feature_rows import DenseRows
from tagspread.linear.heads import Layers
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.methods.base import Method, State
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.scoring import score
from tagspread.vision.backbones import TagNet

ROUNDS = 5


def fit_head(
    network: TagNet,
    dataset: Dataset,
    config: TrainConfig,
    method: Method,
    state: State,
    device: torch.device,
    before_unlabeled: Callable[[], None],
) -> None:
    """Set the linear head of ``network`` to the one fitted on its own features.

    If the method uses the unlabeled set, ``before_unlabeled`` is called while the head is the one of the labeled part
    alone.
    """
    known = _features(network, dataset, config, device, unlabeled=False)
    y = torch.from_numpy(dataset.y[dataset.labeled]).to(device)
    settings = Settings(method, unlabeled_weight=1.0 if config.unlabeled_weight is None else config.unlabeled_weight)
    if method.uses_unlabeled:
        set_head(network, *probe_alone(known, y, settings.ridge))
        before_unlabeled()
        if not settings.uses_unlabeled:
            return
    unlabeled = _features(network, dataset, config, device, unlabeled=True) if method.uses_unlabeled else known[:, :0]
    everything = torch.cat([known, unlabeled], dim=1).flatten(0, 1)
    mean, std = everything.mean(0), everything.std(0).clamp(min=1e-6)
    labeled_rows, unlabeled_rows = DenseRows((known - mean) / std), DenseRows((unlabeled - mean) / std)

    head = LogisticHead()
    start = probe(labeled_rows, y, settings.ridge, head)
    how: dict[str, Any] = {"head": head, "classes": dataset.classes, "max_rounds": ROUNDS, "state": state}
    fitted = spread(labeled_rows, y, unlabeled_rows, settings, start, apart=apart_labels(dataset), **how)
    set_head(network, fitted.layers, mean, std)


def apart_labels(dataset: Dataset) -> Tensor | None:
    """Return the labels of the rows that were set apart (the last unlabeled rows); None if there are none."""
    return torch.from_numpy(dataset.y[dataset.apart]) if len(dataset.apart) else None


def probe_alone(known: Tensor, y: Tensor, ridge: float) -> tuple[Layers, Tensor, Tensor]:
    """Return the head fitted on labeled rows alone, standardized by themselves."""
    rows = known.flatten(0, 1)
    mean, spread_out = rows.mean(0), rows.std(0, correction=0)
    std = torch.where(spread_out > 1e-6, spread_out, 1.0)  # a feature that is silent in all of them says nothing
    return probe(DenseRows((known - mean) / std), y, ridge, LogisticHead()), mean, std


def set_head(network: TagNet, layers: Layers, mean: Tensor, std: Tensor) -> None:
    """Give the network a head that was fitted on standardized features."""
    ((weight, bias),) = layers
    with torch.no_grad():  # standardization becomes part of the head
        network.head.weight.copy_(weight / std)
        network.head.bias.copy_(bias - (weight * (mean / std)).sum(1))


def _features(
    network: TagNet, dataset: Dataset, config: TrainConfig, device: torch.device, *, unlabeled: bool
) -> Tensor:
    """Return views x rows x features: the image and, if images may be mirrored, its mirror image."""
    rows = dataset.unlabeled if unlabeled else dataset.labeled
    mirror = [lambda x: x, lambda x: x.flip(-1)] if config.flip else [lambda x: x]
    network.eval()
    return torch.stack(
        [
            score(
                lambda x, view=view: network.features(view(x)),  # type: ignore[misc]
                dataset.store,
                rows,
                device=device,
                batch=config.score_batch,
                precision=config.precision,
            )
            for view in mirror
        ]
    ).clone()  # made in inference mode: a copy is an ordinary tensor again
