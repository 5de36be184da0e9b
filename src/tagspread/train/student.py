"""Student and teacher: the trained network, its moving average (EMA), optimizer and learning rate schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from tagspread.methods.base import StudentStep
from tagspread.run.checkpoint import Checkpoint, optimizer_tensors, restore_optimizer
from tagspread.train.ema import EMA
from tagspread.train.experiment import Experiment
from tagspread.train.objective import Objective
from tagspread.train.optim import make_optimizer, make_schedule, train_mode
from tagspread.train.stages import Stage
from tagspread.train.step import Step


class Student:
    """The network that is trained, with its teacher and optimizer.

    Attributes:
        network: the network.
        objective: the loss to minimize.
        ema: the moving average of the network; its ``model`` is the teacher.
        schedules: learning rate schedules; empty if the method has its own training step.
        in_stage: whether a stage has started, so that optimizer and schedule exist.
    """

    def __init__(self, experiment: Experiment, objective: Objective) -> None:
        self._config, self._device, self.objective = experiment.config, experiment.device, objective
        self.network = experiment.network.to(experiment.device)
        self.ema = EMA(self.network, self._config.ema_decay, self._config.ema_warmup)
        self.in_stage = False
        self.schedules: list[OneCycleLR] = []
        self._step: StudentStep

    @property
    def teacher(self) -> nn.Module:
        """The moving average of the student."""
        return self.ema.model

    @property
    def networks(self) -> dict[str, nn.Module]:
        """Student and teacher by their names in log and metrics."""
        return {"raw": self.network, "ema": self.teacher}

    def become_teacher(self) -> None:
        """Load the teacher's weights into the student."""
        self.network.load_state_dict(self.teacher.state_dict())

    def begin_stage(self, stage: Stage) -> None:
        """Start a stage: new optimizer and schedule; the teacher restarts from the student."""
        self.ema.restart()
        self._make_step(stage)

    def end_stage(self) -> None:
        """End a stage, so that the next one starts with a new optimizer."""
        self.in_stage = False

    def train_mode(self) -> None:
        """Put the network into training mode."""
        train_mode(self.network, self._config.batch_norm)

    def step(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Train on one batch (labeled rows first), then update schedule and teacher; return the loss."""
        loss = self._step(images, labels, weight, places)
        for schedule in self.schedules:
            schedule.step()
        self.ema.update()
        return loss

    def _make_step(self, stage: Stage) -> None:
        """Create optimizer, schedule and training step, or use the method's own step."""
        self.in_stage = True
        self.train_mode()
        self.schedules = []
        method, state = self.objective.method, self.objective.state
        if (own := method.own_step(self.network, state)) is not None:
            self._step = own
            return
        optimizer = make_optimizer(self.network, self._config)
        self.schedules = [make_schedule(optimizer, stage.schedule_epochs * stage.steps)]
        self._step = Step(
            self.network,
            optimizer,
            self.objective,
            precision=self._config.precision,
            graphs=self._config.graphs == "auto" and self._device.type == "cuda",
            touched=state.values(),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of both networks and the optimizers, to save in a checkpoint."""
        tensors = {f"student.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"ema.{name}": value for name, value in self.teacher.state_dict().items()}
        for i, optimizer in enumerate(self._optimizers):
            tensors |= {f"optimizer{i}.{name}": value for name, value in optimizer_tensors(optimizer).items()}
        return tensors

    def facts(self) -> dict[str, Any]:
        """Return the plain values to save in a checkpoint."""
        return {
            "in_stage": self.in_stage,
            "ema_steps": self.ema.steps,
            "groups": [optimizer.state_dict()["param_groups"] for optimizer in self._optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules] if self.in_stage else [],
        }

    def restore(self, saved: Checkpoint, stage: Stage | None) -> None:
        """Restore networks, optimizer and schedule from a checkpoint that was saved in ``stage``."""
        facts = saved.facts["student"]
        self.restore_networks(saved)
        self.ema.steps = facts["ema_steps"]
        if not facts["in_stage"] or stage is None:
            return
        self._make_step(stage)
        for i, (optimizer, groups) in enumerate(zip(self._optimizers, facts["groups"], strict=True)):
            restore_optimizer(optimizer, saved.under(f"optimizer{i}"), groups)
        for schedule, values in zip(self.schedules, facts["schedules"], strict=True):
            schedule.load_state_dict(values)

    def restore_networks(self, saved: Checkpoint) -> None:
        """Restore only the two networks from a checkpoint."""
        self.network.load_state_dict(saved.under("student"))
        self.teacher.load_state_dict(saved.under("ema"))

    @property
    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return self._step.optimizers if self.in_stage else []
