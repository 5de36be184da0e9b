"""Pseudo-labels of the unlabeled set during training: targets, the teacher's scores, and how often targets changed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tagspread.core.losses import invalid_targets
from tagspread.methods.base import State, Targets
from tagspread.run.checkpoint import Checkpoint


class PseudoLabels:
    """The targets of the unlabeled set, one row per unlabeled item.

    Attributes:
        method_state: state of the method, which its functions may change in place.
        scores: the teacher's logits from which each row's targets were computed.
        flips: number of times that each target changed.
        fresh: the teacher's logits of the next steps (steps x batch x classes), for methods that label per step.
    """

    def __init__(self, method_state: State, device: torch.device) -> None:
        self.device = device
        self.method_state: State = {name: value.to(device) for name, value in method_state.items()}
        self._targets: Targets | None = None
        self.scores, self.flips, self.fresh = (torch.empty(0, device=device) for _ in range(3))

    @property
    def exist(self) -> bool:
        """Whether the unlabeled set has been labeled."""
        return self._targets is not None

    @property
    def targets(self) -> Targets:
        """The present targets of the whole unlabeled set."""
        if self._targets is None:
            raise RuntimeError("the unlabeled set has no pseudo-labels yet; call relabel first")
        return self._targets

    @property
    def total_flips(self) -> int:
        """Total number of target changes so far."""
        return int(self.flips.sum()) if len(self.flips) else 0

    def at(self, places: Tensor) -> Targets:
        """Return the targets of some unlabeled rows, given by their indices in the unlabeled set."""
        labels, weight, _ = self.targets
        return Targets(labels[places], None if weight is None else weight[places], places)

    def relabel(self, places: Tensor | slice, new: Targets, scores: Tensor) -> None:
        """Set the targets of some unlabeled rows and the scores they were computed from; count the changes."""
        if self._targets is None:
            self._targets = Targets(new.labels.clone(), None if new.weight is None else new.weight.clone())
            self.scores = scores.clone()
            self.flips = torch.zeros_like(new.labels, dtype=torch.int16)
            return
        labels, weight, _ = self._targets
        if labels.dtype != new.labels.dtype:  # soft targets after hard ones
            labels, new = labels.float(), new._replace(labels=new.labels.float())
        if weight is None and new.weight is not None:
            weight = torch.ones_like(self.scores)
        self.flips[places] += labels[places] != new.labels
        labels[places], self.scores[places] = new.labels, scores
        if weight is not None:
            weight[places] = 1.0 if new.weight is None else new.weight
        self._targets = Targets(labels, weight)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint."""
        tensors = {f"method.{name}": value for name, value in self.method_state.items()}
        if self._targets is not None:
            tensors |= {"unlabeled.scores": self.scores, "unlabeled.flips": self.flips, "unlabeled.fresh": self.fresh}
            tensors["targets.labels"] = self._targets.labels
            if self._targets.weight is not None:
                tensors["targets.weight"] = self._targets.weight
        return tensors

    def restore(self, saved: Checkpoint, shape: tuple[int, int]) -> None:
        """Restore the pseudo-labels from a checkpoint; raise ``ValueError`` if they are not of this training.

        Args:
            saved: the checkpoint.
            shape: unlabeled items x classes.
        """
        state = saved.under("method")
        for name, fresh in self.method_state.items():
            _check_shape(f"method.{name}", state[name], fresh.shape)
        # update the dictionary in place, because the objective holds it as well
        self.method_state.clear()
        self.method_state |= {name: value.to(self.device) for name, value in state.items()}
        if targets := {name: value.to(self.device) for name, value in saved.under("targets").items()}:
            self._targets = Targets(targets["labels"], targets.get("weight"))
            if bool(invalid_targets(targets["labels"]).any()):
                raise ValueError("targets.labels has values that are no targets")
            stored = {name: value.to(self.device) for name, value in saved.under("unlabeled").items()}
            self.scores, self.flips, self.fresh = stored["scores"], stored["flips"], stored["fresh"]
            for name, value in (*targets.items(), ("scores", self.scores), ("flips", self.flips)):
                _check_shape(name, value, shape)
            if len(self.fresh):
                _check_shape("unlabeled.fresh", self.fresh, (*self.fresh.shape[:2], shape[1]))


def _check_shape(name: str, value: Tensor, shape: Sequence[int]) -> None:
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(value.shape)}, not {tuple(shape)}")
