"""mAP of ensembles of finished networks (mean of their logits).

    python benchmarks/team.py FOLDER NAME [NAME ...] [--up-to 3]

FOLDER and NAME are those of ``preset.py --scores``. All ensembles of up to --up-to networks are evaluated.
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
    logits = {name: np.load(arguments.folder / f"{name}-evaluated.npy") for name in arguments.names}
    for size in range(1, min(arguments.up_to, len(logits)) + 1):
        for team in combinations(logits, size):
            mean = np.mean([logits[name] for name in team], axis=0)
            value = round(100 * float(mean_average_precision(mean, truth)), 2)
            print(json.dumps({"mirrored": True, "team": team, "map": value}), flush=True)


if __name__ == "__main__":
    main()
