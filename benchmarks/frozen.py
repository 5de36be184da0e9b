"""What frozen networks see, at which image size, alone and together: probe and CAP head, judged on training images.

    python benchmarks/frozen.py VOCdevkit/VOC2012 WEIGHTS_DIR --networks tf_efficientnet_lite2@224 resnet50_v1@288

Of the training part, --dev images take no part at all and judge; the split is the paper's with each of --seeds. The
best network is joined by the one that helps it most, and so on; the best of each number is measured on val, seed 1.
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
    """Return views x rows x features, each feature of mean 0 and variance 1."""
    store, _ = open_store(paths, size, device)
    network = build_network(name, 1, weights=str(weights)).to(device).eval()
    rows = np.arange(len(paths))
    seen = torch.stack([
        score(network.features, store, rows, device=device),
        score(lambda x: network.features(x.flip(-1)), store, rows, device=device),
    ]).clone()  # fmt: skip
    flat = seen.flatten(0, 1)
    return (seen - flat.mean(0)) / flat.std(0).clamp(min=1e-6)


def probe_and_cap(x: Tensor, y: Tensor, labeled: np.ndarray, unlabeled: np.ndarray, judged: np.ndarray) -> list[float]:
    """Return the mAP of the labeled-only head and of CAP's, with fixed settings, on rows that took no part."""
    known, unknown, test = (
        DenseRows(x[:, torch.from_numpy(rows).to(x.device)]) for rows in (labeled, unlabeled, judged)
    )
    targets = y[torch.from_numpy(labeled).to(y.device)]
    settings, head = Settings(get_method("cap", keep_pos=0.6, keep_neg=0.98)), LogisticHead()
    classes = tuple(map(str, range(y.shape[1])))
    alone = probe(known, targets, settings.ridge, head)
    both = spread(known, targets, unknown, settings, alone, head=head, classes=classes).layers
    truth = y[torch.from_numpy(judged).to(y.device)]
    return [100 * mean_average_precision(scores(test, layers), truth) for layers in (alone, both)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voc", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--networks", nargs="+", required=True, metavar="NAME@SIZE")
    parser.add_argument("--together", type=int, default=3, help="how many at most are looked at together")
    parser.add_argument("--p", type=float, nargs="+", default=[0.05])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2])
    parser.add_argument("--dev", type=int, default=2000)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, val = read_voc(arguments.voc, "train"), read_voc(arguments.voc, "val")
    paths, n = [*train.paths, *val.paths], len(train.y)
    y = torch.from_numpy(np.concatenate([train.y, val.y])).to(device)
    seen: dict[str, Tensor] = {}
    for network in arguments.networks:
        began, (name, size) = time.perf_counter(), network.split("@")
        seen[network] = embed(paths, name, arguments.weights / f"{name}.safetensors", int(size), device)
        print(f"{network}: embedded in {time.perf_counter() - began:.1f} s", flush=True)

    def together(group: tuple[str, ...]) -> Tensor:
        return torch.cat([seen[name] for name in group], dim=2).div(len(group) ** 0.5)  # as long a row as of one

    lines: list[dict[str, Any]] = []
    for share in arguments.p:
        best: dict[str, Any] = {"networks": ()}
        for _ in range(arguments.together):
            grown = [(*best["networks"], name) for name in seen if name not in best["networks"]]
            tried = []
            for group in grown:
                found = []
                for seed in arguments.seeds:
                    labeled, unlabeled = paper_split(n, share, seed)
                    order = np.random.default_rng(seed).permutation(unlabeled)
                    parts = labeled, order[arguments.dev :], order[: arguments.dev]
                    found.append(probe_and_cap(together(group), y, *parts))
                probed, spread_out = np.mean(found, axis=0).round(2).tolist()
                tried.append({"networks": group, "p": share, "dev_probe": probed, "dev_cap": spread_out})
                print(json.dumps(tried[-1]), flush=True)
            best = max(tried, key=lambda line: float(line["dev_cap"]))
            figures = probe_and_cap(together(best["networks"]), y, *paper_split(n, share, 1), np.arange(n, len(y)))
            best |= {"val_probe": round(figures[0], 2), "val_cap": round(figures[1], 2)}
            print("the best of these, on val with seed 1:", json.dumps(best), flush=True)
            lines += tried
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "frozen.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


if __name__ == "__main__":
    main()
