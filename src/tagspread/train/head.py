"""Start from a head that already works: the method itself, on the frozen network's features, by logistic regression.

Features of each picture and its mirror image are standardised; the rounds are those of :mod:`tagspread.linear.rounds`,
first over the labelled rows (a probe), then with the pile, a few times over. Seconds, and the same answer every time.
On the way the network gets, for a moment, the head that the labelled part alone gives, so that it can be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tagspread.linear.heads import Layers
from tagspread.linear.logistic import LinearHead
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.linear.rows import DenseRows
from tagspread.methods.base import Method, State
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Problem
from tagspread.train.scoring import score
from tagspread.vision.backbones import TagNet

ROUNDS = 5


def fit_head(
    network: TagNet,
    problem: Problem,
    config: TrainConfig,
    method: Method,
    state: State,
    device: torch.device,
    before_pile: Callable[[], None],
) -> None:
    """Set the linear head of ``network`` to the one fitted on its own features.

    If the method uses the pile, ``before_pile`` is called while the head is the one of the labelled part alone.
    """
    known = _features(network, problem, config, device, pile=False)
    y = torch.from_numpy(problem.y[problem.labelled]).to(device)
    settings = Settings(method, pile_weight=1.0 if config.pile_weight is None else config.pile_weight)
    if method.uses_pile:
        set_head(network, *probe_alone(known, y, settings.ridge))
        before_pile()
        if not settings.uses_pile:
            return
    pile = _features(network, problem, config, device, pile=True) if method.uses_pile else known[:, :0]
    everything = torch.cat([known, pile], dim=1).flatten(0, 1)
    mean, std = everything.mean(0), everything.std(0).clamp(min=1e-6)
    labelled_rows, pile_rows = DenseRows((known - mean) / std), DenseRows((pile - mean) / std)

    head = LinearHead()
    start = probe(labelled_rows, y, settings.ridge, head)
    how: dict[str, Any] = {"head": head, "classes": problem.classes, "max_rounds": ROUNDS, "state": state}
    fitted = spread(labelled_rows, y, pile_rows, settings, start, apart=apart_labels(problem), **how)
    set_head(network, fitted.layers, mean, std)


def apart_labels(problem: Problem) -> Tensor | None:
    """Return the labels of the rows that were set apart, which are the last of the pile; None if there are none."""
    return torch.from_numpy(problem.y[problem.apart]) if len(problem.apart) else None


def probe_alone(known: Tensor, y: Tensor, ridge: float) -> tuple[Layers, Tensor, Tensor]:
    """Return the head fitted on labelled rows that are standardised by themselves: the pile has no part in it."""
    rows = known.flatten(0, 1)
    mean, spread_out = rows.mean(0), rows.std(0, correction=0)
    std = torch.where(spread_out > 1e-6, spread_out, 1.0)  # a feature that is silent in all of them says nothing
    return probe(DenseRows((known - mean) / std), y, ridge, LinearHead()), mean, std


def set_head(network: TagNet, layers: Layers, mean: Tensor, std: Tensor) -> None:
    """Give the network a head that was fitted on standardised features."""
    ((weight, bias),) = layers
    with torch.no_grad():  # standardisation becomes part of the head
        network.head.weight.copy_(weight / std)
        network.head.bias.copy_(bias - (weight * (mean / std)).sum(1))


def _features(network: TagNet, problem: Problem, config: TrainConfig, device: torch.device, *, pile: bool) -> Tensor:
    """Return views x rows x features: the picture and, if pictures may be mirrored, its mirror image."""
    rows = problem.pile if pile else problem.labelled
    mirror = [lambda x: x, lambda x: x.flip(-1)] if config.flip else [lambda x: x]
    network.eval()
    return torch.stack(
        [
            score(
                lambda x, view=view: network.features(view(x)),  # type: ignore[misc]
                problem.store,
                rows,
                device=device,
                batch=config.score_batch,
                precision=config.precision,
            )
            for view in mirror
        ]
    ).clone()  # made in inference mode: a copy is an ordinary tensor again
