"""A dataset small enough to train on in a second, and the settings for it."""

import numpy as np
import pytest
import torch

from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.data.images.store import TensorStore
from tagspread.progress import Watcher
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset

TINY = {
    "backbone": "small",
    "weights": "none",
    "image_size": 24,
    "flip": False,
    "cutout": 0.2,
    "operations": ("TranslateX", "Contrast"),
    "warmup_epochs": 2,
    "epochs": 3,
    "batch": 32,
    "lr": 3e-3,
    "score_batch": 128,
}


def make_dataset(train=200, test=60, labeled=40, seed=0, device="cpu"):
    drawn, unseen = digit_canvases(train, test, seed)
    y = np.concatenate([drawn.y, unseen.y])
    y[labeled:train] = -1
    store = TensorStore(np.concatenate([drawn.images, unseen.images]), torch.device(device))
    rows = np.arange(train + test)
    return Dataset(store, y, CLASSES, rows[:labeled], rows[labeled:train], rows[train:])


@pytest.fixture
def dataset():
    return make_dataset()


@pytest.fixture
def tiny():
    """TrainConfig of the tiny settings with changes."""

    def make(**changes):
        return TrainConfig(**{**TINY, **changes})

    return make


@pytest.fixture
def silent():
    return Watcher(quiet=True)
