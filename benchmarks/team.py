"""What several finished networks say together: the mean of their logits, measured.

    python benchmarks/team.py FOLDER NAME [NAME ...] [--up-to 3]

FOLDER and names are those of ``preset.py --scores``; every team of two or more, up to so many, is measured.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np

from tagspread.core.metrics import mean_average_precision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--up-to", type=int, default=3)
    arguments = parser.parse_args()
    truth = np.load(arguments.folder / "truth.npy")
    logits = {name: np.load(arguments.folder / f"{name}-judged.npy") for name in arguments.names}
    for size in range(1, min(arguments.up_to, len(logits)) + 1):
        for team in combinations(logits, size):
            together = np.mean([logits[name] for name in team], axis=0)
            found = round(100 * float(mean_average_precision(together, truth)), 2)
            print(json.dumps({"mirrored": True, "team": team, "map": found}), flush=True)


if __name__ == "__main__":
    main()
