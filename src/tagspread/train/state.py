"""Where a run stands: networks, optimizer, counters, targets. Saved whole, restored whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from tagspread.errors import TagspreadError
from tagspread.methods import get_method
from tagspread.methods.base import Labeled, State, StudentStep, Targets
from tagspread.methods.from_file import text_of
from tagspread.run.checkpoint import (
    Checkpoint,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    restore_random,
    save_checkpoint,
)
from tagspread.train.compatibility import ONLY_WITH_UNLABELED, check_same, found_on_the_way
from tagspread.train.config import LOSSES, TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.ema import EMA
from tagspread.train.optim import make_optimizer, make_schedule, train_mode
from tagspread.train.scoring import score
from tagspread.train.stages import Stage, plan_stages
from tagspread.train.step import Step
from tagspread.vision.backbones import TagNet


class TrainState:
    """All that changes while training. ``stage`` is None when it is done."""

    def __init__(
        self, network: TagNet, dataset: Dataset, config: TrainConfig, device: torch.device, file: Path
    ) -> None:
        self.config, self.device, self.file = config, device, file
        self.fingerprint = dataset.fingerprint()
        self.method = get_method(config.method, **config.method_options)
        self.stages = plan_stages(dataset, config, self.method)
        self.student = network.to(device)
        self.ema = EMA(self.student, config.ema_decay, config.ema_warmup)
        self.targets: Targets | None = None
        self.unlabeled_scores, self.flips, self.fresh = (torch.empty(0, device=device) for _ in range(3))
        self.best: dict[str, Tensor] = {}
        self.figures: dict[str, float] = {}
        self.log: list[dict[str, Any]] = []
        self.epoch = self.step = self.read_labeled = self.read_unlabeled = 0
        self.loss_sum: Tensor | float = 0.0  # on the device while an epoch runs
        self.begun = False
        self.before_unlabeled: Callable[[], None] = lambda: None  # told when the student has learnt from labels alone
        self.student_step: StudentStep
        started = self.method.start(self.labeled_part(dataset))
        self.method_state: State = {k: v.to(device) for k, v in started.items()}
        self.score = partial(score, device=device, batch=config.score_batch, precision=config.precision)

    @property
    def stage_index(self) -> int:
        """Which stage the present epoch belongs to."""
        return sum(self.epoch >= end for end in itertools.accumulate(stage.epochs for stage in self.stages))

    @property
    def stage(self) -> Stage | None:
        """The present stage, or None when all is done."""
        index = self.stage_index
        return self.stages[index] if index < len(self.stages) else None

    @property
    def progress(self) -> tuple[int, int]:
        """How many images the student has seen, and how many it will have seen in the end."""
        total = sum(stage.epochs * stage.steps * stage.batch for stage in self.stages)
        return self.read_labeled + self.read_unlabeled, total

    @property
    def is_evaluated(self) -> bool:
        """Whether this epoch ends with an evaluation."""
        last = self.epoch + 1 in itertools.accumulate(stage.epochs for stage in self.stages)
        return last or (self.epoch + 1) % self.config.evaluate_every == 0

    @property
    def epoch_targets(self) -> Targets:
        """The targets of the unlabeled set in this epoch."""
        if self.targets is None:
            raise RuntimeError("the unlabeled set is trained on before it was labeled")
        return self.targets

    def labeled_part(self, dataset: Dataset) -> Labeled:
        """Return what the method may know of the labeled part, and where training stands."""
        length = self.stages[-1].epochs if self.stages else 1
        return Labeled(
            torch.from_numpy(dataset.y[dataset.labeled]),
            dataset.classes,
            epoch=max(0, self.epoch - sum(stage.epochs for stage in self.stages[:-1])),
            epochs=length,
            unlabeled_size=len(dataset.unlabeled),
        )

    def targets_at(self, places: Tensor) -> Targets:
        """Return the targets of some rows of the unlabeled set."""
        labels, weight, _ = self.epoch_targets
        return Targets(labels[places], None if weight is None else weight[places], places)

    def relabel(self, places: Tensor | slice, new: Targets, scores: Tensor) -> None:
        """Give rows of the unlabeled set new targets; keep the scores they came from, and count what changed."""
        if self.targets is None:
            self.targets = Targets(new.labels.clone(), None if new.weight is None else new.weight.clone())
            self.unlabeled_scores = scores.clone()
            self.flips = torch.zeros_like(new.labels, dtype=torch.int16)
            return
        labels, weight, _ = self.targets
        if labels.dtype != new.labels.dtype:  # soft targets after hard ones
            labels, new = labels.float(), new._replace(labels=new.labels.float())
        if weight is None and new.weight is not None:
            weight = torch.ones_like(self.unlabeled_scores)
        self.flips[places] += labels[places] != new.labels
        labels[places], self.unlabeled_scores[places] = new.labels, scores
        if weight is not None:
            weight[places] = 1.0 if new.weight is None else new.weight
        self.targets = Targets(labels, weight)

    def begin_stage(self) -> None:
        """Start a stage: new optimizer and schedule, and the teacher begins from the student."""
        if self.stage_index > 0 and self.config.warm_start_from == "ema":
            self.student.load_state_dict(self.ema.model.state_dict())
        if self.stages[self.stage_index].uses_unlabeled:
            self.before_unlabeled()
            self.method.begin_unlabeled(self.student)
        self.ema.restart()
        self._make_step()
        self.begun = True

    def _make_step(self) -> None:
        """Make the optimizer, its schedule, and the step that uses them, or take the method's own."""
        stage = self.stages[self.stage_index]
        self.train_mode()
        self.schedules: list[OneCycleLR] = []
        if (own := self.method.own_step(self.student, self.method_state)) is not None:
            self.student_step = own
            return
        optimizer = make_optimizer(self.student, self.config)
        self.schedules = [make_schedule(optimizer, stage.schedule_epochs * stage.steps)]
        self.student_step = Step(
            self.student,
            optimizer,
            partial(self._loss, stage),
            precision=self.config.precision,
            graphs=self.config.graphs == "auto" and self.device.type == "cuda",
            touched=self.method_state.values(),
        )

    def _loss(self, stage: Stage, output: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Sum over the mixed batch, or the paper's eq. 6: mean over the labeled plus mean over the unlabeled set."""
        name = self.method.labeled_loss or self.config.loss

        def entry(z: Tensor, t: Tensor, w: Tensor | None) -> Tensor:
            return LOSSES[name](z, t, weight=w, reduction="none", **self.config.loss_options)

        n = stage.batch_labeled
        total = self.method.loss_labeled(output[:n], labels[:n], weight[:n], entry).sum()
        if means := self.config.reduction == "mean_mean":
            total = total / n
        if stage.uses_unlabeled:
            targets = Targets(labels[n:], weight[n:], places)
            entries = self.method.loss(output[n:], targets, entry, self.method_state)
            share = 1.0 if self.config.unlabeled_weight is None else self.config.unlabeled_weight
            total = total + share * entries.sum() / (stage.batch_unlabeled if means else 1)
        return total

    def train_mode(self) -> None:
        """Put the student into training."""
        train_mode(self.student, self.config.batch_norm)

    def after_step(self, loss: Tensor) -> None:
        """Advance what follows the student: schedule, teacher, counters."""
        self.loss_sum = self.loss_sum + loss
        stage = self.stages[self.stage_index]
        for schedule in self.schedules:
            schedule.step()
        self.ema.update()
        self.step += 1
        self.read_labeled += stage.batch_labeled
        self.read_unlabeled += stage.batch_unlabeled

    def end_epoch(self, figures: dict[str, float]) -> None:
        """Write the epoch down, keep the best if that was asked for, and save."""
        stage = self.stages[self.stage_index]
        if len(self.flips):
            self.figures["flips"] = int(self.flips.sum()) - sum(int(line.get("flips", 0)) for line in self.log)
        self.log.append({"epoch": self.epoch, "stage": stage.name, **figures, **self.figures})
        self._keep_best()
        self.figures, self.loss_sum, self.step = {}, 0.0, 0
        self.epoch += 1
        self.begun = self.stage is stage
        self.save()

    def _keep_best(self) -> None:
        """Keep the weights of the best epoch so far, by what the selection looks at."""
        part = {"held_out": "held_out", "test_best": "test"}.get(self.config.selection)
        if part is None:
            return
        for name, network in (("raw", self.student), ("ema", self.ema.model)):
            key = f"{part}_map_{name}"
            earlier = [line["best"] for line in self.log if "best" in line]
            value = self.log[-1].get(key, math.nan)
            if value > max(earlier, default=-1.0):
                self.log[-1] |= {"best": value, "best_is": name}
                self.best = {k: v.detach().cpu().clone() for k, v in network.state_dict().items()}

    def save(self) -> None:
        """Write the checkpoint."""
        tensors = {f"student.{k}": v for k, v in self.student.state_dict().items()}
        tensors |= {f"ema.{k}": v for k, v in self.ema.model.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        tensors |= {f"method.{k}": v for k, v in self.method_state.items()}
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        if self.targets is not None:
            tensors |= {
                "unlabeled.scores": self.unlabeled_scores,
                "unlabeled.flips": self.flips,
                "unlabeled.fresh": self.fresh,
            }
            tensors["targets.labels"] = self.targets.labels
            if self.targets.weight is not None:
                tensors["targets.weight"] = self.targets.weight
        facts: dict[str, Any] = {
            "config": self.config.to_dict(),
            "data": self.fingerprint,
            "method_file": text_of(self.config.method),
            "ema_steps": self.ema.steps,
            "log": self.log,
            "loss_sum": float(self.loss_sum),
            **{name: getattr(self, name) for name in _COUNTERS},
        }
        if self.begun:
            optimizers = self.student_step.optimizers
            for i, optimizer in enumerate(optimizers):
                tensors |= {f"optimizer{i}.{k}": v for k, v in optimizer_tensors(optimizer).items()}
            facts["groups"] = [optimizer.state_dict()["param_groups"] for optimizer in optimizers]
            facts["schedules"] = [schedule.state_dict() for schedule in self.schedules]
        save_checkpoint(self.file, tensors, facts)

    def begin_from(self, resume: bool, after: Path | None) -> None:
        """Go on from the run's own checkpoint, or begin: after another run's warm-up, or from nothing."""
        if resume:
            self.restore(load_checkpoint(self.file))
            return
        if after is not None:
            self.start_after(load_checkpoint(after))
        self.save()

    def restore(self, saved: Checkpoint) -> None:
        """Take everything over from a checkpoint of the same data and configuration."""
        found = found_on_the_way(self.config)
        check_same(saved.facts, self.fingerprint, self.config, self.file.parent, apart_from=found)
        self.config = replace(self.config, **{name: saved.facts["config"][name] for name in found})
        self.student.load_state_dict(saved.under("student"))
        self.ema.model.load_state_dict(saved.under("ema"))
        self.best = saved.under("best")
        self.method_state = {k: v.to(self.device) for k, v in saved.under("method").items()}
        if targets := {k: v.to(self.device) for k, v in saved.under("targets").items()}:
            self.targets = Targets(targets["labels"], targets.get("weight"))
            unlabeled = {k: v.to(self.device) for k, v in saved.under("unlabeled").items()}
            self.unlabeled_scores, self.flips, self.fresh = unlabeled["scores"], unlabeled["flips"], unlabeled["fresh"]
        for name in _COUNTERS:
            setattr(self, name, saved.facts[name])
        self.ema.steps, self.log, self.loss_sum = (saved.facts[name] for name in ("ema_steps", "log", "loss_sum"))
        if self.begun:
            self._make_step()
            for i, (optimizer, groups) in enumerate(
                zip(self.student_step.optimizers, saved.facts["groups"], strict=True)
            ):
                restore_optimizer(optimizer, saved.under(f"optimizer{i}"), groups)
            for schedule, facts in zip(self.schedules, saved.facts["schedules"], strict=True):
                schedule.load_state_dict(facts)
        restore_random(saved, self.device)

    def start_after(self, saved: Checkpoint) -> None:
        """Take the end of another run's warm-up for the end of this one's: same data, same settings until there."""
        check_same(saved.facts, self.fingerprint, self.config, self.file.parent, apart_from=ONLY_WITH_UNLABELED)
        warmup = self.stages[0]
        if warmup.uses_unlabeled or saved.facts["epoch"] != warmup.epochs or not self.method.shares_warmup:
            raise TagspreadError(
                f"{type(self.method).__name__} cannot start after the run of {self.file.parent}: it takes a run that "
                f"has just finished a warm-up of {warmup.epochs} epochs, and a method that shares it."
            )
        self.student.load_state_dict(saved.under("student"))
        self.ema.model.load_state_dict(saved.under("ema"))
        self.log, self.best = saved.facts["log"], saved.under("best")
        self.epoch, self.read_labeled = saved.facts["epoch"], saved.facts["read_labeled"]
        restore_random(saved, self.device)


_COUNTERS = ("epoch", "step", "read_labeled", "read_unlabeled", "begun", "figures")
