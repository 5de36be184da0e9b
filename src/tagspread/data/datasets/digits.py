"""Demo dataset without download: multi-label canvases of the handwritten digits of scikit-learn.

Each canvas shows one to four different digits in random places, and its labels are these digits. Class frequencies
differ; the last digits are rare. Training and test canvases use different handwritten samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.aliases import SettingValues
from tagspread.data.datasets.base import NamedDataset, Parts
from tagspread.data.tables.label_table import LabelTable

CLASSES = tuple(str(digit) for digit in range(10))
SHARES = (0.45, 0.35, 0.30, 0.25, 0.22, 0.18, 0.14, 0.10, 0.06, 0.03)  # target frequency of each digit
SIDE = 24  # a canvas is 3 x 3 cells of 8 pixels
SETTINGS: SettingValues = {  # a small network that trains in a minute on a CPU
    "backbone": "small",
    "weights": "none",
    "image_size": SIDE,
    "flip": False,  # a mirrored digit is not a digit
    "operations": (),
    "cutout": 0.2,
    "batch": 64,
    "lr": 3e-3,
    "ema_decay": 0.99,
    "evaluate_every": 5,
}


class Canvases(NamedTuple):
    """Images (N x 3 x 24 x 24, uint8) and their labels (N x 10)."""

    images: np.ndarray
    y: np.ndarray


def digit_canvases(train: int, test: int, seed: int = 0) -> tuple[Canvases, Canvases]:
    """Return training and test canvases.

    >>> train, test = digit_canvases(20, 10)
    >>> train.images.shape, test.y.shape
    ((20, 3, 24, 24), (10, 10))
    """
    from sklearn.datasets import load_digits  # imported late: the registry does not need it

    rng = np.random.default_rng(seed)
    bundle = load_digits()
    glyphs = (bundle.images * (255 / 16)).astype(np.uint8)
    order = rng.permutation(len(glyphs))
    train_glyphs, test_glyphs = order[: len(order) // 2], order[len(order) // 2 :]
    return tuple(
        _draw(glyphs[rows], bundle.target[rows], count, rng)
        for rows, count in ((train_glyphs, train), (test_glyphs, test))
    )  # type: ignore[return-value]


def _draw(glyphs: np.ndarray, digit: np.ndarray, count: int, rng: np.random.Generator) -> Canvases:
    y = np.zeros((count, 10), dtype=np.int8)
    canvas = rng.integers(0, 90, (count, SIDE, SIDE)).astype(np.uint8)  # background noise
    by_digit = [np.flatnonzero(digit == d) for d in range(10)]
    for i in range(count):
        shown = np.flatnonzero(rng.random(10) < SHARES)
        shown = rng.permutation(shown)[:4] if len(shown) else rng.choice(10, 1, p=np.array(SHARES) / sum(SHARES))
        y[i, shown] = 1
        cells = rng.permutation(9)[: len(shown)]
        for d, cell in zip(shown, cells, strict=True):
            top, left = 8 * (cell // 3), 8 * (cell % 3)
            spot = canvas[i, top : top + 8, left : left + 8]
            np.maximum(spot, glyphs[rng.choice(by_digit[d])], out=spot)
    return Canvases(np.repeat(canvas[:, None], 3, axis=1), y)


def draw_parts(count: int) -> Parts:
    """Return ``count`` training canvases and half as many test canvases, always the same; seeds vary only the split."""
    drawn = digit_canvases(count, count // 2, seed=0)
    names = [Path(f"canvas {k}") for k in range(count + count // 2)]
    train, test = (
        LabelTable(part_names, CLASSES, part.y)
        for part_names, part in zip((names[:count], names[count:]), drawn, strict=True)
    )
    return Parts(train, test, np.concatenate([part.images for part in drawn]))


RECIPE = {**SETTINGS, "epochs": 10, "warmup_batch": 32}
DEMO = NamedDataset(
    name="demo",
    title="DEMO",
    contents="nothing: it draws its own images",
    draw=draw_parts,
    recipes={"paper": {**RECIPE, "warmup_epochs": 40}, "default": RECIPE},
    method_recipes={"drml": {"epochs": 10}},  # its default of 150 would take longer than all other methods together
    shares=(0.05,),  # a few minutes on a CPU
    seeds=(1, 2),
)
