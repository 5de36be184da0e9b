"""The whole training, top to bottom.

Warm up on the labelled part; then, each epoch: the teacher scores the pile, the method turns scores into targets, the
student trains on strong views of both parts, the teacher follows it, both are evaluated, everything is saved.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tagspread.core.metrics import mean_average_precision
from tagspread.errors import TagspreadError
from tagspread.methods.base import Labelled, Targets
from tagspread.train.config import TrainConfig
from tagspread.train.console import Watcher
from tagspread.train.feed import strong_batches
from tagspread.train.problem import Problem
from tagspread.train.samplers import LABELLED, PILE, stream
from tagspread.train.score import score
from tagspread.train.state import Stage, TrainState
from tagspread.vision.augment import Views


class Interrupted(Exception):  # noqa: N818 (not an error: the run was asked to stop, and saved)
    """Training was asked to stop and has saved where it was."""


def train_loop(problem: Problem, config: TrainConfig, state: TrainState, watcher: Watcher) -> None:
    """Train ``state`` until it is done; it may be fresh or come from a checkpoint, at any step."""
    with _StopSignal() as stop:
        while (stage := state.stage) is not None:
            if not state.begun:
                state.begin_stage()
            started = time.perf_counter()
            labelled = Labelled(torch.from_numpy(problem.y[problem.labelled]), problem.classes, state.epoch)
            if stage.uses_pile and state.step == 0:  # resumed in the middle of an epoch, its targets are in the state
                label_pile(problem, config, state, labelled, watcher)
            images, losses = 0, []
            for loss, count in student_steps(problem, config, state, stage, labelled):
                losses.append(loss)
                images += count
                watcher.step(state.epoch, state.step, stage.steps)
                if stop.asked:
                    state.loss_sum += float(torch.stack(losses).sum())
                    state.save()
                    raise Interrupted
            state.loss_sum += float(torch.stack(losses).sum()) if losses else 0.0
            trained = time.perf_counter() - started
            figures = {"loss": state.loss_sum / stage.steps}
            if state.is_evaluated:
                figures |= evaluate(problem, config, state)
            figures |= {"seconds": time.perf_counter() - started, "img_per_s": images / trained}
            state.end_epoch(figures)
            watcher.epoch(state.log[-1])


def label_pile(problem: Problem, config: TrainConfig, state: TrainState, labelled: Labelled, watcher: Watcher) -> None:
    """Let the teacher score the pile and the method turn the scores into this epoch's targets."""
    scores = score(
        state.ema.model,
        problem.store,
        problem.pile,
        device=state.device,
        batch=config.score_batch,
        precision=config.precision,
        flips=config.teacher_flips and config.flip,
        progress=watcher.scored,
    )
    if not bool(torch.isfinite(scores).all()):
        raise TagspreadError(
            f"the teacher's scores are not finite at epoch {state.epoch}; lower the learning rate (lr is {config.lr})."
        )
    previous = state.targets
    state.targets = state.method.targets(scores, labelled, state.method_state)
    labels = state.targets.labels
    state.figures = {"pseudo_positives": int((labels == 1).sum()), "ignored": int((labels == -1).sum())}
    if previous is not None:
        state.figures["flips"] = int((labels != previous.labels).sum())


def student_steps(
    problem: Problem, config: TrainConfig, state: TrainState, stage: Stage, labelled: Labelled
) -> Iterator[tuple[Tensor, int]]:
    """Train through the rest of the epoch; yield the loss of each step, still on the device, and its pictures."""
    state.train_mode()
    views = Views(config.seed, config.flip, config.cutout, config.operations)
    y = torch.from_numpy(problem.y).to(state.device)
    place_in_pile = np.full(len(problem.store), -1)
    place_in_pile[problem.pile] = np.arange(len(problem.pile))
    n, m = stage.batch_labeled, stage.batch_pile
    todo = stage.steps - state.step
    known_rows = stream(problem.labelled, state.read_labelled, todo * n, config.seed, LABELLED).reshape(todo, n)
    pile_rows = np.empty((todo, 0), np.int64)
    if m:
        pile_rows = stream(problem.pile, state.read_pile, todo * m, config.seed, PILE).reshape(todo, m)
    step = state.student_step
    batches = strong_batches(
        problem.store, views, np.concatenate([known_rows, pile_rows], 1), state.epoch, cutout=stage.cutout
    )
    at_known = torch.from_numpy(known_rows).to(state.device)
    at_pile = torch.from_numpy(place_in_pile[pile_rows]).to(state.device)
    losses: list[Tensor] = []
    for i, pictures in enumerate(batches):
        labels, weight = y[at_known[i]].float(), None
        if m:
            targets = targets_of_step(config, state, labelled, at_pile[i], problem, pile_rows[i])
            labels = torch.cat([labels, targets.labels.float()])
            weight = targets.weight
        rows_weight = torch.ones_like(labels)
        if weight is not None:
            rows_weight[n:] = weight
        losses.append(step(pictures, labels, rows_weight))
        state.after_step()
        yield losses[-1], len(pictures)
        if len(losses) == 32 or i == todo - 1:  # looking at a loss waits for the device, so not at every step
            check_finite(losses, state, config)
            losses.clear()


def targets_of_step(
    config: TrainConfig, state: TrainState, labelled: Labelled, places: Tensor, problem: Problem, rows: np.ndarray
) -> Targets:
    """Return the epoch's targets of these places of the pile, as the method refines them at this step."""
    labels, weight = state.epoch_targets
    targets = Targets(labels[places], None if weight is None else weight[places])
    if not state.method.per_step:
        return targets
    fresh = score(
        state.ema.model, problem.store, rows, device=state.device, batch=len(rows), precision=config.precision
    )
    return state.method.step_targets(fresh, targets, labelled, state.method_state)


def check_finite(losses: list[Tensor], state: TrainState, config: TrainConfig) -> None:
    """Raise if a loss is NaN or infinite, saying at which step."""
    values = torch.stack(losses)
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        step = state.step - len(losses) + int(bad.float().argmax()) + 1
        raise TagspreadError(
            f"the loss became {values[bad][0].item()} at epoch {state.epoch}, step {step}. The last good checkpoint "
            f"is kept. Lower the learning rate (lr is {config.lr}), or look at the pictures around it."
        )


def evaluate(problem: Problem, config: TrainConfig, state: TrainState) -> dict[str, float]:
    """Return the mAP of student and teacher on the test part and on what was held out."""
    figures: dict[str, float] = {}
    for part, rows in (("test", problem.test), ("held_out", problem.held_out)):
        if not len(rows):
            continue
        truth = torch.from_numpy(problem.y[rows]).to(state.device)
        for name, network in (("raw", state.student), ("ema", state.ema.model)):
            scores = score(
                network,
                problem.store,
                rows,
                device=state.device,
                batch=config.score_batch,
                precision=config.precision,
            )
            if not bool(torch.isfinite(scores).all()):
                raise TagspreadError(
                    f"the {name} network's scores are not finite after epoch {state.epoch}. The last good checkpoint "
                    f"is kept. Lower the learning rate (lr is {config.lr})."
                )
            figures[f"{part}_map_{name}"] = mean_average_precision(scores, truth)
    return figures


class _StopSignal:
    """Turns SIGTERM and SIGINT into a question that the loop asks between steps."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> _StopSignal:
        self._before = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._ask)
            except ValueError:  # not in the main thread: whoever called us minds the signals
                break
        return self

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:  # asked twice: now
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
