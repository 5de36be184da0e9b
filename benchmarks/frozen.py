"""Compare frozen networks, image sizes and combinations of networks by a linear probe and a CAP head on VOC.

    python benchmarks/frozen.py VOCdevkit/VOC2012 WEIGHTS_DIR --networks tf_efficientnet_lite2@224 resnet50_v1@288

The mAP is measured on --dev training images that are not used otherwise. The splits are the paper's with each of
--seeds. The best network is combined greedily with others; the best combination of each size is measured on val, seed
1.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagspread.core.metrics import mean_average_precision
from tagspread.data.datasets.voc import read_voc
from tagspread.data.images.store import open_store
from tagspread.data.split import paper_split
from tagspread.linear.heads import DenseRows, scores
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.methods import get_method
from tagspread.train.scoring import score
from tagspread.vision.backbones import build_network


def embed(paths: list[Path], name: str, weights: Path, size: int, device: torch.device) -> Tensor:
    """Return standardized features (views x rows x features) of images and their mirror images."""
    store, _ = open_store(paths, size, device)
    network = build_network(name, 1, weights=str(weights)).to(device).eval()
    rows = np.arange(len(paths))
    features = torch.stack([
        score(network.features, store, rows, device=device),
        score(lambda x: network.features(x.flip(-1)), store, rows, device=device),
    ]).clone()  # fmt: skip
    flat = features.flatten(0, 1)
    return (features - flat.mean(0)) / flat.std(0).clamp(min=1e-6)


def probe_and_cap(
    x: Tensor, y: Tensor, labeled: np.ndarray, unlabeled: np.ndarray, evaluated: np.ndarray
) -> list[float]:
    """Return the mAP of the labeled-only head and of the CAP head, with fixed settings, on the evaluated rows."""
    labeled_rows, unlabeled_rows, test_rows = (
        DenseRows(x[:, torch.from_numpy(rows).to(x.device)]) for rows in (labeled, unlabeled, evaluated)
    )
    targets = y[torch.from_numpy(labeled).to(y.device)]
    settings, head = Settings(get_method("cap", keep_pos=0.6, keep_neg=0.98)), LogisticHead()
    classes = tuple(map(str, range(y.shape[1])))
    alone = probe(labeled_rows, targets, settings.ridge, head)
    both = spread(labeled_rows, targets, unlabeled_rows, settings, alone, head=head, classes=classes).layers
    truth = y[torch.from_numpy(evaluated).to(y.device)]
    return [100 * mean_average_precision(scores(test_rows, layers), truth) for layers in (alone, both)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voc", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--networks", nargs="+", required=True, metavar="NAME@SIZE")
    parser.add_argument("--together", type=int, default=3, help="largest number of networks to combine")
    parser.add_argument("--p", type=float, nargs="+", default=[0.05])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2])
    parser.add_argument("--dev", type=int, default=2000)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, val = read_voc(arguments.voc, "train"), read_voc(arguments.voc, "val")
    paths, n = [*train.paths, *val.paths], len(train.y)
    y = torch.from_numpy(np.concatenate([train.y, val.y])).to(device)
    features: dict[str, Tensor] = {}
    for network in arguments.networks:
        began, (name, size) = time.perf_counter(), network.split("@")
        features[network] = embed(paths, name, arguments.weights / f"{name}.safetensors", int(size), device)
        print(f"{network}: embedded in {time.perf_counter() - began:.1f} s", flush=True)

    def together(group: tuple[str, ...]) -> Tensor:
        return torch.cat([features[name] for name in group], dim=2).div(len(group) ** 0.5)  # keep the norm of a row

    lines: list[dict[str, Any]] = []
    for share in arguments.p:
        best: dict[str, Any] = {"networks": ()}
        for _ in range(arguments.together):
            grown = [(*best["networks"], name) for name in features if name not in best["networks"]]
            tried = []
            for group in grown:
                maps = []
                for seed in arguments.seeds:
                    labeled, unlabeled = paper_split(n, share, seed)
                    order = np.random.default_rng(seed).permutation(unlabeled)
                    parts = labeled, order[arguments.dev :], order[: arguments.dev]
                    maps.append(probe_and_cap(together(group), y, *parts))
                probed, spread_out = np.mean(maps, axis=0).round(2).tolist()
                tried.append({"networks": group, "p": share, "dev_probe": probed, "dev_cap": spread_out})
                print(json.dumps(tried[-1]), flush=True)
            best = max(tried, key=lambda line: float(line["dev_cap"]))
            on_val = probe_and_cap(together(best["networks"]), y, *paper_split(n, share, 1), np.arange(n, len(y)))
            best |= {"val_probe": round(on_val[0], 2), "val_cap": round(on_val[1], 2)}
            print("best combination, on val with seed 1:", json.dumps(best), flush=True)
            lines += tried
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "frozen.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


if __name__ == "__main__":
    main()
