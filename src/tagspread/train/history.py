"""How far training is and what it has measured: counters, the log, and the weights of the best epoch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from tagspread.run.checkpoint import Checkpoint
from tagspread.train.stages import Stage

_COUNTERS = ("epoch", "step", "read_labeled", "read_unlabeled", "label_metrics", "log")


class History:
    """Where a training stands.

    Attributes:
        stages: the stages of the run.
        epoch: epochs that are finished.
        step: steps of the present epoch that are done.
        read_labeled: labeled rows that the student has been shown.
        read_unlabeled: unlabeled rows that it has been shown.
        loss_sum: sum of the present epoch's losses; on the device while the epoch runs.
        label_metrics: what the present epoch's line will say about its targets.
        log: one line per finished epoch.
        best: the weights of the best epoch so far, if the run selects one.
    """

    def __init__(self, stages: Sequence[Stage], evaluate_every: int = 1, selection: str = "last") -> None:
        self.stages, self._evaluate_every, self._selection = tuple(stages), evaluate_every, selection
        self.epoch = self.step = self.read_labeled = self.read_unlabeled = 0
        self.loss_sum: Tensor | float = 0.0
        self.label_metrics: dict[str, float] = {}
        self.log: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}

    @property
    def stage_index(self) -> int:
        """Which stage the present epoch belongs to."""
        return sum(self.epoch >= end for end in self._stage_ends())

    @property
    def stage(self) -> Stage | None:
        """The present stage, or None when training is done."""
        index = self.stage_index
        return self.stages[index] if index < len(self.stages) else None

    @property
    def progress(self) -> tuple[int, int]:
        """How many images the student has been shown, and how many it will have been shown in the end."""
        total = sum(stage.epochs * stage.steps * stage.batch for stage in self.stages)
        return self.read_labeled + self.read_unlabeled, total

    @property
    def is_evaluation_due(self) -> bool:
        """Whether this epoch ends with an evaluation: every so many epochs, and at the end of each stage."""
        return self.epoch + 1 in self._stage_ends() or (self.epoch + 1) % self._evaluate_every == 0

    def count_step(self, stage: Stage, loss: Tensor) -> None:
        """Count a step of the student."""
        self.loss_sum = self.loss_sum + loss
        self.step += 1
        self.read_labeled += stage.batch_labeled
        self.read_unlabeled += stage.batch_unlabeled

    def end_epoch(self, stage: Stage, metrics: dict[str, float], networks: Mapping[str, nn.Module]) -> None:
        """Add the epoch's line to the log, and keep the weights if they are the best so far.

        Args:
            stage: the stage of the epoch.
            metrics: what was measured; the metrics of the targets come behind them.
            networks: student (``raw``) and teacher (``ema``).
        """
        self.log.append({"epoch": self.epoch, "stage": stage.name, **metrics, **self.label_metrics})
        self._keep_best(networks)
        self.label_metrics, self.loss_sum, self.step = {}, 0.0, 0
        self.epoch += 1

    def count_flips(self, total: int) -> int:
        """Return how many targets changed since the last line of the log, of ``total`` so far."""
        return total - sum(int(line.get("flips", 0)) for line in self.log)

    def _keep_best(self, networks: Mapping[str, nn.Module]) -> None:
        part = {"held_out": "held_out", "test_best": "test"}.get(self._selection)
        if part is None:
            return
        for name, network in networks.items():
            earlier = [line["best"] for line in self.log if "best" in line]
            value = self.log[-1].get(f"{part}_map_{name}", math.nan)
            if value > max(earlier, default=-1.0):
                self.log[-1] |= {"best": value, "best_is": name}
                self.best = {key: tensor.detach().cpu().clone() for key, tensor in network.state_dict().items()}

    def _stage_ends(self) -> list[int]:
        return list(itertools.accumulate(stage.epochs for stage in self.stages))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint needs to restore it."""
        return {f"best.{name}": value for name, value in self.best.items()}

    def facts(self) -> dict[str, Any]:
        """Return what else a checkpoint needs, as plain values."""
        return {name: getattr(self, name) for name in _COUNTERS} | {"loss_sum": float(self.loss_sum)}

    def restore(self, saved: Checkpoint) -> None:
        """Take over what a checkpoint holds of it."""
        for name, value in saved.facts["history"].items():
            setattr(self, name, value)
        self.best = saved.under("best")

    def start_after(self, saved: Checkpoint) -> None:
        """Begin where another run's warm-up ended."""
        self.log, self.best = saved.facts["history"]["log"], saved.under("best")
        self.epoch, self.read_labeled = saved.facts["history"]["epoch"], saved.facts["history"]["read_labeled"]
