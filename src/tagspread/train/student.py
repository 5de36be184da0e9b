r"""Student and teacher: the trained network, its moving average (EMA), optimizer and learning rate schedule.

The teacher is an exponential moving average of the student's weights:

.. math:: \bar\theta \leftarrow d_t\, \bar\theta + (1 - d_t)\, \theta, \qquad
          d_t = \min\Big(d, \frac{1 + t}{10 + t}\Big) \text{ with warm-up, else } d

With a constant d = 0.9997, 95 % of the initial weights remain after 180 steps, so on small data the average is useless.
The warm-up lets it follow the student from the first step.

The optimizer is AdamW with separate rates for backbone and head, and one learning rate cycle per stage.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from tagspread.methods.base import StudentStep
from tagspread.run.checkpoint import Checkpoint, optimizer_tensors, restore_optimizer
from tagspread.train.config import TrainConfig
from tagspread.train.experiment import Experiment, Stage
from tagspread.train.objective import Objective
from tagspread.train.step import Step
from tagspread.vision.backbones import TagNet


class EMA:
    """Exponential moving average of a network; ``model`` holds the averaged weights."""

    def __init__(self, student: nn.Module, decay: float, warmup: bool = True) -> None:
        self.model = copy.deepcopy(student).eval().requires_grad_(False)
        self.decay, self.warmup, self.steps = decay, warmup, 0
        self._pair_tensors(student)

    def _pair_tensors(self, student: nn.Module) -> None:
        """Pair the tensors of teacher and student once.

        Floating-point tensors, including batch-norm statistics, are averaged; counters are copied.
        """
        teacher_state, student_state = self.model.state_dict(keep_vars=True), student.state_dict(keep_vars=True)
        floats = [name for name, value in teacher_state.items() if value.is_floating_point()]
        self._averaged: list[Tensor] = [teacher_state[name].detach() for name in floats]
        self._towards: list[Tensor] = [student_state[name].detach() for name in floats]
        self._copied = [(teacher_state[name], student_state[name]) for name in teacher_state if name not in set(floats)]

    @torch.no_grad()
    def update(self) -> None:
        """Update the average after a step of the student."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps)) if self.warmup else self.decay
        torch._foreach_lerp_(self._averaged, self._towards, 1 - decay)
        for averaged, current in self._copied:
            averaged.copy_(current)
        self.steps += 1

    @torch.no_grad()
    def restart(self) -> None:
        """Restart the average from the student's present weights."""
        torch._foreach_copy_(self._averaged, self._towards)
        for averaged, current in self._copied:
            averaged.copy_(current)
        self.steps = 0


def make_optimizer(network: TagNet, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW over the parameters of backbone and head, each with its own learning rate."""
    groups: list[dict[str, Any]] = []
    for part, lr in (
        (network.backbone, config.lr),
        (network.head, config.lr if config.lr_head is None else config.lr_head),
    ):
        parameters = [p for p in part.parameters() if p.requires_grad]
        # vectors are biases and weights of norm layers, for which weight decay is no regularization
        decayed = [p for p in parameters if config.decay_all or p.ndim > 1]
        not_decayed = [p for p in parameters if not (config.decay_all or p.ndim > 1)]
        groups += [
            {"params": group, "lr": lr, "weight_decay": decay}
            for group, decay in ((decayed, config.weight_decay), (not_decayed, 0.0))
            if group
        ]
    on_gpu = next(network.parameters()).is_cuda
    return torch.optim.AdamW(groups, fused=True if on_gpu else None)


def make_schedule(optimizer: torch.optim.Optimizer, steps: int) -> OneCycleLR:
    """Return a one-cycle schedule over ``steps``: the rate rises in the first fifth, then falls along a cosine.

    A cycle has at least ten steps; fewer steps use its beginning only.
    """
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=peaks, total_steps=max(steps, 10), pct_start=0.2)


def train_mode(network: nn.Module, batch_norm: str) -> None:
    """Switch to training mode; with ``batch_norm="frozen"``, batch norm keeps its running statistics."""
    network.train()
    if batch_norm == "frozen":
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


def synchronize_statistics(network: nn.Module) -> None:
    """Make batch norm use the statistics of the whole batch, of which each process has a part; on GPUs only."""
    from timm.layers.norm_act import convert_sync_batchnorm

    convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]


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
        self._processes = experiment.processes
        self.network = experiment.network.to(experiment.device)
        if self._processes.size > 1 and self._combines_rows and self._device.type == "cuda":
            synchronize_statistics(self.network)
        self._modality = experiment.dataset.store.modality
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
        several = self._processes.size > 1
        exchanges = several and self._combines_rows  # within the forward pass
        batch = (stage.batch_labeled, stage.batch_unlabeled)
        optimizer = make_optimizer(self.network, self._config)
        self.schedules = [make_schedule(optimizer, stage.schedule_epochs * stage.steps)]
        self._step = Step(
            self.network,
            optimizer,
            replace(self.objective, batch=batch) if several else self.objective,
            precision=self._config.precision,
            graphs=self._config.graphs == "auto" and self._device.type == "cuda" and not exchanges,
            touched=state.values(),
            images_at_once=self._images_at_once,
            processes=self._processes,
        )

    def agree(self) -> None:
        """Make the networks of all processes equal, before they score the unlabeled set and are saved.

        Their weights are equal already, unless the processors differ. Batch-norm statistics are averaged: on CPUs, each
        process computes them from its part of the batches.
        """
        if self._processes.size == 1:
            return
        for network in (self.network, self.teacher):
            statistics = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
            for buffer in statistics if self._combines_rows else []:
                buffer.copy_(self._processes.sum(buffer.clone()) / self._processes.size)
            self._processes.broadcast(list(network.state_dict().values()))

    @property
    def _combines_rows(self) -> bool:
        """Whether a layer combines the rows of a batch, such as batch norm with the statistics of the batch."""
        return self._config.batch_norm != "frozen" and any(
            isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.network.modules()
        )

    @property
    def _images_at_once(self) -> int | None:
        """Number of images in one pass of a training step; None for the whole batch."""
        if self._device.type != "cpu" or self._combines_rows:
            return None
        if not self.objective.is_sum_over_rows or self.network.parts > 1:
            return None
        return self._modality.suitable_batch(self._device)

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
