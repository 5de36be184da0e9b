"""What a user waits for: start-up, and a small fit on a machine that other processes use (``docs/benchmarks.md``).

    python benchmarks/waiting.py

Start-up: ``import tagspread`` and ``--help`` against ``python -c "import numpy"``. Small fit: the estimator on
30 rows x 1,280 features, 20 classes, 5 rows labeled, alone and beside four processes that compute without pause. Each
is measured in new processes, in turn, and the ratio of the medians is printed; a busy machine slows both sides. With
five processes on two cores, one that has a single thread gets 40 % of a core, which makes 2.5 times the time.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPEATS, BUSY = 7, 4
FIT = """
import time
import numpy as np
import tagspread as ts
rng = np.random.default_rng(0)
x, y = rng.normal(size=(30, 1280)).astype(np.float32), (rng.random((30, 20)) < 0.3).astype(int)
y[5:] = -1
ts.TagSpreadClassifier()  # imports
wall, cpu = time.perf_counter(), time.process_time()
ts.TagSpreadClassifier().fit(x, y)
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


class Time(NamedTuple):
    """Seconds on the clock, and seconds of all cores together."""

    wall: float
    cpu: float


def start(arguments: Sequence[str]) -> Time:
    """Run Python with these arguments in a new process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Time(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def fit() -> Time:
    """Fit the estimator in a new process."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIT], check=True, capture_output=True, text=True)
    wall, cpu = map(float, done.stdout.split())
    return Time(wall, cpu)


@contextmanager
def busy_machine() -> Iterator[None]:
    """Keep ``BUSY`` processes computing."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def median(times: Sequence[Time]) -> Time:
    """Return the median of each column."""
    return Time(*(statistics.median(column) for column in zip(*times, strict=True)))


def main() -> None:
    """Print both tables."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {REPEATS} repeats, medians")
    commands = {
        "import numpy": ["-c", "import numpy"],
        "import tagspread": ["-c", "import tagspread"],
        "tagspread --help": ["-m", "tagspread", "--help"],
        "tagspread train --help": ["-m", "tagspread", "train", "--help"],
    }
    found: dict[str, list[Time]] = {name: [] for name in commands}
    for _ in range(REPEATS + 1):
        for name, arguments in commands.items():
            found[name].append(start(arguments))
    numpy = median(found["import numpy"][1:])  # the first one reads the files from disk
    for name, times in found.items():
        one = median(times[1:])
        print(
            f"{name:24} {one.wall:6.3f} s wall {one.cpu:6.3f} s CPU   {one.wall / numpy.wall:5.2f} x wall, "
            f"{one.cpu / numpy.cpu:5.2f} x CPU of import numpy"
        )
    alone, beside = [], []
    for _ in range(3):
        alone.append(fit())
        with busy_machine():
            beside.append(fit())
    idle, busy = median(alone), median(beside)
    print(f"estimator, alone          {idle.wall:6.2f} s wall {idle.cpu:6.2f} s CPU")
    print(f"estimator, {BUSY} busy others {busy.wall:6.2f} s wall {busy.cpu:6.2f} s CPU")
    print(f"ratio {busy.wall / idle.wall:.2f} x wall, {busy.cpu / idle.cpu:.2f} x CPU")


if __name__ == "__main__":
    main()
