"""Simulate what to label next: which images give the most mAP per answer, with the true labels as the answers.

    python benchmarks/labeling.py features.npz --dev 1700 --pca 256           # choose: on training images only
    python benchmarks/labeling.py features.npz --mixture rare=0.5,random=0.5  # measure: on the test images, once
    python benchmarks/labeling.py features.npz --priors                       # class-balanced start, frequencies

The file holds ``X`` (rows x features), ``Y`` (rows x classes of 1 and 0), ``n_train`` (the first rows are for training)
and, if there is one, ``X_mirror``. Of the training images, --start are labeled at random. Then each strategy chooses
the next images in the rounds given by --more; after each round the CAP head is fitted again, with frequencies from the
random images alone (the start and the random draws), and the mAP is measured. Lines of JSON go to standard output and
to --out; ``make images`` draws the plot of the documentation from that file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tagspread.core.audit import remaining_frequencies, shrunk_frequencies
from tagspread.core.metrics import mean_average_precision
from tagspread.linear.heads import DenseRows, Layers, scores
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.methods.cap import CAP
from tagspread.review.strategies import MIXTURE, STRATEGIES, Evidence, suggest

RIDGE, UNLABELED_RIDGE, KEEP_POS, KEEP_NEG = 0.1, 0.02, 0.6, 0.98


class Data(NamedTuple):
    """Standardized features (views x rows x features), labels, and the rows to learn from and to measure on."""

    features: Tensor
    y: np.ndarray
    pool: np.ndarray
    measured: np.ndarray


class Heads(NamedTuple):
    """The labeled-only head and the CAP head."""

    alone: Layers
    both: Layers


def read(file: Path, pca: int, views: int) -> tuple[Tensor, np.ndarray, int]:
    """Read the features (views x rows x features), the labels, and the number of training rows."""
    with np.load(file) as stored:
        y, n_train = stored["Y"].astype(np.int8), int(stored["n_train"])
        names = [name for name in ("X", "X_mirror") if name in stored][:views]
        features = torch.from_numpy(np.stack([stored[name].astype(np.float32) for name in names]))
    train = features[:, :n_train].flatten(0, 1)
    features = (features - train.mean(0)) / train.std(0).clamp(min=1e-6)
    if pca:
        train = features[:, :n_train].flatten(0, 1)
        _, vectors = torch.linalg.eigh(train.T @ train / len(train))
        features = features @ vectors[:, -pca:]
    return features, y, n_train


def split(features: Tensor, y: np.ndarray, n_train: int, dev: int, seed: int) -> Data:
    """Choose the rows to measure on: the test rows, or with ``dev`` that many training rows, others for each seed."""
    if not dev:
        return Data(features, y, np.arange(n_train), np.arange(n_train, len(y)))
    order = np.random.default_rng([2023, seed]).permutation(n_train)
    return Data(features, y, np.sort(order[dev:]), np.sort(order[:dev]))


def fit(data: Data, labeled: np.ndarray, unlabeled: np.ndarray, priors: np.ndarray | None, steps: int) -> Heads:
    """Fit the labeled-only head and the CAP head."""
    rows, y = DenseRows(data.features[:, labeled]), torch.from_numpy(data.y[labeled])
    head, names = LogisticHead(max_iter=steps), tuple(map(str, range(y.shape[1])))
    known = None if priors is None else {name: float(p) for name, p in zip(names, priors, strict=True)}
    settings = Settings(CAP(KEEP_POS, KEEP_NEG, known), RIDGE, UNLABELED_RIDGE)
    alone = probe(rows, y, RIDGE, head)
    fitted = spread(rows, y, DenseRows(data.features[:, unlabeled]), settings, alone, head=head, classes=names)
    return Heads(alone, fitted.layers)


def measure(data: Data, layers: Layers) -> float:
    """Return the mAP on the rows to measure on, in percent; only the plain view, as in ``train``."""
    logits = scores(DenseRows(data.features[:1, data.measured]), layers)
    return 100 * mean_average_precision(logits, torch.from_numpy(data.y[data.measured]))


class Start(NamedTuple):
    """The first round, which all strategies share."""

    labeled: np.ndarray
    unlabeled: np.ndarray  # in random order: that of the draws
    heads: Heads
    evidence: Evidence


def begin(data: Data, seed: int, count: int, steps: int) -> Start:
    """Label images at random, and fit the heads."""
    order = np.random.default_rng(seed).permutation(data.pool)
    labeled, unlabeled = order[:count], order[count:]
    frequencies = (data.y[labeled] == 1).mean(0)
    heads = fit(data, labeled, unlabeled, frequencies, steps)
    return Start(labeled, unlabeled, heads, evidence_of(data, heads, labeled, unlabeled, frequencies))


def simulate(
    data: Data, start: Start, strategy: str, mixture: dict[str, float], seed: int, more: list[int], steps: int
) -> list[dict[str, Any]]:
    """Return the mAP after the start and after each round of answers."""
    labeled, unlabeled, heads, evidence = start
    draws, done = np.arange(len(unlabeled)), np.zeros(len(unlabeled), bool)
    lines, asked, drawn = list[dict[str, Any]](), 0, 0
    for total in [0, *more]:
        began = time.process_time()
        chosen = suggest(evidence, total - asked, strategy, draws=draws, done=done, mixture=mixture)
        done[[suggestion.image for suggestion in chosen]] = True
        drawn += sum(suggestion.strategy == "random" for suggestion in chosen)
        asked = total
        # the random sample: the start, and the longest beginning of the draws that was answered
        answered = np.flatnonzero(done)
        length = len(done) if done.all() else int(np.flatnonzero(~done)[0])
        sample = np.concatenate([labeled, unlabeled[:length]])
        frequencies = (data.y[sample] == 1).sum(0) / len(sample)
        frequencies_left = remaining_frequencies(
            frequencies, len(unlabeled), (data.y[unlabeled[answered]] == 1).sum(0), len(answered)
        )
        labeled_rows = np.concatenate([labeled, unlabeled[answered]])
        if total:
            heads = fit(data, labeled_rows, unlabeled[~done], frequencies_left, steps)
            evidence = evidence_of(data, heads, labeled_rows, unlabeled, frequencies)
        lines.append({
            "strategy": strategy, "seed": seed, "answers": total, "mAP": round(measure(data, heads.both), 3),
            "labeled_only": round(measure(data, heads.alone), 3), "sample": len(sample) - len(labeled), "drawn": drawn,
            "cpu_seconds": round(time.process_time() - began, 2),
            "fewest_positives": int((data.y[labeled_rows] == 1).sum(0).min()),
        })  # fmt: skip
        if strategy == "mixture":
            lines[-1]["mixture"] = mixture
        print(json.dumps(lines[-1]), flush=True)
    return lines


def evidence_of(
    data: Data, heads: Heads, labeled: np.ndarray, unlabeled: np.ndarray, frequencies: np.ndarray
) -> Evidence:
    """Return what a run would know about its unlabeled images."""

    def logits(views: Tensor, layers: Layers) -> np.ndarray:
        return scores(DenseRows(views[:, unlabeled]), layers).numpy()

    plain, mirror = data.features[:1], data.features[1:]
    y = data.y[labeled]
    return Evidence(
        logits(plain, heads.both),
        (y == 1).sum(0),
        (y >= 0).sum(0),
        frequencies,
        baseline=logits(plain, heads.alone),
        mirror=logits(mirror, heads.both) if len(mirror) else None,
        features=data.features[0, unlabeled].numpy(),
        labeled_features=data.features[0, labeled].numpy(),
    )


def balanced_start(data: Data, seed: int, start: int) -> np.ndarray:
    """Return labeled rows as people choose them: some of every class in turn, found by their labels."""
    rng, taken = np.random.default_rng(seed), dict[int, None]()
    waiting = [list(rng.permutation(data.pool[data.y[data.pool, k] == 1])) for k in range(data.y.shape[1])]
    while len(taken) < start:
        for rows in waiting:
            while rows and rows[-1] in taken:
                rows.pop()
            if rows and len(taken) < start:
                taken[int(rows.pop())] = None
    return np.array(list(taken))


def compare_priors(data: Data, seed: int, start: int, answers: int, steps: int) -> list[dict[str, Any]]:
    """Return the mAP of the CAP head on a class-balanced start with frequencies of several origins."""
    labeled = balanced_start(data, seed, start)
    unlabeled = np.random.default_rng([seed, 1]).permutation(np.setdiff1d(data.pool, labeled))
    y, truth = data.y[labeled], (data.y[unlabeled] == 1).mean(0)
    audited = (data.y[unlabeled[:answers]] == 1).sum(0)
    shrunk = shrunk_frequencies(audited, answers, (y == 1).sum(0), len(y))
    lines = []
    for origin, priors in (("counts", None), ("audit", shrunk), ("audit alone", audited / answers), ("truth", truth)):
        heads = fit(data, labeled, unlabeled, priors, steps)
        error = float(np.abs((y == 1).mean(0) - truth).mean() if priors is None else np.abs(priors - truth).mean())
        lines.append({"priors": origin, "seed": seed, "answers": answers, "mAP": measure(data, heads.both),
                      "labeled_only": measure(data, heads.alone), "error": round(error, 4)})  # fmt: skip
        print(json.dumps(lines[-1]), flush=True)
    # the audited images are labeled images as well: what they are worth as such, with and without the frequencies
    more, rest = np.concatenate([labeled, unlabeled[:answers]]), unlabeled[answers:]
    for origin, priors in (
        ("counts, answers labeled", None),
        ("audit, answers labeled", remaining_frequencies(shrunk, len(unlabeled), audited, answers)),
        ("truth, answers labeled", (data.y[rest] == 1).mean(0)),
    ):
        heads = fit(data, more, rest, priors, steps)
        lines.append({"priors": origin, "seed": seed, "answers": answers, "mAP": measure(data, heads.both),
                      "labeled_only": measure(data, heads.alone)})  # fmt: skip
        print(json.dumps(lines[-1]), flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--mixture", nargs="+", default=[], metavar="NAME=SHARE,...", help="mixtures to try")
    parser.add_argument("--start", type=int, default=285)
    parser.add_argument("--more", type=int, nargs="+", default=[100, 200, 286])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--dev", type=int, default=0, help="measure on that many training rows instead of the others")
    parser.add_argument("--pca", type=int, default=0, help="reduce the features to that many components")
    parser.add_argument("--views", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="maximal number of L-BFGS steps of a fit")
    parser.add_argument("--priors", action="store_true", help="compare frequencies on a class-balanced start")
    parser.add_argument("--audit", type=int, default=200, help="answers of the audit, for --priors")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    whole = read(arguments.features, arguments.pca, arguments.views)
    lines: list[dict[str, Any]] = []
    mixtures = [
        {name: float(share) for name, share in (pair.split("=") for pair in text.split(","))}
        for text in arguments.mixture
    ] or [dict(MIXTURE)]
    for seed in arguments.seeds:
        data = split(*whole, arguments.dev, seed)
        if arguments.priors:
            lines += compare_priors(data, seed, arguments.start, arguments.audit, arguments.steps)
            continue
        start = begin(data, seed, arguments.start, arguments.steps)
        for strategy in arguments.strategies:
            for mixture in mixtures if strategy == "mixture" else mixtures[:1]:
                lines += simulate(data, start, strategy, mixture, seed, arguments.more, arguments.steps)
    if arguments.out:
        arguments.out.write_text("\n".join(map(json.dumps, lines)) + "\n")


if __name__ == "__main__":
    main()
