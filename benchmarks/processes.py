"""Train the demo in 1, 2, 3 and 4 processes on this machine: time, memory, bytes sent, and agreement with one process.

$ python benchmarks/processes.py                      # needs idle cores; a small network, frozen batch norm
$ python benchmarks/processes.py --sizes 1 2 --network tf_efficientnet_lite0 --image-size 224

Each process computes with one thread.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

SETTINGS = ["--preset", "paper", "--weights", "none", "--set", "batch_norm=frozen", "--warmup-epochs", "1", "--quiet"]


def train(folder: Path, out: Path, size: int, network: list[str]) -> dict[str, float]:
    """Train one run; return what its log says about the epochs with the unlabeled set."""
    tables = ["--labels", str(folder / "labels.csv"), "--test-labels", str(folder / "test.csv")]
    command = ["tagspread", "train", str(folder), *tables, "--out", str(out), *SETTINGS, *network]
    launcher = ["-m"]
    if size > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), "-m"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *launcher, *command], check=True, env=environment, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["stage"] == "main"]
    return {
        "images_per_s": max(line["img_per_s"] for line in epochs),
        "MB_sent_per_epoch": max(line.get("sent_bytes", 0) for line in epochs) / 1e6,
        "test_mAP": 100 * json.loads((out / "metrics.json").read_text())["test"]["mAP"],
    }


def difference(one: Path, other: Path) -> tuple[float, int]:
    """Return the largest relative difference of a tensor of the weights, and the number of different targets."""
    first, second = (load_file(run / "ema.safetensors") for run in (one, other))
    floats = [name for name, value in first.items() if value.is_floating_point()]
    worst = max(float((first[name] - second[name]).norm() / first[name].norm()) for name in floats)
    targets = [[row[:3] for row in csv.reader((run / "pseudo_labels.csv").open())] for run in (one, other)]
    return worst, sum(a != b for a, b in zip(*targets, strict=True))


def main() -> None:
    """Print one line for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--canvases", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--network", default="small")
    parser.add_argument("--image-size", default="32")
    given = parser.parse_args()
    network = ["--backbone", given.network, "--image-size", given.image_size, "--epochs", str(given.epochs)]
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "images"
        export = ["demo", "--canvases", str(given.canvases), "--export-folder", str(folder)]
        subprocess.run([sys.executable, "-m", "tagspread", *export], check=True, stdout=subprocess.DEVNULL)
        base: dict[str, float] = {}
        for size in given.sizes:
            out = Path(top) / f"run-{size}"
            found = train(folder, out, size, network)
            base = base or found
            worst, targets = difference(Path(top) / f"run-{given.sizes[0]}", out)
            print(
                f"{size} processes: {found['images_per_s']:,.0f} images/s "
                f"({found['images_per_s'] / base['images_per_s']:.2f} x), mAP {found['test_mAP']:.2f}, "
                f"{found['MB_sent_per_epoch']:,.1f} MB sent per epoch and process, "
                f"weights differ by {worst:.1e}, {targets} targets differ",
                flush=True,
            )


if __name__ == "__main__":
    main()
