"""End of a run: select the model, evaluate it (mAP), measure the gain, and write the results."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from tagspread.core.bootstrap import count_rare_classes
from tagspread.core.metrics import mean_average_precision, mean_average_precision_interval
from tagspread.data.tables.read import PSEUDO_LABEL_COLUMNS
from tagspread.run.artifact import kept_facts, write_artifact
from tagspread.run.folder import RunFolder
from tagspread.run.pseudo_labels import FILE as PSEUDO_LABELS
from tagspread.run.pseudo_labels import pseudo_label_rows
from tagspread.train.dataset import Dataset
from tagspread.train.decision import facts_of_run
from tagspread.train.experiment import Experiment
from tagspread.train.features import full_state
from tagspread.train.gain import LABELED_ONLY, LEFT_OUT, NO_MODEL, Logits, measure_gain
from tagspread.train.pseudo_labels import PseudoLabels
from tagspread.train.stages import network_after
from tagspread.train.training import Training

CHOSEN_ON = {
    "test_best": "the epoch was chosen on the test images, as in the published code: the test mAP is optimistic",
    "held_out": "the epoch was chosen on the held-out images: the held-out mAP is optimistic",
}
KEPT_ON_TEST = "the better of two models was chosen on the test images: the test mAP is optimistic"


class SelectedModel(NamedTuple):
    """The model that a run uses for predictions."""

    name: str  # raw, ema or labeled_only
    file: Path
    logits: Logits


def finalize(
    experiment: Experiment,
    training: Training,
    folder: RunFolder,
    *,
    keep_better: bool = False,
    images: str | None = None,
) -> dict[str, Any]:
    """Write models, pseudo-labels, metrics and ``labels.json``; return the metrics.

    Args:
        experiment: the experiment with the full network; the student may be only its head.
        training: the finished training; its data may be features.
        folder: the run folder.
        keep_better: use the labeled-only model if it is better.
        images: the folder of images; names of pseudo-labeled images are relative to it.
    """
    dataset, config = experiment.dataset, training.experiment.config
    shipped = _select(experiment, training, folder)
    seconds = sum(line["seconds"] for line in training.history.log)
    metrics: dict[str, Any] = {"selection": config.selection, "network": shipped.name, "seconds": round(seconds, 1)}
    if config.selection != "last":
        metrics["warning"] = CHOSEN_ON[config.selection]
    if _left_unlabeled_out(training):
        metrics["gain"] = {"left_out": LEFT_OUT}
    elif _used_unlabeled(training):
        labeled_only = _labeled_only(training, folder)
        metrics |= _gain(dataset, shipped, labeled_only, config.start)
        if keep_better and labeled_only is not None and metrics["gain"].get("difference", 0.0) < 0:
            shipped, metrics["network"] = labeled_only, labeled_only.name
            if metrics["gain"]["part"] == "test":
                metrics.setdefault("warning", KEPT_ON_TEST)
    for part, rows in (("test", dataset.test), ("held_out", dataset.held_out)):
        if len(rows):
            metrics[part] = _measure(shipped.logits(rows), torch.from_numpy(dataset.y[rows]).to(experiment.device))
    folder.write_json("metrics.json", metrics)
    if training.pseudo_labels.exist:
        _write_pseudo_labels(dataset, training.pseudo_labels, folder, images)
    if (facts := kept_facts(folder.path)) is None:  # one of an earlier end may hold the user's decisions
        facts = facts_of_run(dataset, config, experiment.network, shipped.file, shipped.logits)
        facts |= {"network": shipped.name}
    write_artifact(folder, facts)
    return metrics


def _select(experiment: Experiment, training: Training, folder: RunFolder) -> SelectedModel:
    """Write the networks and return the one to predict with: that of the last epoch, or the best if one was kept."""
    network, student, history = experiment.network, training.student, training.history
    folder.write_log(history.log)
    folder.write_model("model.safetensors", full_state(network, student.network))
    folder.write_model("ema.safetensors", full_state(network, student.teacher))
    name, file, model = "ema", "ema.safetensors", student.teacher
    if history.best:
        model.load_state_dict(history.best)
        name, file = [line["best_is"] for line in history.log if "best_is" in line][-1], "best.safetensors"
        folder.write_model(file, full_state(network, model))
    elif history.stages and network_after(history.stages[-1].name, training.experiment.config) == "raw":
        name, file, model = "raw", "model.safetensors", student.network
    return SelectedModel(name, folder.path / file, partial(training.experiment.score, model))


def _used_unlabeled(training: Training) -> bool:
    """Return whether the run trained on the unlabeled set, in a stage or when the head was fitted."""
    config, method = training.experiment.config, training.experiment.method
    fitted = config.start == "fitted_head" and method.uses_unlabeled
    return fitted or any(stage.uses_unlabeled for stage in training.history.stages)


def _left_unlabeled_out(training: Training) -> bool:
    """Return whether cross-validation chose to fit the head without the unlabeled set."""
    log = training.history.log
    chosen = log[-1].get("chosen", {}) if log else {}
    return training.experiment.method.uses_unlabeled and chosen.get("unlabeled_weight") == 0


def _gain(dataset: Dataset, shipped: SelectedModel, labeled_only: SelectedModel | None, start: str) -> dict[str, Any]:
    if labeled_only is None:
        return {"gain": {"not_measured": NO_MODEL}}
    return measure_gain(dataset, shipped.logits, labeled_only.logits, start)


def _labeled_only(training: Training, folder: RunFolder) -> SelectedModel | None:
    """Return the labeled-only model, if it was saved."""
    file = folder.path / LABELED_ONLY
    if not file.is_file():
        return None
    tensors = load_file(file)
    network = deepcopy(training.student.network)  # the shipped model may be the student itself
    network.load_state_dict({name: tensors[name] for name in network.state_dict()})
    return SelectedModel("labeled_only", file, partial(training.experiment.score, network))


def _measure(scores: torch.Tensor, truth: torch.Tensor) -> dict[str, Any]:
    value, skipped = mean_average_precision(scores, truth, return_skipped=True)
    is_defined = not math.isnan(value)  # it is NaN if no class has a positive
    return {
        "mAP": value if is_defined else None,
        "interval_90": mean_average_precision_interval(scores, truth) if is_defined else None,
        "classes_without_positive": skipped,
        "classes_with_few_positives": count_rare_classes((truth == 1).sum(0).tolist()),
        "images": len(scores),
    }


def _write_pseudo_labels(dataset: Dataset, pseudo_labels: PseudoLabels, folder: RunFolder, images: str | None) -> None:
    """Write ``pseudo_labels.csv`` with the last targets of the unlabeled set."""
    prefix = "" if images is None else f"{images}/"
    is_unlabeled = ~np.isin(dataset.unlabeled, dataset.apart)  # rows set apart are in the unlabeled set but labeled
    names = [dataset.name(int(row)).removeprefix(prefix) for row in dataset.unlabeled[is_unlabeled]]
    tensors = (pseudo_labels.targets.labels, pseudo_labels.scores, pseudo_labels.flips)
    arrays = (tensor.float().cpu().numpy()[is_unlabeled] for tensor in tensors)
    lines = pseudo_label_rows(names, dataset.classes, *arrays)
    folder.write_csv(PSEUDO_LABELS, PSEUDO_LABEL_COLUMNS, lines)
