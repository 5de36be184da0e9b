"""Linear head on the embeddings of a frozen network, fitted by logistic regression with pseudo-labels.

The features of each image and, if images may be mirrored, of its mirror image are standardized. The head is fitted on
the labeled rows first (a linear probe), then in pseudo-labeling rounds with the unlabeled rows
(:mod:`tagspread.linear.rounds`). This takes seconds and is deterministic. In between, the network has the labeled-only
head, so that the caller can save it.
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
    """Features and labels to fit a head on.

    Attributes:
        features: views x rows x features; labeled rows first, then unlabeled rows.
        y: labels of the labeled rows, on the same device.
        classes: names of the tags.
        apart: labels of the last unlabeled rows, if the method set labeled rows apart.
    """

    features: Tensor
    y: Tensor
    classes: Sequence[str]
    apart: Tensor | None = None

    @classmethod
    def of(cls, dataset: Dataset, features: Tensor) -> HeadData:
        """Combine features of a dataset's labeled and unlabeled rows with its labels."""
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
    """Fit a linear head on features and set it as the head of ``network``.

    Args:
        network: the network whose head is set.
        data: features and labels.
        settings: method, penalties and weight of the unlabeled set; with weight 0 the unlabeled set is not used.
        labeled_only: called while the network has the labeled-only head, if the method uses the unlabeled set.
        method_state: the method's state, if it was started already.
        watch: called after each round with its number and the targets and scores of the unlabeled set.
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
    """Fit a linear head on the labeled rows only, standardized without the unlabeled rows, and set it."""
    labeled = data.features[:, : len(data.y)]
    rows = labeled.flatten(0, 1)
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    std = torch.where(deviation > 1e-6, deviation, 1.0)  # do not scale up features that are constant
    layers = probe(DenseRows((labeled - mean) / std), data.y, ridge, LogisticHead())
    set_head(network, layers, mean, std)


def standardize(data: HeadData) -> Standardized:
    """Standardize the features over labeled and unlabeled rows together."""
    rows, n = data.features.flatten(0, 1), len(data.y)
    mean, std = rows.mean(0), rows.std(0).clamp(min=1e-6)
    standard = (data.features - mean) / std
    return Standardized(DenseRows(standard[:, :n]), DenseRows(standard[:, n:]), mean, std)


def set_head(network: TagNet, layers: Layers, mean: Tensor, std: Tensor) -> None:
    """Set the network's head to one that was fitted on standardized features."""
    ((weight, bias),) = layers
    with torch.no_grad():  # fold the standardization into the head
        network.head.weight.copy_(weight / std)
        network.head.bias.copy_(bias - (weight * (mean / std)).sum(1))
