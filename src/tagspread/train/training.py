"""Training state: student, pseudo-labels and history, saved to a checkpoint and restored to resume a run.

The history has counters, the log with one line per epoch, and the weights of the best epoch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tagspread.errors import TagspreadError
from tagspread.progress import Stopwatch
from tagspread.run.checkpoint import Checkpoint, load_checkpoint, restore_random, save_checkpoint
from tagspread.train.compatibility import ONLY_WITH_UNLABELED, check_compatible, settings_chosen_by_run
from tagspread.train.experiment import Experiment, Stage
from tagspread.train.objective import Objective
from tagspread.train.pseudo_labels import PseudoLabels
from tagspread.train.student import Student
from tagspread.wording import counted

LONGEST_REASON = 200  # characters of an error that a message repeats
_COUNTERS = ("epoch", "step", "read_labeled", "read_unlabeled", "label_metrics", "log")


class History:
    """Progress and results of a training.

    Attributes:
        stages: the stages of the run.
        epoch: number of finished epochs.
        step: number of finished steps in the present epoch.
        read_labeled: number of labeled rows trained on so far.
        read_unlabeled: number of unlabeled rows trained on so far.
        loss_sum: sum of the present epoch's losses; on the device while the epoch runs.
        label_metrics: metrics of the present epoch's targets, for its line in the log.
        log: one entry per finished epoch.
        best: weights of the best epoch so far, if ``selection`` chooses an epoch.
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
        """The index of the present stage."""
        return sum(self.epoch >= end for end in self._stage_ends())

    @property
    def stage(self) -> Stage | None:
        """The present stage; None if training is finished."""
        index = self.stage_index
        return self.stages[index] if index < len(self.stages) else None

    @property
    def progress(self) -> tuple[int, int]:
        """The number of images trained on so far, and the total of all epochs."""
        total = sum(stage.epochs * stage.steps * stage.batch for stage in self.stages)
        return self.read_labeled + self.read_unlabeled, total

    @property
    def is_evaluation_due(self) -> bool:
        """Whether this epoch ends with an evaluation: every ``evaluate_every`` epochs and at the end of a stage."""
        return self.epoch + 1 in self._stage_ends() or (self.epoch + 1) % self._evaluate_every == 0

    def count_step(self, stage: Stage, loss: Tensor) -> None:
        """Count a step of the student and add its loss."""
        self.loss_sum = self.loss_sum + loss
        self.step += 1
        self.read_labeled += stage.batch_labeled
        self.read_unlabeled += stage.batch_unlabeled

    def end_epoch(self, stage: Stage, metrics: dict[str, float], networks: Mapping[str, nn.Module]) -> None:
        """Add an entry to the log, and keep the weights if they are the best so far.

        Args:
            stage: the stage of the epoch.
            metrics: metrics of the epoch; those of the targets are appended.
            networks: student (``raw``) and teacher (``ema``).
        """
        self.log.append({"epoch": self.epoch, "stage": stage.name, **metrics, **self.label_metrics})
        self._keep_best(networks)
        self.label_metrics, self.loss_sum, self.step = {}, 0.0, 0
        self.epoch += 1

    def count_flips(self, total: int) -> int:
        """Return the number of target changes since the last log entry, given their total so far."""
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
        """Return the tensors to save in a checkpoint."""
        return {f"best.{name}": value for name, value in self.best.items()}

    def facts(self) -> dict[str, Any]:
        """Return the plain values to save in a checkpoint."""
        return {name: getattr(self, name) for name in _COUNTERS} | {"loss_sum": float(self.loss_sum)}

    def restore(self, saved: Checkpoint) -> None:
        """Restore the history from a checkpoint."""
        stored = saved.facts["history"]
        for name in (*_COUNTERS, "loss_sum"):
            setattr(self, name, stored[name])
        steps = self.stage.steps if self.stage is not None else 0
        if self.epoch > sum(stage.epochs for stage in self.stages) or self.step > steps:
            raise ValueError(f"history.epoch is {self.epoch} and history.step {self.step}, beyond the end of the run")
        self.best = saved.under("best")

    def start_after(self, saved: Checkpoint) -> None:
        """Continue from the end of another run's warm-up."""
        self.log, self.best = saved.facts["history"]["log"], saved.under("best")
        self.epoch, self.read_labeled = saved.facts["history"]["epoch"], saved.facts["history"]["read_labeled"]


class Training:
    """The state of an experiment while it is trained.

    Attributes:
        experiment: data, settings, method and network.
        student: the network, its teacher and its optimizer.
        pseudo_labels: targets of the unlabeled set.
        history: counters, log and best weights.
        file: file of the checkpoint.
        stopwatch: seconds of each step, those of earlier sessions included.
    """

    def __init__(self, experiment: Experiment, file: Path, stopwatch: Stopwatch | None = None) -> None:
        config, method = experiment.config, experiment.method
        self.experiment, self.file, self.stopwatch = experiment, file, stopwatch or Stopwatch()
        self.pseudo_labels = PseudoLabels(method.start(experiment.labeled()), experiment.device)
        objective = Objective.from_config(config, method, self.pseudo_labels.method_state)
        self.student = Student(experiment, objective)
        self.history = History(experiment.stages, config.evaluate_every, config.selection)
        self._fingerprint = experiment.dataset.fingerprint()  # computed once, because it reads all images in memory
        experiment.processes.check_same("data", self._fingerprint)

    def end_early(self) -> str:
        """Leave student and teacher in a state to predict with; return where training ended."""
        if not self.history.log:
            self.student.ema.restart()  # the teacher has no head yet
        epochs = sum(stage.epochs for stage in self.history.stages)
        return f"the time budget was spent after {self.history.epoch} of {counted(epochs, 'epoch')}"

    def check_losses(self, losses: Sequence[Tensor]) -> None:
        """Raise if one of the last losses is NaN or infinite; the message names its step."""
        values = torch.stack(list(losses))
        bad = ~torch.isfinite(values)
        if bool(bad.any()):
            epoch, step = self.history.epoch + 1, self.history.step - len(losses) + int(bad.float().argmax()) + 1
            raise self._not_finite(f"the loss became {values[bad][0].item()} in epoch {epoch}, step {step}")

    def check_scores(self, scores: Tensor, whose: str) -> None:
        """Raise if scores are NaN or infinite."""
        if not bool(torch.isfinite(scores).all()):
            raise self._not_finite(f"the {whose} network's scores are not finite in epoch {self.history.epoch + 1}")

    def _not_finite(self, what: str) -> TagspreadError:
        kept = "The previous checkpoint is kept. " if self.file.exists() else ""
        return TagspreadError(f"{what}. {kept}Lower the learning rate (lr is {self.experiment.config.lr}).")

    def save(self) -> None:
        """Write the checkpoint; of several processes, the first one does."""
        if self.experiment.processes.is_first:
            self._write()
        self.experiment.processes.any(False)  # no process ends before the checkpoint is complete

    def _write(self) -> None:
        config, device = self.experiment.config, self.experiment.device
        tensors = self.student.tensors() | self.pseudo_labels.tensors() | self.history.tensors()
        tensors["rng.cpu"] = torch.get_rng_state()
        if device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(device)
        facts = {
            "config": config.to_dict(),
            "data": self._fingerprint,
            "method_file": self.experiment.method.file_digest,
            "student": self.student.facts(),
            "history": self.history.facts(),
            "timings": self.stopwatch.seconds(),
        }
        if job := self.experiment.processes.job:
            facts["job"] = job
        save_checkpoint(self.file, tensors, facts)

    def resume(self) -> None:
        """Restore the state from the checkpoint, which must be of the same data and settings."""
        saved = load_checkpoint(self.file)
        chosen = settings_chosen_by_run(self.experiment.config)
        self._check(saved, ignoring=chosen)
        with self._damage():
            values = {name: saved.facts["config"][name] for name in chosen}
            self.experiment = replace(self.experiment, config=replace(self.experiment.config, **values))
            self.history.restore(saved)
            self.stopwatch.add(saved.facts.get("timings", {}))
            dataset = self.experiment.dataset
            self.pseudo_labels.restore(saved, (len(dataset.unlabeled), len(dataset.classes)))
            self.student.restore(saved, self.history.stage)
            restore_random(saved, self.experiment.device)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Turn what a checkpoint with missing or wrong tensors leads to into a message."""
        try:
            yield
        except TagspreadError:
            raise
        except (LookupError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:LONGEST_REASON]
            raise TagspreadError(
                f"{self.file} does not fit this run ({reason}); copy it again, or start the run again with @overwrite.",
                overwrite=True,
            ) from None

    def start_after(self, file: Path) -> None:
        """Start from the end of another run's warm-up, with the same data and the same settings of the warm-up."""
        saved = load_checkpoint(file)
        self._check(saved, ignoring=ONLY_WITH_UNLABELED)
        warmup, method = self.experiment.stages[0], self.experiment.method
        finished = saved.facts["history"]["epoch"] == warmup.epochs
        if warmup.uses_unlabeled or not finished or not method.shares_warmup:
            raise TagspreadError(
                f"{type(method).__name__} cannot start from the run of {file.parent}; give a run that ended with its "
                f"warm-up of {warmup.epochs} epochs, and a method that shares its warm-up with others."
            )
        with self._damage():
            self.student.restore_networks(saved)
            self.history.start_after(saved)
            restore_random(saved, self.experiment.device)

    def _check(self, saved: Checkpoint, ignoring: tuple[str, ...]) -> None:
        config, method_file = self.experiment.config, self.experiment.method.file_digest
        check_compatible(saved.facts, self._fingerprint, method_file, config, self.file.parent, ignoring=ignoring)
