r"""Start from a head that already works: the method itself, on the frozen network's features, by logistic regression.

Features :math:`x` of each picture and its mirror image are standardised; per round

.. math:: \min_{W, b} \frac1{|R|} \sum_{i \in R} \sum_k \mathrm{BCE}(w_k \cdot x_i + b_k, T_{ik})
          + \frac\lambda2 \lVert W \rVert^2

first over the labelled rows R (a probe), then over labelled rows and the pile with the targets the method gives for the
probe's scores, a few times over. The problem is convex and small: seconds, and the same answer every time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tagspread.core.losses import bce_loss
from tagspread.methods.base import Labelled, Method, State
from tagspread.train.config import TrainConfig
from tagspread.train.problem import Problem
from tagspread.train.score import score
from tagspread.vision.backbones import TagNet

ROUNDS = 5
RIDGE_PROBE, RIDGE_PILE = 0.1, 0.02  # with the pile there is more to lean on than the penalty


def fit_head(
    network: TagNet, problem: Problem, config: TrainConfig, method: Method, state: State, device: torch.device
) -> None:
    """Set the linear head of ``network`` to the one fitted on its own features."""
    known = _features(network, problem, config, device, pile=False)
    y = torch.from_numpy(problem.y[problem.labelled]).to(device)
    pile = _features(network, problem, config, device, pile=True) if method.uses_pile else known[:, :0]
    everything = torch.cat([known, pile], dim=1).flatten(0, 1)
    mean, std = everything.mean(0), everything.std(0).clamp(min=1e-6)
    known, pile = (known - mean) / std, (pile - mean) / std

    weight = torch.zeros(len(problem.classes), known.shape[-1] + 1, device=device)
    weight = fit_logistic(known, y, weight, RIDGE_PROBE)
    labelled = Labelled(torch.from_numpy(problem.y[problem.labelled]), problem.classes)
    for _ in range(ROUNDS if method.uses_pile else 0):
        targets = method.targets(_logits(pile, weight).mean(0), labelled, state)
        rows, labels = torch.cat([known, pile], dim=1), torch.cat([y.float(), targets.labels.float()])
        entry_weight = torch.ones_like(labels)
        if targets.weight is not None:
            entry_weight[len(y) :] = targets.weight
        weight = fit_logistic(rows, labels, weight, RIDGE_PILE, entry_weight)
    with torch.no_grad():  # standardisation becomes part of the head
        network.head.weight.copy_(weight[:, :-1] / std)
        network.head.bias.copy_(weight[:, -1] - (weight[:, :-1] * (mean / std)).sum(1))


def fit_logistic(
    features: Tensor, labels: Tensor, start: Tensor, ridge: float, entry_weight: Tensor | None = None
) -> Tensor:
    """Return the weights (classes x features + 1, the last is the bias) that minimise the loss, from ``start``.

    Args:
        features: views x rows x features; every view of a row has the row's labels.
        labels: rows x classes: 1, 0, -1 ignored.
        start: weights to begin with.
        ridge: penalty on the weights; the bias is free.
        entry_weight: importance of each entry.
    """
    weight = start.clone().requires_grad_()
    views, rows, _ = features.shape
    optimizer = torch.optim.LBFGS([weight], max_iter=200, tolerance_grad=1e-5, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        data = sum(bce_loss(logits, labels, entry_weight) for logits in _logits(features, weight)) / (views * rows)
        loss: Tensor = data + ridge / 2 * weight[:, :-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    return weight.detach()


def _logits(features: Tensor, weight: Tensor) -> Tensor:
    return features @ weight[:, :-1].T + weight[:, -1]


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
