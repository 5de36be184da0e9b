"""Fit a head on memory-mapped features of growing size, under a memory limit: time, memory, thresholds.

$ python benchmarks/stored.py                                  # 1, 2, 5 and 10 million rows; 2.6 GB of disk
$ python benchmarks/stored.py --rows 1000000 --compare         # also in memory, to compare the result

Each size runs in a process of its own, in a control group with the limit (as root), or else with the
address space limited above what the libraries reserve. 1 % of the rows are labeled.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

CLASSES, WIDTH, SHARE, BLOCK = 50, 128, 0.01, 100_000


def generate(file: Path, rows: int) -> None:
    """Write float16 features of ``rows`` rows, block by block."""
    matrix = np.lib.format.open_memmap(file, "w+", np.float16, (rows, WIDTH))
    for at in range(0, rows, BLOCK):
        matrix[at : at + BLOCK] = np.random.default_rng([1, at]).normal(size=(min(BLOCK, rows - at), WIDTH))
    matrix.flush()


def labels_of(x: np.ndarray) -> np.ndarray:
    """Return the labels of some rows: each class is a noisy linear function of the features."""
    rng = np.random.default_rng(2)
    directions = rng.normal(size=(WIDTH, CLASSES)) / WIDTH**0.5
    scores = x.astype(np.float32) @ directions + 0.5 * np.random.default_rng(3).normal(size=(len(x), CLASSES))
    labels: np.ndarray = (scores > np.linspace(0.3, 2.2, CLASSES)).astype(np.int8)
    return labels


def fit(file: Path, rows: int, rounds: int, in_memory: bool) -> dict[str, object]:
    """Fit on the first rows of the file; return what was measured."""
    from tagspread import TagSpreadClassifier
    from tagspread.methods import get_method

    n = int(rows * SHARE)
    whole = np.load(file, mmap_mode="r")
    x, unlabeled = np.array(whole[:n], np.float32), whole[n:rows]
    began = time.perf_counter()
    model = TagSpreadClassifier(
        get_method("cap", keep_pos=0.8), ridge=0.1, unlabeled_weight=0.1, max_rounds=rounds, tol=0.0
    )
    model.fit(x, labels_of(x), np.array(unlabeled, np.float32) if in_memory else unlabeled)
    seconds = time.perf_counter() - began
    return {
        "rows": rows,
        "in_memory": in_memory,
        "seconds": round(seconds, 1),
        "peak_rss_GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "rounds": model.log_,
        "thresholds": model.thresholds_.tolist(),
        "coef": [float(model.coef_.sum()), float(np.abs(model.coef_).sum())],
    }


def limited(arguments: list[str], gigabytes: float) -> subprocess.CompletedProcess[str]:
    """Run this script again within a control group that limits its memory, page cache included."""
    top = Path("/sys/fs/cgroup")
    is_old = (top / "memory").is_dir()  # version 1
    group = (top / "memory" if is_old else top) / f"tagspread-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(str(int(gigabytes * 1e9)))
        enter, how = f"echo $$ > {group}/cgroup.procs && ", f"control group, {gigabytes:g} GB"
    except OSError:
        enter, how = f"ulimit -v {int((gigabytes + 12) * 1e6)} && ", f"ulimit -v {gigabytes + 12:g} GB"
    command = f"{enter}exec {sys.executable} {__file__} {' '.join(arguments)}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    print(f"limit: {how}", file=sys.stderr)
    with suppress(OSError):
        group.rmdir()
    return result


def main() -> None:
    """Run all sizes and print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 2_000_000, 5_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=3.0, help="memory in GB")
    parser.add_argument("--compare", action="store_true", help="also fit in memory, without the limit")
    parser.add_argument("--file", type=Path, default=Path("features.npy"), help="made here, and removed")
    parser.add_argument("--one", choices=("stored", "memory"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(fit(given.file, given.rows[0], given.rounds, given.one == "memory")))
        return
    generate(given.file, max(given.rows))
    try:
        for rows in given.rows:
            same = ["--file", str(given.file), "--rows", str(rows), "--rounds", str(given.rounds)]
            results = [limited([*same, "--one", "stored"], given.limit)]
            if given.compare:
                results.append(limited([*same, "--one", "memory"], 1000))
            for result in results:
                print(result.stdout.strip() or f"failed ({result.returncode}): {result.stderr[-2000:]}", flush=True)
    finally:
        given.file.unlink()


if __name__ == "__main__":
    main()
