"""Experiment: dataset, settings, method, stages and network of a training run, built once and then passed on.

A run has up to two stages: the warm-up on labeled images and the main stage. Each has its own batch sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tagspread.aliases import Progress
from tagspread.data.images.store import Store
from tagspread.errors import TagspreadError
from tagspread.methods.base import Labeled, Method, SetApart
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.distributed import Processes
from tagspread.train.scoring import score
from tagspread.train.sharded_store import ShardedStore
from tagspread.vision.backbones import TagNet


class Stage(NamedTuple):
    """Consecutive epochs with one optimizer: the warm-up or the main stage."""

    name: str
    epochs: int
    steps: int  # in one epoch
    batch_labeled: int
    batch_unlabeled: int
    cutout: bool
    schedule_epochs: int

    @property
    def uses_unlabeled(self) -> bool:
        """Whether the stage trains on the unlabeled set."""
        return self.batch_unlabeled > 0

    @property
    def batch(self) -> int:
        """Number of images in one step."""
        return self.batch_labeled + self.batch_unlabeled


def plan_stages(dataset: Dataset, config: TrainConfig, method: Method) -> tuple[Stage, ...]:
    """Return the stages with their batch sizes. A labeled-only method ends after the warm-up, if there is one.

    The released code defines batch sizes for four labeled shares p. These formulas reproduce them and extend them to
    all p: 320 p in the warm-up; 1.25 p of the mixed batch is labeled. No batch is larger than its set.
    """
    n, m = len(dataset.labeled), len(dataset.unlabeled)
    share = n / (n + m)
    length = config.schedule_epochs or config.epochs
    stages: list[Stage] = []
    if config.warmup_epochs:
        batch = min(config.warmup_batch or max(1, round(320 * share)), n)
        epochs = config.warmup_epochs
        stages.append(Stage("warmup", epochs, -(-n // batch), batch, 0, config.warmup_cutout, epochs))
    if method.uses_unlabeled and config.epochs:
        if config.batch < 2:
            raise TagspreadError(
                f"batch is {config.batch}, but a batch holds labeled and unlabeled images; give at least 2."
            )
        batch_labeled = min(config.batch_labeled or max(1, round(1.25 * share * config.batch)), n, config.batch - 1)
        batch_unlabeled = min(config.batch - batch_labeled, m)
        steps = -(-m // batch_unlabeled)
        stages.append(
            Stage("main", config.epochs, steps, batch_labeled, batch_unlabeled, config.cutout > 0, length),
        )
    elif config.epochs and not stages:
        batch = min(config.batch, n)
        stages.append(Stage("main", config.epochs, -(-n // batch), batch, 0, config.cutout > 0, length))
    if not stages and config.mode != "head":
        raise TagspreadError(
            f"warmup_epochs is {config.warmup_epochs} and epochs is {config.epochs}, so there is nothing to train; "
            "give at least one epoch."
        )
    return tuple(stages)


def size_notes(dataset: Dataset, config: TrainConfig) -> list[str]:
    """Return notes for the user about batch sizes that are reduced to the size of the dataset."""
    n, m = len(dataset.labeled), len(dataset.unlabeled)
    sizes = {"warmup_batch": config.warmup_batch, "batch_labeled": config.batch_labeled}
    return [
        f"{name} is {size} but there are {n:,} labeled images; it is reduced to {n:,}."
        for name, size in sizes.items()
        if size is not None and size > n
    ] + (
        [f"batch is {config.batch} but the unlabeled set has {m:,} images; it is reduced."]
        if 0 < m < config.batch // 2
        else []
    )


def network_after(last_stage: str, config: TrainConfig) -> str:
    """Return which network a run predicts with, ``"ema"`` or ``"raw"``, unless ``selection`` chose one.

    A run that ends with its warm-up uses the network that the main stage would start from (``warm_start_from``). After
    so few steps the paper's average, with a decay of 0.9997, would still consist mostly of the untrained head.
    """
    return config.warm_start_from if last_stage == "warmup" else "ema"


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
        processes: the processes that train together.
    """

    dataset: Dataset
    config: TrainConfig
    method: Method
    stages: tuple[Stage, ...]
    device: torch.device
    network: TagNet
    random_state: Tensor
    notes: tuple[str, ...] = ()
    processes: Processes = field(default_factory=Processes)

    def seed(self) -> None:
        """Seed all random generators; that of the CPU continues from the state after the network was built."""
        torch.manual_seed(self.config.seed)
        torch.set_rng_state(self.random_state)

    def score(
        self, network: nn.Module, rows: np.ndarray, *, flips: bool = False, progress: Progress | None = None
    ) -> Tensor:
        """Compute a network's logits of some rows; with ``flips``, the mean over each image and its mirror image."""
        store = self.dataset.store
        if isinstance(store, ShardedStore):
            return store.gathered(rows, lambda local, own: self._score(network, local, own, flips, progress))
        return self._score(network, store, rows, flips, progress)

    def own_teacher_scores(
        self, teacher: nn.Module, store: ShardedStore, rows: np.ndarray, progress: Progress | None = None
    ) -> Tensor:
        """Compute the teacher's logits of those of the rows that this process holds."""
        own = rows[store.own(rows)] // self.processes.size
        if not len(own):
            return torch.zeros(0, len(self.dataset.classes), device=self.device)
        return self._score(teacher, store.local, own, self._teacher_flips, progress)

    def _score(
        self, network: nn.Module, store: Store, rows: np.ndarray, flips: bool, progress: Progress | None
    ) -> Tensor:
        return score(
            network,
            store,
            rows,
            device=self.device,
            batch=self.config.score_batch,
            precision=self.config.precision,
            flips=flips,
            progress=progress,
        )

    def teacher_scores(self, teacher: nn.Module, rows: np.ndarray, progress: Progress | None = None) -> Tensor:
        """Compute the teacher's logits of some rows, averaged with mirror images if ``teacher_flips`` is set."""
        return self.score(teacher, rows, flips=self._teacher_flips, progress=progress)

    @property
    def _teacher_flips(self) -> bool:
        return self.config.teacher_flips and self.config.flip and self.dataset.store.modality.has_mirror

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
