r"""L-BFGS for many convex problems of the same size at once, such as the classes of a linear head.

Every problem has its own history, step size and end, but all gradients are computed together, which takes few large
matrix products instead of many small ones. One history for all problems would need more steps, because a direction that
suits one class does not suit the others.

A step is accepted by gradients alone: with :math:`\varphi(t)` the loss along the direction, if
:math:`\varphi'(t) \le |\varphi'(0)| / 2`. The loss of a convex problem then decreases wherever its curvature changes
little, and it need not be computed; in float32, small differences of it would be rounding errors. Otherwise the step is
repeated with the zero of the secant of :math:`\varphi'`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

HISTORY = 10
SMALLEST_STEP = 1e-9  # of the direction; where a smaller one is needed, the gradient is a rounding error
OVERSHOOT = 0.5
FEWER = 0.75  # problems that are solved are left out once less than this share is unsolved


class _Pair(NamedTuple):
    """A step of each problem, the change of its gradient, and one over their product (0 without a step)."""

    step: Tensor
    change: Tensor
    curvature: Tensor


def minimize(
    gradient: Callable[[Tensor, Tensor | None], Tensor], start: Tensor, *, max_iter: int, tolerance: float
) -> Tensor:
    """Minimize one convex function per row.

    Args:
        gradient: returns the gradients at some points, one per row; called with the points and with the numbers of
            their problems, or None for all problems in order.
        start: problems x variables: the points to start from.
        max_iter: maximal number of calls of ``gradient``.
        tolerance: a problem is solved when no entry of its gradient is larger.

    >>> lowest = torch.tensor([[3.0], [-1.0]])
    >>> def gradient(points, problems):
    ...     return points - (lowest if problems is None else lowest[problems])
    >>> minimize(gradient, torch.zeros(2, 1), max_iter=50, tolerance=1e-6).tolist()
    [[3.0], [-1.0]]
    """
    result, problems = start.clone(), None
    x, slopes = start, gradient(start, None)
    step_size = 1 / slopes.abs().sum(1).clamp(min=1)
    scale = torch.ones_like(step_size)
    pairs: deque[_Pair] = deque(maxlen=HISTORY)
    for _ in range(max_iter - 1):
        unsolved = (slopes.abs().amax(1) > tolerance) & (step_size >= SMALLEST_STEP)
        left = int(unsolved.sum())
        if left == 0:
            break
        if left < FEWER * len(x):
            result = x if problems is None else result.index_copy(0, problems, x)
            kept = unsolved.nonzero().squeeze(1)
            problems = kept if problems is None else problems[kept]
            x, slopes, step_size, scale, unsolved = (tensor[kept] for tensor in (x, slopes, step_size, scale, unsolved))
            pairs = deque((_Pair(*(tensor[kept] for tensor in pair)) for pair in pairs), maxlen=HISTORY)
        direction = _direction(slopes, pairs, scale)
        before = (slopes * direction).sum(1)
        step = direction * torch.where(unsolved, step_size, 0.0)[:, None]
        new_slopes = gradient(x + step, problems)
        after = (new_slopes * direction).sum(1)
        accepted = unsolved & (after <= OVERSHOOT * before.abs())
        step, change = (torch.where(accepted[:, None], tensor, 0.0) for tensor in (step, new_slopes - slopes))
        product, square = (step * change).sum(1), change.square().sum(1)
        is_curved = product > 1e-8 * square
        pairs.append(_Pair(step, change, torch.where(is_curved, 1 / product, 0.0)))
        scale = torch.where(is_curved, product / square, scale)
        x, slopes = x + step, torch.where(accepted[:, None], new_slopes, slopes)
        secant = before.abs() / (before.abs() + after.clamp(min=0)).clamp(min=1e-30)
        step_size = torch.where(accepted | ~unsolved, 1.0, step_size * secant)
    return x if problems is None else result.index_copy(0, problems, x)


def _direction(slopes: Tensor, pairs: deque[_Pair], scale: Tensor) -> Tensor:
    """Return the descent direction of each problem: its gradient times an estimate of the inverse Hessian."""
    direction, shares = -slopes, []
    for pair in reversed(pairs):
        shares.append(share := pair.curvature * (pair.step * direction).sum(1))
        direction.addcmul_(share[:, None], pair.change, value=-1)
    direction *= scale[:, None]
    for pair, share in zip(pairs, reversed(shares), strict=True):
        direction.addcmul_((share - pair.curvature * (pair.change * direction).sum(1))[:, None], pair.step)
    return direction
