"""The main job on data that needs no download: a few tagged canvases of digits, many untagged ones.

Labelled-only and CAP train on the same 5 % of labels, with the same network and settings; both are then measured on
canvases made from handwriting that neither has seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from tagspread.data.digits import CLASSES, SIDE, digit_canvases
from tagspread.data.store import TensorStore
from tagspread.train.config import TrainConfig
from tagspread.train.console import Watcher
from tagspread.train.problem import Problem
from tagspread.train.session import Run, choose_device, run_training


class DemoSize(NamedTuple):
    """How much of everything."""

    canvases: int = 3000
    test: int = 1500
    warmup_epochs: int = 40
    epochs: int = 10


SETTINGS: dict[str, Any] = {
    "backbone": "small",
    "weights": "none",
    "image_size": SIDE,
    "flip": False,  # a mirrored digit is no digit
    "operations": (),
    "cutout": 0.2,
    "batch": 64,
    "warmup_batch": 32,
    "lr": 3e-3,
    "ema_decay": 0.99,
    "evaluate_every": 5,
}


def demo_problem(size: DemoSize, seed: int) -> Problem:
    """Return digit canvases of which 5 % are labelled."""
    train, test = digit_canvases(size.canvases, size.test, seed)
    labelled, total = size.canvases // 20, size.canvases
    y = np.concatenate([train.y, test.y])
    y[labelled:total] = -1
    return Problem(
        TensorStore(np.concatenate([train.pictures, test.pictures]), choose_device()),
        y,
        CLASSES,
        labelled=np.arange(labelled),
        pile=np.arange(labelled, total),
        test=np.arange(total, total + size.test),
    )


def run_demo(out: Path, size: DemoSize, seed: int, watcher: Watcher, overwrite: bool = False) -> dict[str, Run]:
    """Train labelled-only and CAP; return both runs, in folders below ``out``."""
    problem = demo_problem(size, seed)
    watcher.note(
        f"{len(problem.labelled)} canvases labelled, {len(problem.pile):,} unlabelled, {len(problem.test):,} to test. "
        f"{len(CLASSES)} digits, the rarest on {(problem.y[problem.labelled] == 1).sum(0).min()} labelled canvases"
    )
    runs = {}
    for method, title in (("asl", "labelled only"), ("cap", "CAP")):
        watcher.note(f"training: {title}")
        config = TrainConfig(method=method, seed=seed, warmup_epochs=size.warmup_epochs, epochs=size.epochs, **SETTINGS)
        runs[title] = run_training(problem, config, out / method, overwrite=overwrite, watcher=watcher)
    return runs


def show_demo(runs: dict[str, Run], console: Console) -> None:
    """Print both results with their intervals."""
    table = Table("trained on", "mAP on unseen handwriting", "90 % interval", "seconds", "run folder")
    for title, run in runs.items():
        figures = run.metrics["test"]
        low, high = figures["interval_90"]
        table.add_row(
            {"CAP": "labelled + pile (CAP)"}.get(title, title),
            f"{100 * figures['mAP']:.1f}",
            f"{100 * low:.1f} to {100 * high:.1f}",
            f"{run.metrics['seconds']:.0f}",
            str(run.path),
        )
    console.print(table)
