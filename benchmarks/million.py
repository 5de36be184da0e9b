"""Time and memory of the estimator on a million rows (``docs/benchmarks.md``).

    python benchmarks/million.py                       250,000, 500,000 and 1,000,000 rows x 256 features, 100 classes
    python benchmarks/million.py --rows 20000 40000    other sizes

Each size runs in a separate process, to measure its peak memory; 1 % of the rows are labeled. The unlabeled set has
full weight, so that all rows are used whatever cross-validation would choose.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from multiprocessing.connection import Connection

import numpy as np
import torch

import tagspread as ts

FEATURES, CLASSES, LABELED, TEST_ROWS, AT_ONCE = 256, 100, 0.01, 20_000, 50_000


def dataset(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels: each class shifts the features of its rows in its own direction."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(0)
    directions = fixed.normal(size=(CLASSES, FEATURES)).astype(np.float32) / 4
    shares = fixed.uniform(0.02, 0.3, CLASSES)
    x, y = np.empty((rows, FEATURES), np.float32), np.empty((rows, CLASSES), np.int8)
    for at in range(0, rows, AT_ONCE):
        count = min(AT_ONCE, rows - at)
        y[at : at + count] = rng.random((count, CLASSES), dtype=np.float32) < shares
        x[at : at + count] = y[at : at + count].astype(np.float32) @ directions
        x[at : at + count] += rng.standard_normal((count, FEATURES), dtype=np.float32)
    return x, y


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def run(rows: int, threads: int, answer: Connection) -> None:
    torch.set_num_threads(threads)
    x, y = dataset(rows, seed=1)
    y[round(rows * LABELED) :] = -1
    before = peak_gigabytes()
    wall, cpu = time.perf_counter(), time.process_time()
    model = ts.TagSpreadClassifier(unlabeled_weight=1.0).fit(x, y)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_gigabytes()
    test_x, test_y = dataset(TEST_ROWS, seed=2)
    alone = ts.TagSpreadClassifier("bce").fit(x[: round(rows * LABELED)], y[: round(rows * LABELED)])
    both = (100 * m.score(test_x, test_y) for m in (alone, model))
    answer.send((wall, cpu, before, peak, model.n_iter_, *both))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[250_000, 500_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print("| rows | wall s | CPU s | peak GB (before the fit) | rounds | mAP labeled only, with unlabeled rows |")
    print("|---|---|---|---|---|---|")
    spawn = multiprocessing.get_context("spawn")
    for rows in options.rows:
        here, there = spawn.Pipe()
        process = spawn.Process(target=run, args=(rows, options.threads, there))
        process.start()
        there.close()
        wall, cpu, before, peak, rounds, alone, both = here.recv()
        process.join()
        print(
            f"| {rows:,} | {wall:.0f} | {cpu:.0f} | {peak:.1f} ({before:.1f}) | {rounds} | {alone:.1f}, {both:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
