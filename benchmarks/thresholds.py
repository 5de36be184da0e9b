"""Which fixed threshold suits IAT and PLC on VOC? Chosen on a fifth of the labelled pictures, held out from a warm-up.

    python benchmarks/thresholds.py VOCdevkit/VOC2012 resnet50_v1.safetensors [--p 0.05 0.1] [--seeds 1]

Prints, per labelled share and seed, the threshold at which the overall F1 on the held-out pictures is highest, to be
given to the grid: `tagspread bench voc ... --methods iat plc --set 'method_options={"threshold": T}'`.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from engine import voc_problem
from safetensors.torch import load_file

from tagspread.bench.grid import Grid
from tagspread.core.metrics import multilabel_report
from tagspread.data.split import paper_split
from tagspread.predict.artefact import load_network, read_artefact
from tagspread.train.console import Watcher
from tagspread.train.score import score
from tagspread.train.session import run_training

TRIED = np.arange(0.3, 0.96, 0.05).round(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("voc", type=Path)
    parser.add_argument("weights")
    parser.add_argument("--backbone", default="resnet50_v1")
    parser.add_argument("--p", type=float, nargs="+", default=[0.05, 0.1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = {"backbone": arguments.backbone, "weights": arguments.weights}
    grid = Grid("voc", ("asl",), settings={**network, "evaluate_every": 100})
    everything = voc_problem(arguments.voc, 224, device)
    for share in arguments.p:
        for seed in arguments.seeds:
            labelled, pile = paper_split(len(everything.labelled) + len(everything.pile), share, seed)
            problem = replace(everything, labelled=labelled, pile=pile, test=everything.test[:0]).hold_out(0.2, seed)
            with tempfile.TemporaryDirectory() as folder:
                config = grid.config("asl", seed)
                run = run_training(problem, config, Path(folder, "run"), device=device, watcher=Watcher(quiet=True))
                student = load_network(read_artefact(run.path), device)
                student.load_state_dict(load_file(run.path / "model.safetensors"))  # not its average: too few steps
                found = score(student, problem.store, problem.held_out, device=device).sigmoid().cpu()
            truth = torch.from_numpy(problem.y[problem.held_out])
            reached = [multilabel_report((found >= value).to(torch.int8), truth)["OF1"] for value in TRIED]
            best = int(np.argmax(reached))
            line = " ".join(f"{value:g}:{100 * f1:.1f}" for value, f1 in zip(TRIED, reached, strict=True))
            print(f"p = {share:g}, seed {seed}: {TRIED[best]:g} ({len(truth)} pictures; OF1 by threshold: {line})")


if __name__ == "__main__":
    main()
