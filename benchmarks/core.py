"""Speed and memory of ``cat_targets`` and ``mean_average_precision`` compared with NumPy and scikit-learn.

    python benchmarks/core.py            on the CPU, and on the GPU if there is one
    python benchmarks/core.py --rows N   the larger of the two sizes (default 1,000,000)

Run by ``make bench-core``. All ratios are measured in one run. Peak extra memory is the resident memory of a separate
process, as reported by the operating system.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score

import tagspread as ts

COCO_ROWS, COCO_TEST, CLASSES, LABELED = 82_081, 40_137, 80, 4104


def dataset(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, CLASSES)).astype(np.float32), rng.integers(5, LABELED // 2, CLASSES)


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def two_full_sorts(scores: np.ndarray, positives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Baseline: sort all scores in both directions, look up the thresholds, and compare."""
    rows, classes = scores.shape
    share = positives / LABELED
    falling, rising = -np.sort(-scores, axis=0), np.sort(scores, axis=0)
    tau_pos = falling[(share * rows).astype(int) - 1, np.arange(classes)]
    tau_neg = rising[((1 - share) * rows).astype(int) - 1, np.arange(classes)]
    return (scores >= tau_pos).astype(np.float32), (scores <= tau_neg).astype(np.float32)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_extra_memory(rows: int) -> float:
    """Return the peak memory of cat_targets beyond its input, as a multiple of the score matrix.

    A thread samples the memory every half millisecond. The call is repeated so that no peak is missed, and called once
    before, so that buffers of the libraries do not count.
    """
    scores, positives = dataset(rows)
    ts.cat_targets(scores[:3000], positives, LABELED)
    start, highest, done = resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.0005):
            highest = max(highest, resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(10):
        ts.cat_targets(scores, positives, LABELED)
    done.set()
    watcher.join()
    return (highest - start) / scores.nbytes


def on_cpu(large: int) -> list[tuple[str, str, str]]:
    scores, positives = dataset(COCO_ROWS)
    sorts = seconds(lambda: two_full_sorts(scores, positives), 3)
    ours = seconds(lambda: ts.cat_targets(scores, positives, LABELED))
    big_scores, _ = dataset(large)
    big = seconds(lambda: ts.cat_targets(big_scores, positives, LABELED), 3)
    growth = (big / large) / (ours / COCO_ROWS)
    with multiprocessing.get_context("spawn").Pool(1) as fresh:
        extra = fresh.apply(peak_extra_memory, (COCO_ROWS,))

    test_scores, _ = dataset(COCO_TEST)
    y = (np.random.default_rng(1).random(test_scores.shape) < 0.036).astype(np.int8)
    by_class = seconds(lambda: [average_precision_score(y[:, k], test_scores[:, k]) for k in range(CLASSES)], 3)
    fast = seconds(lambda: ts.mean_average_precision(test_scores, y))
    reference = np.mean([average_precision_score(y[:, k], test_scores[:, k]) for k in range(CLASSES)])
    gap = abs(ts.mean_average_precision(test_scores, y) - reference)
    return [
        (f"cat_targets {COCO_ROWS:,} x {CLASSES}", f"{sorts / ours:.1f}x faster than two full numpy sorts", ">= 3x"),
        ("   its peak extra memory", f"{extra:.2f}x the score matrix", "<= 1.5x"),
        (f"cat_targets {large:,} x {CLASSES}", f"{growth:.2f}x the cost per element of {COCO_ROWS:,} rows", "<= 1.3x"),
        (
            f"mean_average_precision {COCO_TEST:,} x {CLASSES}",
            f"{by_class / fast:.1f}x faster than scikit-learn",
            ">= 3x",
        ),
        ("   its distance from scikit-learn", f"{gap:.1e}", "<= 1e-6"),
    ]


def on_gpu() -> list[tuple[str, str, str]]:
    scores, positives = dataset(COCO_ROWS)
    expected = ts.cat_targets(scores, positives, LABELED)
    on_device = torch.from_numpy(scores).cuda()
    same = np.array_equal(ts.cat_targets(on_device, positives, LABELED).cpu().numpy(), expected)

    def once() -> None:
        ts.cat_targets(on_device, positives, LABELED)
        torch.cuda.synchronize()

    test_scores = torch.from_numpy(dataset(COCO_TEST)[0]).cuda()
    y = (torch.rand(test_scores.shape, device="cuda") < 0.036).to(torch.int8)
    once()
    ts.mean_average_precision(test_scores, y)
    return [
        (f"cat_targets {COCO_ROWS:,} x {CLASSES} on the GPU", f"{seconds(once, 20) * 1e3:.2f} ms", "< 3 ms"),
        ("   same answer as on the CPU", str(same), "True"),
        (
            f"mean_average_precision {COCO_TEST:,} x {CLASSES} on the GPU",
            f"{seconds(lambda: ts.mean_average_precision(test_scores, y), 20) * 1e3:.2f} ms",
            "",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    rows = on_cpu(arguments.rows) + (on_gpu() if torch.cuda.is_available() else [])
    for name, result, target in rows:
        print(f"{name:<45} {result:<58} target: {target}")


if __name__ == "__main__":
    main()
