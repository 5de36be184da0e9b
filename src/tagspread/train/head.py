"""Fit a linear head to features of a frozen network: the method itself, by logistic regression.

Features of each image and, if images may be mirrored, its mirror image are standardized; the rounds are those of
:mod:`tagspread.linear.rounds`, first over the labeled rows (a probe), then with the unlabeled set, a few times over.
Seconds, and the same answer every time. On the way the network has, for a moment, the head that the labeled part alone
gives, so that it can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tagspread.linear.feature_rows import DenseRows
from tagspread.linear.heads import Layers
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.methods.base import State, Targets
from tagspread.train.dataset import Dataset
from tagspread.vision.backbones import TagNet

ROUNDS = 5


class HeadData(NamedTuple):
    """What a head is fitted to.

    Attributes:
        features: views x rows x features, the labeled rows first, the unlabeled ones behind them.
        y: labels of the labeled rows, on the same device.
        classes: the tags' names.
        apart: labels of the last unlabeled rows, if those were set apart to judge by.
    """

    features: Tensor
    y: Tensor
    classes: Sequence[str]
    apart: Tensor | None = None

    @classmethod
    def of(cls, dataset: Dataset, features: Tensor) -> HeadData:
        """Return features of a dataset's rows with their labels."""
        y = torch.from_numpy(dataset.y[dataset.labeled]).to(features.device)
        apart = torch.from_numpy(dataset.y[dataset.apart]) if len(dataset.apart) else None
        return cls(features, y, dataset.classes, apart)


class Standardized(NamedTuple):
    """Features with mean 0 and variance 1 over all rows and views."""

    labeled: DenseRows
    unlabeled: DenseRows
    mean: Tensor
    std: Tensor


def fit_head(
    network: TagNet,
    data: HeadData,
    settings: Settings,
    *,
    labeled_only: Callable[[], None],
    method_state: State | None = None,
    watch: Callable[[int, Targets, Tensor], None] | None = None,
) -> None:
    """Set the linear head of ``network`` to the one fitted on features.

    Args:
        network: gets the head.
        data: features and labels.
        settings: method, penalties and weight of the unlabeled set; with weight 0 nothing of it has a part.
        labeled_only: is called while the head is that of the labeled part alone, if the method uses the unlabeled set.
        method_state: the method's state, if it has been started already.
        watch: is shown each round's number, targets and scores of the unlabeled set.
    """
    if settings.method.uses_unlabeled:
        fit_labeled_only(network, data, settings.ridge)
        labeled_only()
        if not settings.uses_unlabeled:
            return
    rows, head = standardize(data), LogisticHead()
    start = probe(rows.labeled, data.y, settings.ridge, head)
    fitted = spread(
        rows.labeled, data.y, rows.unlabeled, settings, start,
        head=head, classes=data.classes, max_rounds=ROUNDS, state=method_state, apart=data.apart, watch=watch,
    )  # fmt: skip
    set_head(network, fitted.layers, rows.mean, rows.std)


def fit_labeled_only(network: TagNet, data: HeadData, ridge: float) -> None:
    """Set the linear head to the one fitted on labeled rows alone, standardized by themselves."""
    labeled = data.features[:, : len(data.y)]
    rows = labeled.flatten(0, 1)
    mean, spread_out = rows.mean(0), rows.std(0, correction=0)
    std = torch.where(spread_out > 1e-6, spread_out, 1.0)  # a feature that is silent in all of them says nothing
    layers = probe(DenseRows((labeled - mean) / std), data.y, ridge, LogisticHead())
    set_head(network, layers, mean, std)


def standardize(data: HeadData) -> Standardized:
    """Return the features, standardized over labeled and unlabeled rows together."""
    rows, n = data.features.flatten(0, 1), len(data.y)
    mean, std = rows.mean(0), rows.std(0).clamp(min=1e-6)
    standard = (data.features - mean) / std
    return Standardized(DenseRows(standard[:, :n]), DenseRows(standard[:, n:]), mean, std)


def set_head(network: TagNet, layers: Layers, mean: Tensor, std: Tensor) -> None:
    """Give the network a head that was fitted on standardized features."""
    ((weight, bias),) = layers
    with torch.no_grad():  # standardization becomes part of the head
        network.head.weight.copy_(weight / std)
        network.head.bias.copy_(bias - (weight * (mean / std)).sum(1))
