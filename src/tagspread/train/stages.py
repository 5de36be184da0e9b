"""Training stages (warm-up and main stage) and their numbers of labeled and unlabeled rows per batch."""

from __future__ import annotations

from typing import NamedTuple

from tagspread.errors import TagspreadError
from tagspread.methods.base import Method
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset


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
                f"batch is {config.batch}; a step takes labeled and unlabeled images: give at least 2."
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
