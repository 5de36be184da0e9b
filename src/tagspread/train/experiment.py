"""Experiment: dataset, settings, method, stages and network of a training run, built once and then passed on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tagspread.methods.base import Labeled, Method, SetApart
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.scoring import score
from tagspread.train.stages import Stage
from tagspread.vision.backbones import TagNet


@dataclass(frozen=True)
class Experiment:
    """Everything about a training run that is fixed before the first step.

    Attributes:
        dataset: the data; features instead of images if the network is frozen.
        config: the settings, with mode ``"auto"`` resolved.
        method: the method that labels the unlabeled set.
        stages: warm-up and main stage; none in mode ``"head"``.
        device: the device to train on.
        network: the network with its initial weights.
        random_state: CPU random state at the start of training, recorded after the network was built.
        notes: notes for the user, shown before training starts.
    """

    dataset: Dataset
    config: TrainConfig
    method: Method
    stages: tuple[Stage, ...]
    device: torch.device
    network: TagNet
    random_state: Tensor
    notes: tuple[str, ...] = ()

    def seed(self) -> None:
        """Seed all random generators; that of the CPU continues from the state after the network was built."""
        torch.manual_seed(self.config.seed)
        torch.set_rng_state(self.random_state)

    def score(self, network: nn.Module, rows: np.ndarray, *, flips: bool = False) -> Tensor:
        """Compute a network's logits of some rows; with ``flips``, the mean over each image and its mirror image."""
        return score(
            network,
            self.dataset.store,
            rows,
            device=self.device,
            batch=self.config.score_batch,
            precision=self.config.precision,
            flips=flips,
        )

    def teacher_scores(self, teacher: nn.Module, rows: np.ndarray) -> Tensor:
        """Compute the teacher's logits of some rows, averaged with mirror images if ``teacher_flips`` is set."""
        has_mirror = self.dataset.store.modality.has_mirror
        return self.score(teacher, rows, flips=self.config.teacher_flips and self.config.flip and has_mirror)

    def labeled(self, epoch: int = 0) -> Labeled:
        """Return what a method may know in an epoch: the labeled set and the progress of training."""
        return Labeled(
            torch.from_numpy(self.dataset.y[self.dataset.labeled]),
            self.dataset.classes,
            epoch=max(0, epoch - sum(stage.epochs for stage in self.stages[:-1])),
            epochs=self.stages[-1].epochs if self.stages else 1,
            unlabeled_size=len(self.dataset.unlabeled),
        )

    def set_apart(self, teacher: nn.Module) -> SetApart | None:
        """Return labels and teacher scores of the rows that were set apart; None if there are none."""
        rows = self.dataset.apart
        if not len(rows):
            return None
        return SetApart(torch.from_numpy(self.dataset.y[rows]), self.teacher_scores(teacher, rows))
