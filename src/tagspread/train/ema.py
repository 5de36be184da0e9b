r"""The teacher: an exponential moving average of the student.

.. math:: \bar\theta \leftarrow d_t\, \bar\theta + (1 - d_t)\, \theta, \qquad
          d_t = \min\Big(d, \frac{1 + t}{10 + t}\Big) \text{ with warm-up, else } d

A constant d = 0.9997 still carries 95 % of its start after 180 steps, which on small data makes the average useless;
the warm-up lets it follow from the first step.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class EMA:
    """Keeps ``model``, the average of what ``update`` is shown."""

    def __init__(self, student: nn.Module, decay: float, warmup: bool = True) -> None:
        self.model = copy.deepcopy(student).eval().requires_grad_(False)
        self.decay, self.warmup, self.steps = decay, warmup, 0
        self._pairs(student)

    def _pairs(self, student: nn.Module) -> None:
        """Match tensors once: floats are averaged, batch-norm statistics among them; counters are copied."""
        ours, theirs = self.model.state_dict(keep_vars=True), student.state_dict(keep_vars=True)
        floats = [name for name, value in ours.items() if value.is_floating_point()]
        self._averaged: list[Tensor] = [ours[name].detach() for name in floats]
        self._towards: list[Tensor] = [theirs[name].detach() for name in floats]
        self._copied = [(ours[name], theirs[name]) for name in ours if name not in set(floats)]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average one step towards the student."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps)) if self.warmup else self.decay
        torch._foreach_lerp_(self._averaged, self._towards, 1 - decay)
        for mine, theirs in self._copied:
            mine.copy_(theirs)
        self.steps += 1

    @torch.no_grad()
    def restart(self) -> None:
        """Begin again from the student as it is now."""
        torch._foreach_copy_(self._averaged, self._towards)
        for mine, theirs in self._copied:
            mine.copy_(theirs)
        self.steps = 0
