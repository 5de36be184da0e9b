"""The whole training, top to bottom.

Warm up on the labelled part; then, each epoch: the teacher scores the pile, the method turns scores into targets, the
student trains on strong views of both parts, the teacher follows it, both are evaluated, everything is saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagspread.core.metrics import mean_average_precision
from tagspread.errors import TagspreadError
from tagspread.methods.base import Labelled, Targets
from tagspread.train.console import Watcher
from tagspread.train.feed import strong_batches
from tagspread.train.problem import Problem
from tagspread.train.samplers import LABELLED, PILE, stream
from tagspread.train.stages import Stage
from tagspread.train.state import TrainState
from tagspread.train.stop import Interrupted, StopSignal
from tagspread.vision.augment import Views

STEPS_BETWEEN_LOOKS = 32  # looking at a loss waits for the device


def train_loop(
    problem: Problem, state: TrainState, watcher: Watcher, write_down: Callable[[dict[str, Any]], None]
) -> None:
    """Train until it is done, from the beginning or from any step that a checkpoint was made at.

    After each epoch ``write_down`` is given its line of the log, then ``watcher`` shows it.
    """
    with StopSignal() as stop:
        while (stage := state.stage) is not None:
            started = time.perf_counter()
            if not state.begun:
                state.begin_stage()  # new optimiser and schedule; the teacher begins from the student
            labelled = Labelled(torch.from_numpy(problem.y[problem.labelled]), problem.classes, state.epoch)
            if stage.uses_pile and state.step == 0:  # resumed within an epoch, its targets are in the checkpoint
                label_pile(problem, state, labelled)

            begun_at, images = time.perf_counter(), 0
            for count in student_steps(problem, state, stage, labelled):
                images += count
                watcher.step(state.epoch, *state.progress)
                if stop.asked:
                    check_losses([torch.as_tensor(state.loss_sum)], state)  # never save a broken state
                    state.save()
                    raise Interrupted(str(state.file.parent.parent))
            rate = images / (time.perf_counter() - begun_at)

            figures = {"loss": float(state.loss_sum) / stage.steps}
            if state.is_evaluated:
                figures |= evaluate(problem, state)
            state.end_epoch(figures | {"seconds": time.perf_counter() - started, "img_per_s": rate})
            write_down(state.log[-1])
            watcher.epoch(state.log[-1])


def label_pile(problem: Problem, state: TrainState, labelled: Labelled) -> None:
    """Let the teacher score the pile, and the method turn the scores into this epoch's targets."""
    config, previous = state.config, state.targets
    flips = config.teacher_flips and config.flip
    scores = state.score(state.ema.model, problem.store, problem.pile, flips=flips)
    check_scores(scores, "teacher", state)
    state.targets = state.method.targets(scores, labelled, state.method_state)
    labels = state.targets.labels
    state.figures = {"pseudo_positives": int((labels == 1).sum()), "ignored": int((labels == -1).sum())}
    if previous is not None:
        state.figures["flips"] = int((labels != previous.labels).sum())


def student_steps(problem: Problem, state: TrainState, stage: Stage, labelled: Labelled) -> Iterator[int]:
    """Train through the rest of the epoch; yield after each step how many pictures it saw."""
    config, device = state.config, state.device
    n, m, todo = stage.batch_labeled, stage.batch_pile, stage.steps - state.step
    state.train_mode()
    # both streams go on where the last epoch left them: no row is favoured, no batch is short
    known = stream(problem.labelled, state.read_labelled, todo * n, config.seed, LABELLED).reshape(todo, n)
    place = stream(np.arange(len(problem.pile)), state.read_pile, todo * m, config.seed, PILE).reshape(todo, m)
    rows = np.concatenate([known, problem.pile[place]], axis=1)
    views = Views(config.seed, config.flip, config.cutout, config.operations)
    y = torch.from_numpy(problem.y[known]).to(device, torch.float32)
    places = torch.from_numpy(place).to(device)

    losses: list[Tensor] = []
    for i, pictures in enumerate(strong_batches(problem.store, views, rows, state.epoch, cutout=stage.cutout)):
        labels, weight = y[i], torch.ones_like(y[i])
        if stage.uses_pile:
            targets = targets_of_step(problem, state, labelled, places[i], rows[i, n:])
            labels = torch.cat([labels, targets.labels.float()])
            weight = torch.cat([weight, torch.ones_like(labels[n:]) if targets.weight is None else targets.weight])
        losses.append(state.student_step(pictures, labels, weight))
        state.after_step(losses[-1])
        if len(losses) == STEPS_BETWEEN_LOOKS or i == todo - 1:
            check_losses(losses, state)
            losses.clear()
        yield len(pictures)


def targets_of_step(
    problem: Problem, state: TrainState, labelled: Labelled, places: Tensor, rows: np.ndarray
) -> Targets:
    """Return the epoch's targets of these places of the pile, as the method refines them at this step."""
    labels, weight = state.epoch_targets
    targets = Targets(labels[places], None if weight is None else weight[places])
    if not state.method.per_step:
        return targets
    fresh = state.score(state.ema.model, problem.store, rows)
    return state.method.step_targets(fresh, targets, labelled, state.method_state)


def evaluate(problem: Problem, state: TrainState) -> dict[str, float]:
    """Return the mAP of student and teacher on the test part and on what was held out."""
    figures: dict[str, float] = {}
    for part, rows in (("test", problem.test), ("held_out", problem.held_out)):
        truth = torch.from_numpy(problem.y[rows]).to(state.device)
        for name, network in (("raw", state.student), ("ema", state.ema.model)):
            if len(rows):
                scores = state.score(network, problem.store, rows)
                check_scores(scores, name, state)
                figures[f"{part}_map_{name}"] = mean_average_precision(scores, truth)
    return figures


def check_losses(losses: list[Tensor], state: TrainState) -> None:
    """Raise if a loss is NaN or infinite, saying at which step."""
    values = torch.stack(losses)
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        step = state.step - len(losses) + int(bad.float().argmax()) + 1
        raise _not_finite(f"the loss became {values[bad][0].item()} at epoch {state.epoch}, step {step}", state)


def check_scores(scores: Tensor, whose: str, state: TrainState) -> None:
    """Raise if scores are NaN or infinite."""
    if not bool(torch.isfinite(scores).all()):
        raise _not_finite(f"the {whose} network's scores are not finite at epoch {state.epoch}", state)


def _not_finite(what: str, state: TrainState) -> TagspreadError:
    kept = "The last good checkpoint is kept. " if state.file.exists() else ""
    return TagspreadError(f"{what}. {kept}Lower the learning rate (lr is {state.config.lr}).")
