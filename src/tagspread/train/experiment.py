"""What is going to be trained: data, settings, method, stages and network, each built once and then passed on."""

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
    """Everything about a run that is known before the first step.

    Attributes:
        dataset: what is learned from; features where the network is frozen.
        config: the settings, with the mode decided.
        method: how the unlabeled set is used.
        stages: warm-up and main stage; none in mode ``"head"``.
        device: where.
        network: the network that is trained, at its start.
        random_state: CPU random state that training begins with, that of the moment when the network was built.
        notes: what a person should know before it starts.
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
        """Seed all random numbers: those of the CPU continue where building the network left them."""
        torch.manual_seed(self.config.seed)
        torch.set_rng_state(self.random_state)

    def score(self, network: nn.Module, rows: np.ndarray, *, flips: bool = False) -> Tensor:
        """Return a network's logits of some rows; with ``flips`` the mean over each image and its mirror image."""
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
        """Return the teacher's logits of some rows, over mirror images too if the settings ask for that."""
        has_mirror = self.dataset.store.modality.has_mirror
        return self.score(teacher, rows, flips=self.config.teacher_flips and self.config.flip and has_mirror)

    def labeled(self, epoch: int = 0) -> Labeled:
        """Return what the method may know of the labeled part in an epoch, and where training stands."""
        return Labeled(
            torch.from_numpy(self.dataset.y[self.dataset.labeled]),
            self.dataset.classes,
            epoch=max(0, epoch - sum(stage.epochs for stage in self.stages[:-1])),
            epochs=self.stages[-1].epochs if self.stages else 1,
            unlabeled_size=len(self.dataset.unlabeled),
        )

    def set_apart(self, teacher: nn.Module) -> SetApart | None:
        """Return the labels and teacher's scores of the rows that the method set apart, if it did."""
        rows = self.dataset.apart
        if not len(rows):
            return None
        return SetApart(torch.from_numpy(self.dataset.y[rows]), self.teacher_scores(teacher, rows))
