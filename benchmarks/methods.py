"""Overhead of each method in an epoch on VOC (paper setting), measured in one run.

    python benchmarks/methods.py VOCdevkit/VOC2012 resnet50_v1.safetensors [--methods cap freematch ...]

An epoch is scoring the unlabeled set and training, without evaluation. The overhead is what a method adds to a method
that does nothing (all targets are 0): its targets, its per-step targets, and the extra time of a training step with its
loss.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from engine import seconds, voc_dataset
from torch import Tensor

from tagspread.methods import METHODS
from tagspread.methods.base import Labeled, Method, SetApart, State, Targets
from tagspread.train.config import make_config
from tagspread.train.dataset import Dataset
from tagspread.train.loop import label_unlabeled, student_steps
from tagspread.train.preflight import prepare
from tagspread.train.training import Training
from tagspread.vision.augment import Views

REPEATS, STEPS = 3, 60


@dataclass(frozen=True)
class Nothing(Method):
    """Labels all classes as absent: the method without overhead."""

    summary: ClassVar[str] = "all targets are 0"

    def targets(self, scores: Tensor, labeled: Labeled, state: State) -> Targets:
        """Return zeros."""
        return Targets(torch.zeros_like(scores, dtype=torch.int8))


def costs(dataset: Dataset, name: str, weights: str, backbone: str, device: torch.device) -> dict[str, float]:
    """Return the time of each part of a method, in seconds."""
    given: dict[str, Any] = {"backbone": backbone, "weights": weights, "batch": 32, "warmup_epochs": 0, "epochs": 4}
    config = make_config("paper", method=name, **given)
    method = METHODS[name]()
    experiment = prepare(dataset, config, device)
    training = Training(experiment, Path("unused.safetensors"))
    student, pseudo_labels, dataset = training.student, training.pseudo_labels, experiment.dataset
    stage, labeled, state = experiment.stages[0], experiment.labeled(), pseudo_labels.method_state
    experiment.method.begin_unlabeled(student.network)
    student.begin_stage(stage)
    label_unlabeled(training, labeled)
    own: list[float] = []
    for _ in range(REPEATS):  # only the method, on existing scores
        scores, known = pseudo_labels.scores, experiment.score(student.teacher, dataset.labeled)
        apart = SetApart(torch.from_numpy(dataset.y[dataset.apart]), known[: len(dataset.apart)])
        seen = replace(labeled, scores=known, apart=apart if len(dataset.apart) else None)
        epoch = seconds(lambda: method.new_epoch(seen, state), device)  # noqa: B023
        epoch += seconds(lambda: method.targets(scores, seen, state), device)  # noqa: B023
        if method.per_step:
            rows = torch.arange(stage.batch_unlabeled, device=device)
            few, held = scores[rows], pseudo_labels.at(rows)

            def steps() -> None:
                for _ in range(stage.steps):
                    method.step_targets(few, held, labeled, state)  # noqa: B023

            epoch += seconds(steps, device)
        own.append(epoch)
    list(zip(range(5), student_steps(training, stage, labeled), strict=False))  # capture, choose algorithms
    labels = torch.zeros(stage.batch, len(dataset.classes), device=device)
    ones, places = torch.ones_like(labels), torch.arange(stage.batch_unlabeled, device=device)
    rows_of_step = dataset.unlabeled[: stage.batch]
    shown = student.network.show(Views(), dataset.store.batch(rows_of_step), rows_of_step, 0, True)

    def train() -> None:
        for _ in range(STEPS):
            student.step(shown, labels, ones, places)

    step = min(seconds(train, device) for _ in range(REPEATS)) / STEPS
    training.history.step = 0
    student.schedules[0].last_epoch = 0
    train_s = seconds(lambda: list(student_steps(training, stage, labeled)), device)
    score_s = seconds(lambda: experiment.score(student.teacher, dataset.unlabeled), device)
    return {"rule_s": min(own), "step_s": step, "steps": stage.steps, "train_s": train_s, "score_s": score_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voc", type=Path)
    parser.add_argument("weights")
    parser.add_argument("--backbone", default="resnet50_v1")
    parser.add_argument("--methods", nargs="+")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    METHODS["nothing"] = Nothing
    wanted = arguments.methods or [n for n, kind in METHODS.items() if kind.uses_unlabeled and not kind.on_features]
    dataset = voc_dataset(arguments.voc, 224, device)
    found: dict[str, dict[str, float]] = {}
    for name in ["nothing", *(n for n in wanted if n != "nothing")]:
        found[name] = costs(dataset, name, arguments.weights, arguments.backbone, device)
        plain, now = found["nothing"], found[name]
        own = now["rule_s"] + now["steps"] * max(0.0, now["step_s"] - plain["step_s"])
        now["own_share"] = own / (plain["train_s"] + plain["score_s"])
        # a method that labels per step scores the unlabeled set while it trains, not before
        whole = now["train_s"] + (0.0 if METHODS[name].per_step else now["score_s"])
        now["epoch_over_plain"] = whole / (plain["train_s"] + plain["score_s"])
        print(
            f"{name:>10}: rule {1000 * now['rule_s']:7.2f} ms, step {1000 * now['step_s']:6.2f} ms, own work "
            f"{100 * now['own_share']:5.2f} % of a plain epoch; whole epoch {now['epoch_over_plain']:.3f} x",
            flush=True,
        )
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "methods.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
