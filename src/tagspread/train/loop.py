"""The whole training, top to bottom.

Warm up on the labeled part; then, each epoch: the teacher scores the unlabeled set, the method turns scores into
targets, the student trains on strong views of both parts, the teacher follows it, both are evaluated, everything is
saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagspread.core.metrics import mean_average_precision, multilabel_report
from tagspread.errors import TagspreadError
from tagspread.methods.base import Labeled, SetApart, Targets, check_targets
from tagspread.progress import Watcher
from tagspread.train.batches import shown_batches, steps_per_chunk
from tagspread.train.dataset import Dataset
from tagspread.train.interrupts import Interrupted, StopSignal
from tagspread.train.sampling import LABELED, UNLABELED, stream
from tagspread.train.stages import Stage
from tagspread.train.state import TrainState
from tagspread.vision.augment import Views

STEPS_BETWEEN_LOOKS = 32  # looking at a loss waits for the device


def train_loop(
    dataset: Dataset, state: TrainState, watcher: Watcher, write_down: Callable[[dict[str, Any]], None]
) -> None:
    """Train until it is done, from the beginning or from any step that a checkpoint was made at.

    After each epoch ``write_down`` is given its line of the log, then ``watcher`` shows it.
    """
    with StopSignal() as stop:
        while (stage := state.stage) is not None:
            started = time.perf_counter()
            if not state.begun:
                state.begin_stage()  # new optimizer and schedule; the teacher begins from the student
            labeled = state.labeled_part(dataset)
            if stage.uses_unlabeled and state.step == 0:  # resumed within an epoch, its targets are in the checkpoint
                label_unlabeled(dataset, state, labeled)

            begun_at, images = time.perf_counter(), 0
            for count in student_steps(dataset, state, stage, labeled):
                images += count
                watcher.step(state.epoch, *state.progress)
                if stop.asked:
                    check_losses([torch.as_tensor(state.loss_sum)], state)  # never save a broken state
                    state.save()
                    raise Interrupted(str(state.file.parent.parent))
            rate = images / (time.perf_counter() - begun_at)

            figures = {"loss": float(state.loss_sum) / stage.steps}
            if state.is_evaluated:
                figures |= evaluate(dataset, state)
            state.end_epoch(figures | {"seconds": time.perf_counter() - started, "img_per_s": rate})
            write_down(state.log[-1])
            watcher.epoch(state.log[-1])


def teachers_look(dataset: Dataset, state: TrainState) -> Callable[[np.ndarray], Tensor]:
    """Return what scores rows as the teacher sees them: plain, and where that is wanted also in the mirror."""
    flips = state.config.teacher_flips and state.config.flip and dataset.store.modality.has_mirror
    return partial(state.score, state.ema.model, dataset.store, flips=flips)


def label_unlabeled(dataset: Dataset, state: TrainState, labeled: Labeled) -> None:
    """Let the teacher score the unlabeled set, and the method turn the scores into this epoch's targets."""
    method = state.method
    look = teachers_look(dataset, state)
    if method.reads_labeled:
        labeled = with_scores(labeled, dataset, look)
    method.new_epoch(labeled, state.method_state)
    if state.targets is None or not method.per_step:
        scores = look(dataset.unlabeled)
        check_scores(scores, "teacher", state)
        found = check_targets(method, method.targets(scores, labeled, state.method_state), scores)
        state.relabel(slice(None), found, scores)
    labels = state.epoch_targets.labels
    state.figures = {"pseudo_positives": int((labels >= 0.5).sum()), "ignored": int((labels == -1).sum())}
    if dataset.oracle is not None:
        truth = torch.from_numpy(dataset.oracle).to(labels.device)
        report = multilabel_report((labels >= 0.5).to(torch.int8), truth)
        state.figures |= {f"pseudo_{name}": value for name, value in report.items()}


def with_scores(labeled: Labeled, dataset: Dataset, look: Callable[[np.ndarray], Tensor]) -> Labeled:
    """Return the labeled part with the teacher's scores of it, and of what was set apart."""
    apart = None
    if len(dataset.apart):
        apart = SetApart(torch.from_numpy(dataset.y[dataset.apart]), look(dataset.apart))
    return replace(labeled, scores=look(dataset.labeled), apart=apart)


def student_steps(dataset: Dataset, state: TrainState, stage: Stage, labeled: Labeled) -> Iterator[int]:
    """Train through the rest of the epoch; yield after each step how many images it saw."""
    config, device = state.config, state.device
    n, m, todo = stage.batch_labeled, stage.batch_unlabeled, stage.steps - state.step
    state.train_mode()
    # both streams go on where the last epoch left them: no row is favored, no batch is short
    known = stream(dataset.labeled, state.read_labeled, todo * n, config.seed, LABELED).reshape(todo, n)
    place = stream(np.arange(len(dataset.unlabeled)), state.read_unlabeled, todo * m, config.seed, UNLABELED).reshape(
        todo, m
    )
    rows = np.concatenate([known, dataset.unlabeled[place]], axis=1)
    views = Views(config.seed, config.flip, config.cutout, config.operations)
    shown = shown_batches(state.student, dataset.store, views, rows, state.epoch, cutout=stage.cutout)
    fresh = (
        fresh_scores(dataset, state, rows[:, n:]) if stage.uses_unlabeled and state.method.per_step else repeat(None)
    )
    y = torch.from_numpy(dataset.y[known]).to(device, torch.float32)
    places = torch.from_numpy(place).to(device)

    losses: list[Tensor] = []
    for i, (images, scores) in enumerate(zip(shown, fresh, strict=False)):
        labels, weight = y[i], torch.ones_like(y[i])
        if stage.uses_unlabeled:
            targets = targets_of_step(state, labeled, places[i], scores)
            labels = torch.cat([labels, targets.labels.float()])
            weight = torch.cat([weight, torch.ones_like(labels[n:]) if targets.weight is None else targets.weight])
        losses.append(state.student_step(images, labels, weight, places[i]))
        state.after_step(losses[-1])
        if len(losses) == STEPS_BETWEEN_LOOKS or i == todo - 1:
            check_losses(losses, state)
            losses.clear()
        yield len(images)


def fresh_scores(dataset: Dataset, state: TrainState, rows: np.ndarray) -> Iterator[Tensor]:
    """Yield the teacher's scores of each line of ``rows`` (steps x batch), made shortly before they are needed.

    A chunk of steps is scored at once: one batch at a time, launching the teacher would cost more than its work, and
    in so few steps an average hardly moves. What is left of a chunk is saved with the run.
    """
    chunk, look = steps_per_chunk(rows), teachers_look(dataset, state)
    for i in range(len(rows)):
        if not len(state.fresh):
            ahead = rows[i : i + chunk]
            scores = look(ahead.reshape(-1))
            state.fresh = scores.reshape(*ahead.shape, -1)
        scores, state.fresh = state.fresh[0], state.fresh[1:]
        yield scores


def targets_of_step(state: TrainState, labeled: Labeled, places: Tensor, scores: Tensor | None) -> Targets:
    """Return the targets of these unlabeled rows, updated from fresh scores if the method works per step."""
    if scores is not None:
        targets = state.method.step_targets(scores, state.targets_at(places), labeled, state.method_state)
        if state.step == 0:  # once an epoch: a look at values stalls a GPU
            check_targets(state.method, targets, scores)
        state.relabel(places, targets, scores)
    return state.targets_at(places)


def evaluate(dataset: Dataset, state: TrainState) -> dict[str, float]:
    """Return the mAP of student and teacher on the test part and on what was held out."""
    figures: dict[str, float] = {}
    for part, rows in (("test", dataset.test), ("held_out", dataset.held_out)):
        truth = torch.from_numpy(dataset.y[rows]).to(state.device)
        for name, network in (("raw", state.student), ("ema", state.ema.model)):
            if len(rows):
                scores = state.score(network, dataset.store, rows)
                check_scores(scores, name, state)
                figures[f"{part}_map_{name}"] = mean_average_precision(scores, truth)
    return figures


def check_losses(losses: list[Tensor], state: TrainState) -> None:
    """Raise if a loss is NaN or infinite, saying at which step."""
    values = torch.stack(losses)
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        step = state.step - len(losses) + int(bad.float().argmax()) + 1
        raise _not_finite(f"the loss became {values[bad][0].item()} in epoch {state.epoch + 1}, step {step}", state)


def check_scores(scores: Tensor, whose: str, state: TrainState) -> None:
    """Raise if scores are NaN or infinite."""
    if not bool(torch.isfinite(scores).all()):
        raise _not_finite(f"the {whose} network's scores are not finite in epoch {state.epoch + 1}", state)


def _not_finite(what: str, state: TrainState) -> TagspreadError:
    kept = "The last good checkpoint is kept. " if state.file.exists() else ""
    return TagspreadError(f"{what}. {kept}Lower the learning rate (lr is {state.config.lr}).")
