"""Speed of a training epoch on VOC (paper setting) relative to the bare network, measured in one run.

    python benchmarks/engine.py VOCdevkit/VOC2012 resnet50_v1.safetensors [--epochs 4] [--cache DIR]

Prints the time of a full semi-supervised epoch (score the unlabeled set, train on batches of 2 + 30, evaluate student
and EMA), training and scoring rates relative to the bare network (same batch size, precision and graph capture, images
on the device), and the number of images decoded after the start. With --cache, also the training rate when memory may
hold only a quarter of the images and the rest is streamed from disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tagspread.data.datasets.voc import read_voc
from tagspread.data.images import decode
from tagspread.data.images.store import open_store
from tagspread.data.split import paper_split
from tagspread.methods.base import Labeled
from tagspread.train.batches import training_batches
from tagspread.train.config import make_config
from tagspread.train.dataset import Dataset
from tagspread.train.loop import evaluate, label_unlabeled, student_steps
from tagspread.train.preflight import prepare
from tagspread.train.trainer import run_training
from tagspread.train.training import Training
from tagspread.vision.augment import Views


def voc_dataset(root: Path, size: int, device: torch.device, share: float = 0.05, seed: int = 1) -> Dataset:
    """Return VOC with the paper's split: train (labeled and unlabeled set) and val (test set)."""
    train, val = read_voc(root, "train"), read_voc(root, "val")
    store, broken = open_store([*train.paths, *val.paths], size, device)
    print(store.describe(), "| broken:", len(broken), flush=True)
    labeled, unlabeled = paper_split(len(train.y), share, seed)
    test = np.arange(len(train.y), len(train.y) + len(val.y))
    files = [*train.paths, *val.paths]
    names, y = [str(file) for file in files], np.concatenate([train.y, val.y])
    return Dataset(store, y, train.classes, labeled, unlabeled, test, names=names, files=files)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def parts_of_an_epoch(training: Training) -> dict[str, float]:
    """Measure the time of scoring, training and evaluation in one epoch."""
    experiment, student = training.experiment, training.student
    dataset, config, device, stage = experiment.dataset, experiment.config, experiment.device, experiment.stages[0]
    student.begin_stage(stage)
    labeled = Labeled(torch.from_numpy(dataset.y[dataset.labeled]), dataset.classes)
    for _ in range(2):  # the first round captures graphs and chooses algorithms
        training.history.step = 0
        score_s = seconds(lambda: label_unlabeled(training, labeled), device)
        train_s = seconds(lambda: list(student_steps(training, stage, labeled)), device)
        evaluate_s = seconds(lambda: evaluate(training), device)
        student.schedules[0].last_epoch = 0
    rows = dataset.unlabeled[: len(dataset.unlabeled) // 32 * 32].reshape(-1, 32)
    views = Views(config.seed, config.flip, config.cutout, config.operations)
    batches = partial(training_batches, student.network, dataset.store, views, rows, 0, cutout=True)
    views_s = seconds(lambda: [None for _ in batches()], device)
    images = stage.steps * stage.batch
    return {
        "score_s": score_s,
        "train_s": train_s,
        "evaluate_s": evaluate_s,
        "of_train_views_s": views_s,
        "epoch_s": score_s + train_s + evaluate_s,
        "train_img_s": images / train_s,
        "score_img_s": len(dataset.unlabeled) / score_s,
    }


def streamed_rate(training: Training, paths: list[Path], cache: Path) -> float:
    """Return the training rate with images streamed from disk, with memory for a quarter of them."""
    experiment = training.experiment
    dataset, device, size = experiment.dataset, experiment.device, experiment.config.image_size
    store, _ = open_store(paths, size, device, cache=cache, budget=len(paths) * 3 * size**2 // 4)
    print(store.describe(), flush=True)
    if store.placement != "disk":
        raise SystemExit(f"the images are not on disk: {store.placement}")
    training.experiment = replace(experiment, dataset=replace(dataset, store=store))
    stage = experiment.stages[0]
    labeled = Labeled(torch.from_numpy(dataset.y[dataset.labeled]), dataset.classes)
    training.history.step = 0
    training.student.schedules[0].last_epoch = 0
    train_s = seconds(lambda: list(student_steps(training, stage, labeled)), device)
    return stage.steps * stage.batch / train_s


def bare_rates(training: Training) -> dict[str, float]:
    """Return the rates of the bare network: the same training step and scoring on one batch in memory."""
    dataset, device, stage = training.experiment.dataset, training.experiment.device, training.experiment.stages[0]
    batch = stage.batch
    images = dataset.store.batch(dataset.unlabeled[:batch])
    labels = torch.zeros(batch, len(dataset.classes), device=device)
    ones, places = torch.ones_like(labels), torch.arange(stage.batch_unlabeled, device=device)
    training.student.train_mode()

    def train(steps: int) -> None:
        for _ in range(steps):
            training.student.step(images, labels, ones, places)

    train(5)
    train_rate = 150 * batch / seconds(lambda: train(150), device)
    many = dataset.store.batch(dataset.unlabeled[: dataset.store.modality.suitable_batch(device)])
    network = training.student.teacher.eval()

    @torch.inference_mode()
    def scoring(times: int) -> None:
        for _ in range(times):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
                network(many)

    scoring(2)
    score_rate = 20 * len(many) / seconds(lambda: scoring(20), device)
    return {"bare_train_img_s": train_rate, "bare_score_img_s": score_rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voc", type=Path)
    parser.add_argument("weights")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--backbone", default="resnet50_v1")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--graphs", default="auto")
    parser.add_argument("--run", type=Path, default=Path("engine-run"))
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.perf_counter()
    dataset = voc_dataset(arguments.voc, arguments.size, device)
    print(f"decoded in {time.perf_counter() - began:.1f} s", flush=True)
    config = make_config(
        "paper",
        backbone=arguments.backbone,
        weights=arguments.weights,
        batch=arguments.batch,
        image_size=arguments.size,
        warmup_epochs=0,
        epochs=arguments.epochs,
        graphs=arguments.graphs,
    )
    training = Training(prepare(dataset, config, device), arguments.run / "unused.safetensors")
    results = parts_of_an_epoch(training) | bare_rates(training)
    results["train_share_of_bare"] = results["train_img_s"] / results["bare_train_img_s"]
    results["score_share_of_bare"] = results["score_img_s"] / results["bare_score_img_s"]

    if arguments.cache is not None:
        paths = [Path(name) for name in dataset.names]
        results["streamed_train_img_s"] = streamed_rate(training, paths, arguments.cache)
        results["streamed_share_of_resident"] = results["streamed_train_img_s"] / results["train_img_s"]

    decoded = []
    original = decode.decode
    decode.decode = lambda *a, **k: decoded.append(a) or original(*a, **k)  # type: ignore[func-returns-value]
    shutil.rmtree(arguments.run, ignore_errors=True)
    run = run_training(dataset, config, arguments.run, device=device)
    results["decoded_after_start"] = len(decoded)
    results["run_epoch_s"] = [round(line["seconds"], 2) for line in run.log]  # type: ignore[assignment]
    results["run_total_s"] = run.metrics["seconds"]
    for name, value in results.items():
        print(f"{name:>22}: {value:,.3f}" if isinstance(value, float) else f"{name:>22}: {value}")
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "engine.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
