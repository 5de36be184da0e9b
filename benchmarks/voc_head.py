"""``--mode head`` on VOC: gain of CAP over its labeled-only probe, with settings chosen on the labeled images.

    python benchmarks/voc_head.py VOCdevkit/VOC2012 tf_efficientnet_lite2 WEIGHTS --cache DIR [--size 288]

One run of the default preset per labeled share and seed, evaluated on val. The first run computes the features and
caches them in --cache; later runs reuse them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from engine import voc_dataset

from tagspread.data.split import paper_split
from tagspread.train.config import make_config
from tagspread.train.trainer import RunOptions, run_training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voc", type=Path)
    parser.add_argument("backbone")
    parser.add_argument("weights")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--size", type=int, help="image size; by default that of the preset")
    parser.add_argument("--p", type=float, nargs="+", default=[0.05, 0.1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = {} if arguments.size is None else {"image_size": arguments.size}
    network = {"backbone": arguments.backbone, "weights": arguments.weights}
    config = make_config("default", mode="head", **network, **size)
    dataset = voc_dataset(arguments.voc, config.image_size, device)
    count, lines = len(dataset.labeled) + len(dataset.unlabeled), []
    for share in arguments.p:
        maps = []
        for seed in arguments.seeds:
            labeled, unlabeled = paper_split(count, share, seed)
            split = replace(dataset, labeled=labeled, unlabeled=unlabeled)
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                run = run_training(
                    split,
                    replace(config, seed=seed),
                    Path(folder, "run"),
                    RunOptions(cache=arguments.cache),
                    device=device,
                )
                whole = time.perf_counter() - began
            both = (
                run.metrics.get("labeled_only", run.metrics["test"]),
                run.metrics["test"],
            )  # the same model if the unlabeled set was not used
            maps.append(tuple(100 * metrics["mAP"] for metrics in both))
            line = {"p": share, "seed": seed, "probe": round(maps[-1][0], 2), "cap": round(maps[-1][1], 2)}
            line |= {"seconds": round(whole, 1), "fit_s": round(run.metrics["seconds"], 1)}
            lines.append(line | {"chosen": run.log[-1]["chosen"]})
            print(json.dumps(lines[-1]), flush=True)
        probe, cap = np.mean(maps, axis=0)
        print(f"p = {share:g}: probe {probe:.2f}, CAP {cap:.2f}, gain {cap - probe:.2f}, {len(maps)} seeds", flush=True)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "voc_head.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


if __name__ == "__main__":
    main()
