"""The stretches of a run, and how large its batches are."""

from __future__ import annotations

from typing import NamedTuple

from tagspread.errors import TagspreadError
from tagspread.methods.base import Method
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset


class Stage(NamedTuple):
    """A stretch of epochs with one optimizer: the warm-up, or the main part."""

    name: str
    epochs: int
    steps: int  # in one epoch
    batch_labeled: int
    batch_unlabeled: int
    cutout: bool
    schedule_epochs: int

    @property
    def uses_unlabeled(self) -> bool:
        """Whether the unlabeled set takes part."""
        return self.batch_unlabeled > 0

    @property
    def batch(self) -> int:
        """Images in one step."""
        return self.batch_labeled + self.batch_unlabeled


def plan_stages(dataset: Dataset, config: TrainConfig, method: Method) -> tuple[Stage, ...]:
    """Return the stages with their batch sizes; a labeled-only method ends after the warm-up, if there is one.

    The released code knows batch sizes for four labeled shares p only; these formulas give them and all others:
    320 p in the warm-up, and 1.25 p of the mixed batch labeled. No batch is larger than what there is.
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
                f"batch is {config.batch}; a step takes labeled and unlabeled images: give at least 2."
            )
        known = min(config.batch_labeled or max(1, round(1.25 * share * config.batch)), n, config.batch - 1)
        fill = min(config.batch - known, m)
        stages.append(Stage("main", config.epochs, -(-m // fill), known, fill, config.cutout > 0, length))
    elif config.epochs and not stages:
        batch = min(config.batch, n)
        stages.append(Stage("main", config.epochs, -(-n // batch), batch, 0, config.cutout > 0, length))
    if not stages and config.mode != "head":
        raise TagspreadError("warmup_epochs and epochs leave nothing to train; give at least one epoch.")
    return tuple(stages)


def size_notes(dataset: Dataset, config: TrainConfig) -> list[str]:
    """Return what a person should know about sizes that were asked for and cannot be had."""
    n, m = len(dataset.labeled), len(dataset.unlabeled)
    asked = {"warmup_batch": (config.warmup_batch, n), "batch_labeled": (config.batch_labeled, n)}
    return [
        f"{name} is {value} but there are {most:,} labeled images; it is cut down to that."
        for name, (value, most) in asked.items()
        if value is not None and value > most
    ] + (
        [f"batch is {config.batch} but the unlabeled set has {m:,} images; it is cut down."]
        if 0 < m < config.batch // 2
        else []
    )


def network_after(last_stage: str, config: TrainConfig) -> str:
    """Return which network a run ends with, ``ema`` or ``raw``, if none was selected.

    One that ends with its warm-up ends with the network that a warm-up hands on: after its few steps the paper's
    average, with a decay of 0.9997, still is for the most part the untrained head it started from.
    """
    return config.warm_start_from if last_stage == "warmup" else "ema"
