"""Start from a head that already works: the method itself, on the frozen network's features, by logistic regression.

Features of each picture and its mirror image are standardised; the rounds are those of :mod:`tagspread.linear.rounds`,
first over the labelled rows (a probe), then with the pile, a few times over. Seconds, and the same answer every time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tagspread.linear.logistic import LinearHead
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.linear.rows import DenseRows
from tagspread.methods.base import Method, State
from tagspread.train.config import TrainConfig
from tagspread.train.problem import Problem
from tagspread.train.score import score
from tagspread.vision.backbones import TagNet

ROUNDS = 5


def fit_head(
    network: TagNet, problem: Problem, config: TrainConfig, method: Method, state: State, device: torch.device
) -> None:
    """Set the linear head of ``network`` to the one fitted on its own features."""
    known = _features(network, problem, config, device, pile=False)
    y = torch.from_numpy(problem.y[problem.labelled]).to(device)
    pile = _features(network, problem, config, device, pile=True) if method.uses_pile else known[:, :0]
    everything = torch.cat([known, pile], dim=1).flatten(0, 1)
    mean, std = everything.mean(0), everything.std(0).clamp(min=1e-6)
    labelled_rows, pile_rows = DenseRows((known - mean) / std), DenseRows((pile - mean) / std)

    settings, head = Settings(method), LinearHead()
    start = probe(labelled_rows, y, settings.ridge, head)
    fitted = spread(
        labelled_rows, y, pile_rows, settings, start, head=head, classes=problem.classes, max_rounds=ROUNDS, state=state
    )
    ((weight, bias),) = fitted.layers
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
