"""Demo without downloads: train on synthetic images of handwritten digits, few of them labeled.

The labeled-only baseline and CAP are trained on the same 5 % of labels, with the same network and settings. Both are
evaluated on images made from handwriting that neither has seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from tagspread.data.datasets.digits import CLASSES, SETTINGS, digit_canvases
from tagspread.data.images.store import TensorStore
from tagspread.errors import TagspreadError
from tagspread.progress import Stopwatch, Watcher
from tagspread.run.folder import RunFolder
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.preflight import choose_device
from tagspread.train.trainer import Run, RunOptions, run_training


class DemoSize(NamedTuple):
    """Number of images and epochs."""

    canvases: int = 3000
    test: int = 1500
    warmup_epochs: int = 40
    epochs: int = 10


RUNS = {"asl": "labeled only", "cap": "CAP"}  # method (also the name of the folder) and title


def demo_dataset(size: DemoSize, seed: int) -> Dataset:
    """Return a dataset of digit canvases, 5 % of them labeled."""
    train, test = digit_canvases(size.canvases, size.test, seed)
    labeled, total = size.canvases // 20, size.canvases
    y = np.concatenate([train.y, test.y])
    y[labeled:total] = -1
    return Dataset(
        TensorStore(np.concatenate([train.images, test.images]), choose_device()),
        y,
        CLASSES,
        labeled=np.arange(labeled),
        unlabeled=np.arange(labeled, total),
        test=np.arange(total, total + size.test),
    )


def export_folder(folder: Path, size: DemoSize, seed: int) -> None:
    """Write the canvases as a folder of images with the label tables ``labels.csv`` and ``test.csv``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise TagspreadError(f"--export-folder {folder} is not empty; give a new folder.")
    except OSError as error:
        raise TagspreadError(
            f"--export-folder {folder} cannot be created ({error.strerror}); choose another folder."
        ) from None
    train, test = digit_canvases(size.canvases, size.test, seed)
    for part, canvases in (("train", train), ("test", test)):
        for i, image in enumerate(canvases.images):
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{part}-{i:05}.png")
    for name, part, y in (("labels", "train", train.y[: size.canvases // 20]), ("test", "test", test.y)):
        lines = [",".join((f"{part}-{i:05}.png", *map(str, row))) for i, row in enumerate(y)]
        (folder / f"{name}.csv").write_text("\n".join([",".join(("image", *CLASSES)), *lines]) + "\n", encoding="utf-8")


def _check_free(out: Path, overwrite: bool) -> None:
    """Raise unless the two runs can be written there, without mixing them with other files or runs."""
    folder = RunFolder(out)
    if folder.is_run:
        raise TagspreadError(f"{out} holds another run; choose another folder for the two runs of the demo.")
    if not out.is_dir() or any(file.name not in RUNS for file in out.iterdir()):
        folder.check_free(overwrite=False)
    for name in RUNS:
        RunFolder(out / name).check_free(overwrite)


def run_demo(out: Path, size: DemoSize, seed: int, watcher: Watcher, overwrite: bool = False) -> dict[str, Run]:
    """Train the labeled-only baseline and CAP; return both runs, in folders below ``out``."""
    _check_free(out, overwrite)
    dataset = demo_dataset(size, seed)
    watcher.note(
        f"{len(dataset.labeled):,} labeled canvases, {len(dataset.unlabeled):,} unlabeled, {len(dataset.test):,} for "
        f"testing. {len(CLASSES)} digits, the rarest on {(dataset.y[dataset.labeled] == 1).sum(0).min()} labeled "
        "canvases"
    )
    runs = {}
    for method, title in RUNS.items():
        watcher.note(f"training: {title}")
        config = TrainConfig(
            method=method,
            seed=seed,
            warmup_epochs=size.warmup_epochs,
            epochs=size.epochs,
            warmup_batch=min(32, len(dataset.labeled)),
            **SETTINGS,
        )
        watcher.stopwatch = Stopwatch()  # of this run alone
        runs[title] = run_training(dataset, config, out / method, RunOptions(overwrite=overwrite), watcher=watcher)
    return runs


def show_demo(runs: dict[str, Run], console: Console) -> None:
    """Print the mAP of both runs with its interval."""
    table = Table("trained on", "mAP on unseen handwriting", "90 % interval", "seconds")
    for title, run in runs.items():
        test_metrics = run.metrics["test"]
        low, high = test_metrics["interval_90"]
        table.add_row(
            {"CAP": "with unlabeled (CAP)"}.get(title, title),
            f"{100 * test_metrics['mAP']:.1f}",
            f"{100 * low:.1f} to {100 * high:.1f}",
            f"{run.metrics['seconds']:.0f}",
        )
    console.print(table)
    console.print(
        f"The runs are in {', '.join(str(run.path) for run in runs.values())}", highlight=False, soft_wrap=True
    )
