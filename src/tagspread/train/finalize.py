"""End of a run: select the model, evaluate it (mAP), measure the gain from unlabeled images, and write the results.

The gain compares the run's model with its labeled-only model: the student before it used the unlabeled set. That is the
network after the warm-up or, if the head is fitted instead, a linear head fitted on the labeled images only. The main
stage also trains for longer, and trains the whole network where the linear head leaves it frozen. To separate this
effect, compare with a run of method ``asl`` with the same number of epochs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tagspread.aliases import JsonObject
from tagspread.core.bootstrap import count_rare_classes
from tagspread.core.compare import paired_difference_interval
from tagspread.core.metrics import mean_average_precision, mean_average_precision_interval
from tagspread.data.tables.read import PSEUDO_LABEL_COLUMNS
from tagspread.errors import TagspreadError
from tagspread.progress import Watcher
from tagspread.run import schema
from tagspread.run.artifact import kept_facts, write_artifact
from tagspread.run.folder import RunFolder
from tagspread.run.pseudo_labels import FILE as PSEUDO_LABELS
from tagspread.run.pseudo_labels import pseudo_label_rows
from tagspread.train.dataset import Dataset
from tagspread.train.decision import facts_of_run
from tagspread.train.experiment import Experiment, network_after
from tagspread.train.features import full_state
from tagspread.train.pseudo_labels import PseudoLabels
from tagspread.train.training import Training
from tagspread.wording import counted, points

LABELED_ONLY = "labeled_only.safetensors"
SAMPLES = 200
FEW = 50  # images, below which the mAP varies more with the split than its interval says
NO_PART = "there are no labeled images to evaluate it on; set some aside with --test-share 0.2, or give --test-labels"
NO_MODEL = "the run has no labeled-only model to compare with; give warmup_epochs, or start 'fitted_head'"
DAMAGED_MODEL = f"the labeled-only model, {LABELED_ONLY}, is damaged"
NO_POSITIVE = "no image to evaluate it on carries any tag; set more labeled images aside"
LEFT_OUT = "cross-validation on the labeled images showed no gain from them"
LABELED_ONLY_KINDS = {"warmup": "the network after the warm-up", "fitted_head": "a linear head on the frozen network"}
CHOSEN_ON = {
    "test_best": "the epoch was chosen on the test images, as in the published code: the test mAP is optimistic",
    "held_out": "the epoch was chosen on the held-out images: the held-out mAP is optimistic",
}
KEPT_BETTER = (
    "the labeled-only model: its mAP is higher, and the 90 % interval of the difference excludes 0; --keep last keeps "
    "the model that was trained on the unlabeled images"
)
KEPT_ON_TEST = "the better of two models was chosen on the test images: the test mAP is optimistic"

_NO_ROWS: np.ndarray | None = None  # the first process shares its own

Logits = Callable[[np.ndarray], Tensor]


def measure_gain(dataset: Dataset, with_unlabeled: Logits, without: Logits, start: str) -> JsonObject:
    """Compare the run's model with its labeled-only model; return the entries for ``metrics.json``.

    Args:
        dataset: the data; the held-out images are used, or the test images if none were held out.
        with_unlabeled: computes logits of rows with the model that was trained on the unlabeled set.
        without: the same with the labeled-only model.
        start: the setting ``start``, which decides what the labeled-only model is.
    """
    part = "held_out" if len(dataset.held_out) else "test"
    rows: np.ndarray = getattr(dataset, part)
    if not len(rows):
        return {"gain": {"not_measured": NO_PART}}
    scores, baseline_scores = with_unlabeled(rows), without(rows)
    truth = torch.from_numpy(dataset.y[rows]).to(scores.device)
    baseline = mean_average_precision(baseline_scores, truth)
    if math.isnan(baseline):
        return {"gain": {"not_measured": NO_POSITIVE}}
    difference, low, high = paired_difference_interval(scores, baseline_scores, truth, samples=SAMPLES)
    interval = mean_average_precision_interval(baseline_scores, truth, samples=SAMPLES)
    return {
        "labeled_only": {"mAP": baseline, "interval_90": interval, "what": LABELED_ONLY_KINDS[start]},
        "gain": {"difference": difference, "interval_90": (low, high), "part": part, "images": len(rows)},
    }


def gain_in_words(metrics: JsonObject, *, advise: bool = True) -> str | None:
    r"""Describe the gain recorded in ``metrics.json`` in a sentence; return None for a run without an unlabeled set.

    Args:
        metrics: the contents of ``metrics.json``.
        advise: also recommend an option if the unlabeled images made the tagger worse.

    >>> labeled_only = {"mAP": 0.69, "interval_90": (0.66, 0.72), "what": "the network after the warm-up"}
    >>> gain = {"difference": 0.06, "interval_90": (0.048, 0.071), "part": "test", "images": 500}
    >>> words = gain_in_words({"network": "ema", "labeled_only": labeled_only, "gain": gain})
    >>> print(*words.split(", "), sep=",\n")
    the unlabeled images helped: mAP 75.0 against 69.0 without them (the network after the warm-up),
    a gain of 6.0 points on 500 test images (90 % interval 4.8 to 7.1)
    """
    gain = metrics.get("gain")
    if gain is None:
        return None
    if "left_out" in gain:
        return f"the unlabeled images were not used: {gain['left_out']}"
    if "not_measured" in gain:
        return f"it is not known whether the unlabeled images helped: {gain['not_measured']}"
    sentence = _comparison(metrics["labeled_only"], gain)
    if metrics["network"] == "labeled_only":
        return f"{sentence}; the run keeps the labeled-only model"
    if gain["images"] < FEW:
        sentence += "; with so few images this is a rough estimate"
    advice = "; --keep better would have kept the labeled-only model"
    return sentence + advice if advise and _hurt(gain) else sentence


def _hurt(gain: JsonObject) -> bool:
    """Return whether the model is worse than the labeled-only model, and the interval of the difference excludes 0."""
    return "difference" in gain and gain["interval_90"][1] < 0


def _comparison(labeled_only: JsonObject, gain: JsonObject) -> str:
    low, high = gain["interval_90"]
    before = round(100 * labeled_only["mAP"], 1)
    after = round(100 * (labeled_only["mAP"] + gain["difference"]), 1)
    difference = (after - before) / 100  # difference of the rounded values, so that the sentence is consistent
    where = f"on {counted(gain['images'], gain['part'].replace('_', '-') + ' image')}"
    interval = f"90 % interval {points(low)} to {points(high)}"
    if points(difference) == "0.0":
        return (
            f"the unlabeled images made no difference: mAP {before:.1f} with and without them "
            f"({labeled_only['what']}), {where} ({interval} points)"
        )
    verdict = "helped" if low > 0 else "hurt" if high < 0 else "made no measurable difference"
    return (
        f"the unlabeled images {verdict}: mAP {after:.1f} against {before:.1f} without "
        f"them ({labeled_only['what']}), a {'gain' if difference > 0 else 'loss'} of {points(abs(difference))} "
        f"points {where} ({interval})"
    )


class SelectedModel(NamedTuple):
    """The model that a run uses for predictions."""

    name: str  # raw, ema or labeled_only
    file: Path
    logits: Logits


class Ending(NamedTuple):
    """How a run ends.

    Attributes:
        keep: ``"better"`` to use the labeled-only model if it is better, and the interval of the difference says so.
        images: the folder of images; names of pseudo-labeled images are relative to it.
        stopped_early: where training ended before its last epoch; None if it did not.
    """

    keep: str = "last"
    images: str | None = None
    stopped_early: str | None = None


def finalize(
    experiment: Experiment, training: Training, folder: RunFolder, ending: Ending, watcher: Watcher
) -> dict[str, Any]:
    """Write models, pseudo-labels, metrics and ``labels.json``; return the metrics.

    Args:
        experiment: the experiment with the full network; the student may be only its head.
        training: the finished training; its data may be features.
        folder: the run folder.
        ending: how the run ends.
        watcher: shows the progress.
    """
    watcher.begin("saving")
    dataset, config = experiment.dataset, training.experiment.config
    shipped = _select(experiment, training, folder)
    seconds = sum(line["seconds"] for line in training.history.log)
    metrics: dict[str, Any] = {"selection": config.selection, "network": shipped.name, "seconds": round(seconds, 1)}
    if ending.stopped_early is not None:
        metrics["stopped_early"] = ending.stopped_early
    watcher.begin("evaluating")
    if config.selection != "last":
        metrics["warning"] = CHOSEN_ON[config.selection]
    if _left_unlabeled_out(training):
        metrics["gain"] = {"left_out": LEFT_OUT}
    elif _used_unlabeled(training):
        labeled_only, why_none = _labeled_only(training, folder)
        metrics |= _gain(dataset, shipped, labeled_only, config.start, why_none)
        if ending.keep == "better" and labeled_only is not None and _hurt(metrics["gain"]):
            shipped, metrics["network"], metrics["kept"] = labeled_only, labeled_only.name, KEPT_BETTER
            if metrics["gain"]["part"] == "test":
                metrics.setdefault("warning", KEPT_ON_TEST)
    for part, rows in (("test", dataset.test), ("held_out", dataset.held_out)):
        if len(rows):
            metrics[part] = _measure(shipped.logits(rows), torch.from_numpy(dataset.y[rows]).to(experiment.device))
    watcher.begin("saving")
    if training.pseudo_labels.exist:
        _write_pseudo_labels(dataset, training.pseudo_labels, folder, ending.images)
    watcher.begin("choosing thresholds")
    if (facts := kept_facts(folder.path)) is None:  # one of an earlier end may hold the user's decisions
        facts = facts_of_run(dataset, config, experiment.network, shipped.file, shipped.logits)
        facts |= {"network": shipped.name}
    timings = {step: round(spent, 2) for step, spent in training.stopwatch.seconds().items()}
    metrics["timings"] = _timings_of_same_end(folder, metrics) or timings
    folder.write_json("metrics.json", metrics)
    write_artifact(folder, facts)
    return metrics


def _timings_of_same_end(folder: RunFolder, metrics: JsonObject) -> JsonObject | None:
    """Return the timings that the run recorded when it ended before with the same metrics, if it did.

    A run that has lost a file is ended again. That is no part of the training, and leaves ``metrics.json`` as it was.
    """
    try:
        earlier = folder.read_json("metrics.json", schema.METRICS)
    except (OSError, TagspreadError):  # there is none, or it is damaged
        return None
    timings: JsonObject | None = earlier.pop("timings", None)
    return timings if earlier == json.loads(json.dumps(metrics)) else None


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
    elif history.stages and network_after(_last_stage(training), training.experiment.config) == "raw":
        name, file, model = "raw", "model.safetensors", student.network
    return SelectedModel(name, folder.path / file, partial(score_with_all, training.experiment, model))


def _used_unlabeled(training: Training) -> bool:
    """Return whether the run trained on the unlabeled set, in a stage or when the head was fitted."""
    config, method = training.experiment.config, training.experiment.method
    fitted = config.start == "fitted_head" and method.uses_unlabeled
    begun = {line["stage"] for line in training.history.log}  # training may have ended early
    return fitted or any(stage.uses_unlabeled for stage in training.history.stages if stage.name in begun)


def _last_stage(training: Training) -> str:
    """Return the stage in which training ended."""
    log, stages = training.history.log, training.history.stages
    return str(log[-1]["stage"]) if log else stages[-1].name


def _left_unlabeled_out(training: Training) -> bool:
    """Return whether cross-validation chose to fit the head without the unlabeled set."""
    log = training.history.log
    chosen = log[-1].get("chosen", {}) if log else {}
    return training.experiment.method.uses_unlabeled and chosen.get("unlabeled_weight") == 0


def _gain(
    dataset: Dataset, shipped: SelectedModel, labeled_only: SelectedModel | None, start: str, why_none: str
) -> dict[str, Any]:
    if labeled_only is None:
        return {"gain": {"not_measured": why_none}}
    return measure_gain(dataset, shipped.logits, labeled_only.logits, start)


def _labeled_only(training: Training, folder: RunFolder) -> tuple[SelectedModel | None, str]:
    """Return the labeled-only model, or why there is none; a damaged file does not stop the run at its end."""
    file = folder.path / LABELED_ONLY
    if not file.is_file():
        return None, NO_MODEL
    network = deepcopy(training.student.network)  # the shipped model may be the student itself
    try:
        tensors = load_file(file)
        network.load_state_dict({name: tensors[name] for name in network.state_dict()})
    except (OSError, SafetensorError, KeyError, RuntimeError):
        return None, DAMAGED_MODEL
    return SelectedModel("labeled_only", file, partial(score_with_all, training.experiment, network)), ""


def score_with_all(experiment: Experiment, network: nn.Module, rows: np.ndarray) -> Tensor:
    """Compute a network's logits of some rows in the first process, while the others are in :func:`answer_first`."""
    processes = experiment.processes
    processes.share(rows)
    processes.broadcast(list(network.state_dict().values()))
    return experiment.score(network, rows)


def answer_first(experiment: Experiment, network: nn.Module) -> None:
    """Score the rows that the first process asks for, with its networks, until it calls :func:`release_others`."""
    while (rows := experiment.processes.share(_NO_ROWS)) is not None:
        experiment.processes.broadcast(list(network.state_dict().values()))
        experiment.score(network, rows)


def release_others(experiment: Experiment) -> None:
    """End :func:`answer_first` in the other processes."""
    experiment.processes.share(None)


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
