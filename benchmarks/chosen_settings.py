"""What the settings that the search chooses are worth, on features of a frozen network.

    python benchmarks/chosen_settings.py FEATURES.npz --labeled 285 [--sample random balanced rare] [--components 400]

FEATURES.npz has ``X`` (rows x features, training rows first), ``Y`` of 1 and 0, ``n_train``, optionally ``X_mirror``.
For each sample and seed, prints one JSON line with the mAP of the labeled-only head and of the head with the unlabeled
set on the rows that are not for training, and all trials of the search.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from tagspread.core.metrics import mean_average_precision
from tagspread.linear.heads import DenseRows, Layers, scores
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.options import make_methods, make_search_space
from tagspread.linear.rounds import probe, spread
from tagspread.linear.search import search_settings

RARE = 0.2  # weight of images with the most frequent class


def draw(y: np.ndarray, labeled: int, sample: str, seed: int) -> np.ndarray:
    """Draw the labeled rows: at random, some of every class in turn, or with few of the most frequent class."""
    rng = np.random.RandomState(seed)
    if sample == "random":
        return rng.permutation(len(y))[:labeled]
    if sample == "rare":
        weight = np.where(y[:, y.sum(0).argmax()] == 1, RARE, 1.0)
        return rng.choice(len(y), labeled, replace=False, p=weight / weight.sum())
    drawn: list[int] = []
    for k in range(labeled * y.shape[1]):
        rows = np.setdiff1d(np.flatnonzero(y[:, k % y.shape[1]]), drawn)
        if len(rows):
            drawn.append(int(rng.choice(rows)))
        if len(drawn) == labeled:
            break
    return np.array(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--labeled", type=int, required=True)
    parser.add_argument("--sample", nargs="+", default=["random"], choices=("random", "balanced", "rare"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--components", type=int, help="project the features onto this many principal components")
    parser.add_argument("--most-rows", type=int, default=20_000, help="rows that the search uses at most")
    arguments = parser.parse_args()
    with np.load(arguments.features) as file:
        n, y = int(file["n_train"]), file["Y"]
        x = torch.from_numpy(np.stack([file[k] for k in ("X", "X_mirror") if k in file]).astype(np.float32))
    train = x[:, :n].flatten(0, 1)
    x = (x - train.mean(0)) / train.std(0).clamp(min=1e-6)
    if arguments.components:
        train = x[:, :n].flatten(0, 1)
        _, vectors = torch.linalg.eigh(train.T @ train / len(train))
        x = x @ vectors[:, -arguments.components :]
    test, head, classes = DenseRows(x[:, n:]), LogisticHead(), tuple(map(str, range(y.shape[1])))

    def measure(layers: Layers) -> float:
        return round(100 * mean_average_precision(scores(test, layers), torch.from_numpy(y[n:])), 2)

    methods = make_methods("cap")
    for sample in arguments.sample:
        for seed in arguments.seeds:
            began, rows = time.process_time(), draw(y[:n], arguments.labeled, sample, seed)
            labeled, unlabeled = DenseRows(x[:, rows]), DenseRows(x[:, np.setdiff1d(np.arange(n), rows)])
            known = torch.from_numpy(y[rows])
            found = search_settings(
                labeled, known, unlabeled, methods, head=head, classes=classes, seed=seed,
                space=make_search_space("auto", "auto", methods), most_rows=arguments.most_rows,
            )  # fmt: skip
            start = probe(labeled, known, found.settings.ridge, head)
            fitted = spread(labeled, known, unlabeled, found.settings, start, head=head, classes=classes)
            trials = [
                (trial.settings.ridge, trial.settings.unlabeled_weight, round(100 * trial.mean, 2))
                for trial in found.trials
            ]
            line = {"sample": sample, "seed": seed, "labeled_only": measure(start), "cap": measure(fitted.layers)}
            line |= {"cpu_s": round(time.process_time() - began), "chosen": str(found.settings), "trials": trials}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
