"""Training state: student, pseudo-labels and history, saved to a checkpoint and restored to resume a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from tagspread.errors import TagspreadError
from tagspread.methods.from_file import method_file_digest
from tagspread.run.checkpoint import Checkpoint, load_checkpoint, restore_random, save_checkpoint
from tagspread.train.compatibility import ONLY_WITH_UNLABELED, check_compatible, settings_chosen_by_run
from tagspread.train.experiment import Experiment
from tagspread.train.history import History
from tagspread.train.objective import Objective
from tagspread.train.pseudo_labels import PseudoLabels
from tagspread.train.student import Student


class Training:
    """The state of an experiment while it is trained.

    Attributes:
        experiment: data, settings, method and network.
        student: the network, its teacher and its optimizer.
        pseudo_labels: targets of the unlabeled set.
        history: counters, log and best weights.
        file: file of the checkpoint.
    """

    def __init__(self, experiment: Experiment, file: Path) -> None:
        config, method = experiment.config, experiment.method
        self.experiment, self.file = experiment, file
        self.pseudo_labels = PseudoLabels(method.start(experiment.labeled()), experiment.device)
        objective = Objective.from_config(config, method, self.pseudo_labels.method_state)
        self.student = Student(experiment, objective)
        self.history = History(experiment.stages, config.evaluate_every, config.selection)
        self._fingerprint = experiment.dataset.fingerprint()  # computed once, because it reads all images in memory

    def save(self) -> None:
        """Write the checkpoint."""
        config, device = self.experiment.config, self.experiment.device
        tensors = self.student.tensors() | self.pseudo_labels.tensors() | self.history.tensors()
        tensors["rng.cpu"] = torch.get_rng_state()
        if device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(device)
        facts = {
            "config": config.to_dict(),
            "data": self._fingerprint,
            "method_file": method_file_digest(config.method),
            "student": self.student.facts(),
            "history": self.history.facts(),
        }
        save_checkpoint(self.file, tensors, facts)

    def resume(self) -> None:
        """Restore the state from the checkpoint, which must be of the same data and settings."""
        saved = load_checkpoint(self.file)
        chosen = settings_chosen_by_run(self.experiment.config)
        self._check(saved, ignoring=chosen)
        values = {name: saved.facts["config"][name] for name in chosen}
        self.experiment = replace(self.experiment, config=replace(self.experiment.config, **values))
        self.history.restore(saved)
        self.pseudo_labels.restore(saved)
        self.student.restore(saved, self.history.stage)
        restore_random(saved, self.experiment.device)

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
        self.student.restore_networks(saved)
        self.history.start_after(saved)
        restore_random(saved, self.experiment.device)

    def _check(self, saved: Checkpoint, ignoring: tuple[str, ...]) -> None:
        check_compatible(saved.facts, self._fingerprint, self.experiment.config, self.file.parent, ignoring=ignoring)
