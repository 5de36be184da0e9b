"""Compare settings of the default preset on VOC, evaluated on held-out training images, never on the test set.

    python benchmarks/preset.py VOCdevkit/VOC2012 tf_efficientnet_lite2 WEIGHTS --p 0.05 --seed 2 \
        --try '{}' --try '{"epochs": 18}' [--val]

Each --try is a JSON object of settings that override the preset. --dev images are removed from the unlabeled set, and
the EMA network of the last epoch is evaluated on them: as it is, averaged over images and mirror images, and with a
head fitted again on its features. With --val, no images are removed, and the network is evaluated on the test set; use
it only for settings that are already fixed. With --scores, the logits of the unlabeled and the evaluated images are
written to a folder, for ``team.py`` and for ``attempts.Taught``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import attempts  # noqa: F401  # names that --try may ask for
import numpy as np
import torch
from engine import voc_dataset

from tagspread.core.metrics import mean_average_precision
from tagspread.linear.rounds import Settings
from tagspread.methods import get_method
from tagspread.progress import Watcher
from tagspread.run.artifact import load_network, read_artifact
from tagspread.train.config import TrainConfig, make_config
from tagspread.train.dataset import Dataset
from tagspread.train.features import FeatureExtractor
from tagspread.train.head import HeadData, fit_head
from tagspread.train.scoring import score
from tagspread.train.trainer import Run, run_training


def variants(run: Run, dataset: Dataset, config: TrainConfig, device: torch.device) -> dict[str, float]:
    """Return the mAP of the finished network with mirror images, and with a head fitted again."""
    network = load_network(read_artifact(run.path), device)
    truth = torch.from_numpy(dataset.y[dataset.test]).to(device)

    def measured(flips: bool) -> float:
        scores = score(network, dataset.store, dataset.test, device=device, flips=flips)
        return round(100 * mean_average_precision(scores, truth), 2)

    maps = {"mirrored": measured(True)}
    settings = Settings(get_method(config.method, **config.method_options))
    extractor = FeatureExtractor(network, device, config.score_batch, config.precision)
    rows = np.concatenate([dataset.labeled, dataset.unlabeled])
    data = HeadData.of(dataset, extractor.train_views(dataset, rows, mirror=config.flip))
    fit_head(network, data, settings, labeled_only=lambda: None)
    return maps | {"fitted_again": measured(False)}


def write_scores(run: Run, dataset: Dataset, device: torch.device, folder: Path, name: str) -> None:
    """Write the network's logits of the unlabeled and the evaluated rows, and the labels of the latter."""
    network = load_network(read_artifact(run.path), device)
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("unlabeled", dataset.unlabeled), ("evaluated", dataset.test)):
        logits = score(network, dataset.store, rows, device=device, flips=True)
        np.save(folder / f"{name}-{part}.npy", logits.cpu().numpy())
    np.save(folder / "truth.npy", dataset.y[dataset.test])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voc", type=Path)
    parser.add_argument("backbone")
    parser.add_argument("weights")
    parser.add_argument("--p", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--try", dest="tries", action="append", required=True)
    parser.add_argument("--val", action="store_true")
    parser.add_argument("--dev", type=int, default=2000)
    parser.add_argument("--name", default="preset")
    parser.add_argument("--scores", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    datasets: dict[int, Dataset] = {}
    lines: list[dict[str, object]] = []
    for text in arguments.tries:
        settings = {"backbone": arguments.backbone, "weights": arguments.weights, "seed": arguments.seed}
        config = make_config("default", evaluate_every=100, mode="full", **(settings | json.loads(text)))
        if (size := config.image_size) not in datasets:
            dataset = voc_dataset(arguments.voc, size, device, arguments.p, arguments.seed)
            if not arguments.val:
                order = np.random.default_rng(arguments.seed).permutation(dataset.unlabeled)
                dataset = replace(dataset, unlabeled=order[arguments.dev :], test=order[: arguments.dev])
            datasets = {size: dataset}  # one size at a time in memory
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            run = run_training(datasets[size], config, Path(folder, "run"), device=device, watcher=Watcher(quiet=True))
            seconds = round(time.perf_counter() - began, 1)
            if arguments.scores is not None:
                write_scores(run, datasets[size], device, arguments.scores, f"{arguments.name}-{len(lines)}")
            more = {} if arguments.val else variants(run, datasets[size], config, device)
        line = {
            "backbone": arguments.backbone,
            "p": arguments.p,
            "seed": arguments.seed,
            "settings": json.loads(text),
            "part": "val" if arguments.val else f"{arguments.dev} of train",
            "labeled_only": round(100 * run.metrics["labeled_only"]["mAP"], 2),
            "map": round(100 * run.metrics["test"]["mAP"], 2),
            "interval_90": [round(100 * end, 2) for end in run.metrics["test"]["interval_90"]],
            "seconds": seconds,
            **more,
        }
        lines.append(line)
        print(json.dumps(line), flush=True)
        if "OUT" in os.environ:
            Path(os.environ["OUT"], f"{arguments.name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


if __name__ == "__main__":
    main()
