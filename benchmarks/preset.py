"""Try settings of the default preset on VOC, judged by the true labels of the training pile, never by the test part.

    python benchmarks/preset.py VOCdevkit/VOC2012 tf_efficientnet_lite2 WEIGHTS --p 0.05 --seed 2 \
        --try '{}' --try '{"epochs": 18}' [--val]

Each --try is a JSON object of settings on top of the preset. Prints the EMA network's mAP on the pile (whose labels the
training never sees) and, with --val, on the test part, for settings that were fixed before.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from engine import voc_problem
from torch import Tensor

from tagspread.core.metrics import mean_average_precision
from tagspread.core.thresholds import cat_targets
from tagspread.methods import METHODS
from tagspread.methods.base import Labelled, State, Targets
from tagspread.methods.cap import CAP
from tagspread.predict.artefact import load_network, read_artefact
from tagspread.train.config import make_config
from tagspread.train.console import Watcher
from tagspread.train.score import score
from tagspread.train.session import run_training


@dataclass(frozen=True)
class Growing(CAP):
    """CAP whose reliable interval of positives grows with the epochs."""

    last_pos: float = 0.9

    def targets(self, scores: Tensor, labelled: Labelled, state: State) -> Targets:
        """Move from the first share to the last in a straight line."""
        keep = self.keep_pos + (self.last_pos - self.keep_pos) * labelled.epoch / max(1, labelled.epochs - 1)
        return Targets(cat_targets(scores, labelled.positives, labelled.known, keep, self.keep_neg))


def main() -> None:
    METHODS["growing"] = Growing
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voc", type=Path)
    parser.add_argument("backbone")
    parser.add_argument("weights")
    parser.add_argument("--p", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--try", dest="tries", action="append", required=True)
    parser.add_argument("--val", action="store_true")
    parser.add_argument("--name", default="preset")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problem = voc_problem(arguments.voc, 224, device, arguments.p, arguments.seed)
    truth = torch.from_numpy(problem.y[problem.pile]).to(device)
    if not arguments.val:
        problem = replace(problem, test=problem.test[:0])
    lines = []
    for text in arguments.tries:
        settings = {"backbone": arguments.backbone, "weights": arguments.weights, "seed": arguments.seed}
        config = make_config("default", evaluate_every=100, **(settings | json.loads(text)))
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            run = run_training(problem, config, Path(folder, "run"), device=device, watcher=Watcher(quiet=True))
            network = load_network(read_artefact(run.path), device)
            found = score(network, problem.store, problem.pile, device=device)
        line = {
            "backbone": arguments.backbone,
            "p": arguments.p,
            "seed": arguments.seed,
            "settings": json.loads(text),
            "pile_map": round(100 * mean_average_precision(found, truth), 2),
            "val_map": round(100 * run.metrics["test"]["mAP"], 2) if arguments.val else None,
            "seconds": round(time.perf_counter() - began, 1),
        }
        lines.append(line)
        print(json.dumps(line), flush=True)
        if "OUT" in os.environ:
            Path(os.environ["OUT"], f"{arguments.name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


if __name__ == "__main__":
    main()
