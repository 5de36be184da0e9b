"""GPU checks: CUDA graphs and eager steps agree, runs resume, and networks that cannot be captured are trained.

python benchmarks/gpu_check.py
"""

from __future__ import annotations

import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

import tagspread as ts
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.data.images.store import TensorStore
from tagspread.progress import Watcher
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.interrupts import Interrupted
from tagspread.train.step import Step
from tagspread.train.trainer import Run, RunOptions, run_training


class ValueDependent(torch.nn.Module):
    """A network whose control flow depends on values, which a CUDA graph cannot capture."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(12, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return two logits."""
        out: torch.Tensor = self.inner(images.flatten(1).float())
        return out if out.sum().item() > 1e9 else 2 * out


class InterruptingWatcher(Watcher):
    """Raises SIGINT in the second epoch of the main stage."""

    steps = 0

    def step(self, epoch: int, seen: int, total: int) -> None:
        """Count the steps, and raise SIGINT at the third one."""
        self.steps += epoch == 6
        if self.steps == 3:
            signal.raise_signal(signal.SIGINT)


def train_digits(folder: Path, watcher: Watcher | None = None, resume: bool = False, **settings: object) -> Run:
    drawn, unseen = digit_canvases(600, 300, seed=0)
    y = np.concatenate([drawn.y, unseen.y])
    y[60:600] = -1
    store = TensorStore(np.concatenate([drawn.images, unseen.images]), "cuda")
    rows = np.arange(900)
    dataset = Dataset(store, y, CLASSES, rows[:60], rows[60:600], rows[600:])
    quick = {"backbone": "small", "weights": "none", "flip": False, "operations": (), "cutout": 0.2, "lr": 3e-3}
    config = TrainConfig.from_dict({**quick, "warmup_epochs": 5, "epochs": 3, "precision": "fp32", **settings})
    return run_training(dataset, config, folder, RunOptions(resume=resume), watcher=watcher or Watcher(quiet=True))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        captured = train_digits(Path(folder, "captured"))
        eager = train_digits(Path(folder, "eager"), graphs="off")
        decoder = train_digits(Path(folder, "decoder"), head="ml_decoder", precision="auto")
        with suppress(Interrupted):
            train_digits(Path(folder, "half"), InterruptingWatcher(quiet=True))
        resumed = train_digits(Path(folder, "half"), resume=True)
        print("test mAP captured, eager:", captured.metrics["test"]["mAP"], eager.metrics["test"]["mAP"])
        print(
            "stopped and resumed:", resumed.metrics["test"]["mAP"], "| ML-Decoder head:", decoder.metrics["test"]["mAP"]
        )
        for a, b in zip(captured.log[:5], eager.log[:5], strict=True):
            print(f"  epoch {a['epoch']}: loss {a['loss']:.6f} captured, {b['loss']:.6f} eager")

    network = ValueDependent().cuda()
    optimizer = torch.optim.AdamW(network.parameters())
    step = Step(network, optimizer, lambda z, y, w, _: ts.bce_loss(z, y, w), graphs=True)
    batch = torch.randint(0, 255, (4, 3, 2, 2), dtype=torch.uint8, device="cuda")
    ones, places = torch.ones(4, 2, device="cuda"), torch.arange(4, device="cuda")
    losses = [step(batch, ones, ones, places).item() for _ in range(3)]
    print("a network that cannot be captured trains eagerly:", not step.graphs, losses)


if __name__ == "__main__":
    main()
