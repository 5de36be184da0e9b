"""Simulate how CAP's border scores are found among 10^9 rows of 1,000 classes: the exchange, without any rows.

$ python benchmarks/reduction.py                      # 10^9 rows, 1,000 classes, 8 processes

Each process draws its histograms from known probabilities, so that none of them needs rows. The processes are simulated
one after the other; what is measured is the size of the messages and the time of the sums and choices. Two checks: the
counts below each border add up to the quota, and the border's score is the quantile of the distribution.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from tagspread.core.sharded_ranking import BITS, choose_digit


def main() -> None:
    """Simulate three rounds of digits and print times, bytes and checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8)
    given = parser.parse_args()
    rng, digits = np.random.default_rng(0), 1 << BITS
    quotas = (given.rows * np.geomspace(1e-5, 0.3, given.classes)).astype(np.int64)
    ranks = torch.from_numpy(np.stack([quotas - 1, quotas]))  # the last positive, and the first negative after it
    first_ranks, below, width, place = ranks.clone(), torch.zeros_like(ranks), 1.0, np.zeros(ranks.shape)
    sizes = np.full((2, given.classes), given.rows, np.int64)  # candidates: all rows at first
    in_sums = in_choices = 0.0
    for _ in range(3):  # the scores are uniform, so that all digits are equally probable at every level
        shares = split(rng, sizes, given.processes)
        total = torch.zeros(2, given.classes, digits, dtype=torch.int64)
        for process in range(given.processes):
            mine = torch.from_numpy(rng.multinomial(shares[..., process], np.full(digits, 1 / digits)))
            began = time.perf_counter()
            total += mine
            in_sums += time.perf_counter() - began
        if np.array_equal(sizes[0], sizes[1]) and int(sizes[0, 0]) == given.rows:
            total[1] = total[0]  # both sides count every row at first
        began = time.perf_counter()
        digit, inner, ties = choose_digit(total, ranks)
        in_choices += time.perf_counter() - began
        below += ranks - inner
        width /= digits
        place += digit.numpy() * width
        ranks, sizes = inner, ties.numpy()
    wrong = int((below + ranks != first_ranks).sum())
    distance = np.abs(place - first_ranks.numpy() / given.rows).max()
    per_round = 2 * given.classes * digits * 8
    print(f"{given.rows:,} rows, {given.classes:,} classes, {given.processes} processes")
    print(f"a process sends {per_round / 1e6:.1f} MB in each round, {3 * per_round / 1e6:.1f} MB in all three")
    print(f"sums of all messages {in_sums:.2f} s, choices {in_choices:.2f} s (one core)")
    print(f"{wrong} of {ranks.numel():,} borders miss their quota; largest distance from the quantile {distance:.1e}")
    print(f"memory of one message and its sum: {2 * per_round / 1e6:.0f} MB")


def split(rng: np.random.Generator, sizes: np.ndarray, processes: int) -> np.ndarray:
    """Divide the candidates of each class among the processes at random."""
    parts: np.ndarray = rng.multinomial(sizes, np.full(processes, 1 / processes))
    return parts


if __name__ == "__main__":
    main()
