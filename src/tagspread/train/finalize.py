"""The end of a run: choose the model as the selection says, measure it once, write everything down."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from tagspread.core.bootstrap import few_positives
from tagspread.core.metrics import mean_average_precision, mean_average_precision_interval
from tagspread.data.tables.read import PSEUDO_LABEL_COLUMNS
from tagspread.run.artefact import is_whole
from tagspread.run.folder import RunFolder
from tagspread.run.pseudo_labels import FILE as PSEUDO_LABELS
from tagspread.run.pseudo_labels import pseudo_label_rows
from tagspread.train.dataset import Dataset
from tagspread.train.decision import facts_of_run
from tagspread.train.frozen import whole_model
from tagspread.train.gain import LABELED_ONLY, LEFT_OUT, NO_MODEL, Logits, measure_gain
from tagspread.train.stages import known_by
from tagspread.train.state import TrainState
from tagspread.vision.backbones import TagNet

CHOSEN_ON = {
    "test_best": "chosen on the test part, as the published code does: optimistic, for comparison only",
    "held_out": "the held-out figure is of the part the model was chosen on: optimistic",
}
KEPT_ON_TEST = "the better of two models was chosen on the test part: its figure there is optimistic"


class Shipped(NamedTuple):
    """The model that a run is known by."""

    name: str  # raw, ema or labeled_only
    file: Path
    logits: Logits


def finish(
    dataset: Dataset,
    learnt: Dataset,
    network: TagNet,
    folder: RunFolder,
    state: TrainState,
    *,
    keep_better: bool = False,
    images: str | None = None,
) -> dict[str, Any]:
    """Write models, pseudo_labels, figures and ``labels.json``; return the figures.

    Args:
        dataset: what was to be learnt.
        learnt: the same as the student saw it, which may be features.
        network: the whole network, of which the student may be the head.
        folder: where everything goes.
        state: where training ended.
        keep_better: let the labeled-only model be the run's if it is better.
        images: the folder of images, which the pseudo-labels's names start from.
    """
    config = state.config
    shipped = _choose(network, folder, state, learnt)
    seconds = sum(line["seconds"] for line in state.log)
    metrics: dict[str, Any] = {"selection": config.selection, "network": shipped.name, "seconds": round(seconds, 1)}
    if config.selection != "last":
        metrics["warning"] = CHOSEN_ON[config.selection]
    if _left_unlabeled_out(state):
        metrics["gain"] = {"left_out": LEFT_OUT}
    elif _used_unlabeled(state):
        without = _labeled_only(folder, state, learnt)
        figures = _gain(dataset, shipped, without, config.start)
        metrics |= figures
        if keep_better and without is not None and figures["gain"].get("difference", 0.0) < 0:
            shipped, metrics["network"] = without, without.name
            if figures["gain"]["part"] == "test":
                metrics.setdefault("warning", KEPT_ON_TEST)
    for part, rows in (("test", dataset.test), ("held_out", dataset.held_out)):
        if len(rows):
            metrics[part] = _measure(shipped.logits(rows), torch.from_numpy(dataset.y[rows]).to(state.device))
    folder.write_json("metrics.json", metrics)
    if state.targets is not None:
        _write_pseudo_labels(dataset, folder, state, images)
    if not is_whole(folder.path):  # one that fits these weights is of an earlier end, and may hold the user's decisions
        facts = facts_of_run(dataset, config, network, shipped.file, shipped.logits)
        folder.write_json("labels.json", facts | {"network": shipped.name})
    return metrics


def _choose(network: TagNet, folder: RunFolder, state: TrainState, learnt: Dataset) -> Shipped:
    """Write the networks; the run's is that of the last epoch, or the best one where it was looked for."""
    folder.write_log(state.log)
    folder.write_model("model.safetensors", whole_model(network, state.student))
    folder.write_model("ema.safetensors", whole_model(network, state.ema.model))
    name, file, model = "ema", "ema.safetensors", state.ema.model
    if state.best:
        model.load_state_dict(state.best)
        name, file = [line["best_is"] for line in state.log if "best_is" in line][-1], "best.safetensors"
        folder.write_model(file, whole_model(network, model))
    elif state.stages and known_by(state.stages[-1].name, state.config) == "raw":
        name, file, model = "raw", "model.safetensors", state.student
    return Shipped(name, folder.path / file, partial(state.score, model, learnt.store))


def _used_unlabeled(state: TrainState) -> bool:
    """Whether the unlabeled set took part in this run: in a stage, or when the head was fitted."""
    fitted = state.config.start == "fitted_head" and state.method.uses_unlabeled
    return fitted or any(stage.uses_unlabeled for stage in state.stages)


def _left_unlabeled_out(state: TrainState) -> bool:
    """Whether the head was fitted without the unlabeled set, as no good was found to come of it."""
    chosen = state.log[-1].get("chosen", {}) if state.log else {}
    return state.method.uses_unlabeled and chosen.get("unlabeled_weight") == 0


def _gain(dataset: Dataset, shipped: Shipped, without: Shipped | None, start: str) -> dict[str, Any]:
    if without is None:
        return {"gain": {"not_measured": NO_MODEL}}
    return measure_gain(dataset, shipped.logits, without.logits, start)


def _labeled_only(folder: RunFolder, state: TrainState, learnt: Dataset) -> Shipped | None:
    """Return the model that labels alone made, if it was kept."""
    file = folder.path / LABELED_ONLY
    if not file.is_file():
        return None
    tensors = load_file(file)
    network = deepcopy(state.student)  # the student itself may be the one that is shipped
    network.load_state_dict({name: tensors[name] for name in network.state_dict()})
    return Shipped("labeled_only", file, partial(state.score, network, learnt.store))


def _measure(scores: torch.Tensor, truth: torch.Tensor) -> dict[str, Any]:
    value, skipped = mean_average_precision(scores, truth, return_skipped=True)
    known = not math.isnan(value)  # else no class has a positive there
    return {
        "mAP": value if known else None,
        "interval_90": mean_average_precision_interval(scores, truth) if known else None,
        "classes_without_positive": skipped,
        "classes_with_few_positives": few_positives((truth == 1).sum(0).tolist()),
        "images": len(scores),
    }


def _write_pseudo_labels(dataset: Dataset, folder: RunFolder, state: TrainState, images: str | None) -> None:
    """Write down what the unlabeled set was last trained on."""
    above = "" if images is None else f"{images}/"
    untagged = ~np.isin(dataset.unlabeled, dataset.apart)  # some methods set labeled images apart, in the unlabeled set
    names = [dataset.name(int(row)).removeprefix(above) for row in dataset.unlabeled[untagged]]
    arrays = (state.epoch_targets.labels, state.unlabeled_scores, state.flips)
    lines = pseudo_label_rows(names, dataset.classes, *(tensor.float().cpu().numpy()[untagged] for tensor in arrays))
    folder.write_csv(PSEUDO_LABELS, PSEUDO_LABEL_COLUMNS, lines)
