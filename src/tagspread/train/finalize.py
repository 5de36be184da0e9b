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
from tagspread.data.tables.read import LEDGER_COLUMNS
from tagspread.run.artefact import is_whole
from tagspread.run.folder import RunFolder
from tagspread.run.pseudo_labels import FILE as LEDGER
from tagspread.run.pseudo_labels import ledger_lines
from tagspread.train.dataset import Problem
from tagspread.train.decision import facts_of_run
from tagspread.train.frozen import whole_model
from tagspread.train.gain import LABELLED_ONLY, LEFT_OUT, NO_MODEL, Logits, measure_gain
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

    name: str  # raw, ema or labelled_only
    file: Path
    logits: Logits


def finish(
    problem: Problem,
    learnt: Problem,
    network: TagNet,
    folder: RunFolder,
    state: TrainState,
    *,
    keep_better: bool = False,
    images: str | None = None,
) -> dict[str, Any]:
    """Write models, ledger, figures and ``labels.json``; return the figures.

    Args:
        problem: what was to be learnt.
        learnt: the same as the student saw it, which may be features.
        network: the whole network, of which the student may be the head.
        folder: where everything goes.
        state: where training ended.
        keep_better: let the labelled-only model be the run's if it is better.
        images: the folder of pictures, which the ledger's names start from.
    """
    config = state.config
    shipped = _choose(network, folder, state, learnt)
    seconds = sum(line["seconds"] for line in state.log)
    metrics: dict[str, Any] = {"selection": config.selection, "network": shipped.name, "seconds": round(seconds, 1)}
    if config.selection != "last":
        metrics["warning"] = CHOSEN_ON[config.selection]
    if _left_pile_out(state):
        metrics["gain"] = {"left_out": LEFT_OUT}
    elif _used_pile(state):
        without = _labelled_only(folder, state, learnt)
        figures = _gain(problem, shipped, without, config.start)
        metrics |= figures
        if keep_better and without is not None and figures["gain"].get("difference", 0.0) < 0:
            shipped, metrics["network"] = without, without.name
            if figures["gain"]["part"] == "test":
                metrics.setdefault("warning", KEPT_ON_TEST)
    for part, rows in (("test", problem.test), ("held_out", problem.held_out)):
        if len(rows):
            metrics[part] = _measure(shipped.logits(rows), torch.from_numpy(problem.y[rows]).to(state.device))
    folder.write_json("metrics.json", metrics)
    if state.targets is not None:
        _write_ledger(problem, folder, state, images)
    if not is_whole(folder.path):  # one that fits these weights is of an earlier end, and may hold the user's decisions
        facts = facts_of_run(problem, config, network, shipped.file, shipped.logits)
        folder.write_json("labels.json", facts | {"network": shipped.name})
    return metrics


def _choose(network: TagNet, folder: RunFolder, state: TrainState, learnt: Problem) -> Shipped:
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


def _used_pile(state: TrainState) -> bool:
    """Whether the pile took part in this run: in a stage, or when the head was fitted."""
    fitted = state.config.start == "fitted_head" and state.method.uses_pile
    return fitted or any(stage.uses_pile for stage in state.stages)


def _left_pile_out(state: TrainState) -> bool:
    """Whether the head was fitted without the pile, as no good was found to come of it."""
    chosen = state.log[-1].get("chosen", {}) if state.log else {}
    return state.method.uses_pile and chosen.get("pile_weight") == 0


def _gain(problem: Problem, shipped: Shipped, without: Shipped | None, start: str) -> dict[str, Any]:
    if without is None:
        return {"gain": {"not_measured": NO_MODEL}}
    return measure_gain(problem, shipped.logits, without.logits, start)


def _labelled_only(folder: RunFolder, state: TrainState, learnt: Problem) -> Shipped | None:
    """Return the model that labels alone made, if it was kept."""
    file = folder.path / LABELLED_ONLY
    if not file.is_file():
        return None
    tensors = load_file(file)
    network = deepcopy(state.student)  # the student itself may be the one that is shipped
    network.load_state_dict({name: tensors[name] for name in network.state_dict()})
    return Shipped("labelled_only", file, partial(state.score, network, learnt.store))


def _measure(scores: torch.Tensor, truth: torch.Tensor) -> dict[str, Any]:
    value, skipped = mean_average_precision(scores, truth, return_skipped=True)
    known = not math.isnan(value)  # else no class has a positive there
    return {
        "mAP": value if known else None,
        "interval_90": mean_average_precision_interval(scores, truth) if known else None,
        "classes_without_positive": skipped,
        "classes_with_few_positives": few_positives((truth == 1).sum(0).tolist()),
        "pictures": len(scores),
    }


def _write_ledger(problem: Problem, folder: RunFolder, state: TrainState, images: str | None) -> None:
    """Write down what the pile was last trained on."""
    above = "" if images is None else f"{images}/"
    untagged = ~np.isin(problem.pile, problem.apart)  # some methods set labelled pictures apart, in the pile
    names = [problem.name(int(row)).removeprefix(above) for row in problem.pile[untagged]]
    arrays = (state.epoch_targets.labels, state.pile_scores, state.flips)
    lines = ledger_lines(names, problem.classes, *(tensor.float().cpu().numpy()[untagged] for tensor in arrays))
    folder.write_csv(LEDGER, LEDGER_COLUMNS, lines)
