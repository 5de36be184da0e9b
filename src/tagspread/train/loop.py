"""The training loop: warm-up on the labeled set, then epochs with pseudo-labels of the unlabeled set.

In each epoch with the unlabeled set,

1. the teacher, a moving average of the student, scores all unlabeled rows (:func:`label_unlabeled`);
2. the method turns the scores into pseudo-labels, also called targets;
3. the student trains on strong views of labeled and unlabeled rows, and the teacher follows it
   (:func:`student_steps`);
4. student and teacher are evaluated, and a checkpoint is saved.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tagspread.aliases import Progress
from tagspread.core.metrics import mean_average_precision, multilabel_report
from tagspread.core.sharded_ranking import Shard
from tagspread.methods.base import Labeled, Targets, check_targets
from tagspread.progress import Watcher
from tagspread.train.batches import LABELED, UNLABELED, steps_per_chunk, stream, training_batches
from tagspread.train.deadline import Deadline
from tagspread.train.experiment import Stage
from tagspread.train.interrupts import Interrupted, StopSignal
from tagspread.train.sharded_store import ShardedStore
from tagspread.train.training import Training
from tagspread.vision.augment import Views

STEPS_BETWEEN_CHECKS = 32  # reading a loss waits for the device


class Recorder(Protocol):
    """Saves results of the loop."""

    def labeled_only(self) -> None:
        """Save the student as the labeled-only model."""

    def epoch(self) -> None:
        """Save the log after an epoch."""


def train_loop(
    training: Training, watcher: Watcher, recorder: Recorder, deadline: Deadline | None = None
) -> str | None:
    """Train until all stages are finished, from the start or from the step at which a checkpoint was saved.

    With a deadline, training ends before the step that would exceed it; the present state is then the result.

    Returns:
        Where training ended early; None if it did not.
    """
    deadline, processes = deadline or Deadline(), training.experiment.processes
    student, pseudo_labels, history = training.student, training.pseudo_labels, training.history

    with StopSignal() as stop:
        labeling_seconds = 0.0
        while (stage := history.stage) is not None:
            started, sent = time.perf_counter(), processes.sent
            if deadline.is_near(labeling_seconds):
                return training.end_early()
            if not student.in_stage:
                begin_stage(training, stage, recorder)

            labeled = training.experiment.labeled(history.epoch)
            if stage.uses_unlabeled and history.step == 0:  # a run resumed within an epoch has its targets already
                label_unlabeled(training, labeled, watcher)
                labeling_seconds = time.perf_counter() - started

            training_started, images, is_over = time.perf_counter(), 0, False
            for count in student_steps(training, stage, labeled):
                images += count
                watcher.epoch_step(history.epoch, *history.progress)
                if processes.any(stop.received):
                    training.check_losses([torch.as_tensor(history.loss_sum)])  # never save a broken state
                    student.agree()
                    training.save()
                    raise Interrupted(str(training.file.parent.parent))
                if is_over := deadline.is_near((time.perf_counter() - training_started) / images * count):
                    training.check_losses([torch.as_tensor(history.loss_sum)])
                    break
            student.agree()
            rate = images / (time.perf_counter() - training_started)

            metrics = {"loss": float(history.loss_sum) / history.step}
            if history.is_evaluation_due and not is_over:
                metrics |= evaluate(training, watcher)
            if pseudo_labels.exist:
                history.label_metrics["flips"] = history.count_flips(pseudo_labels.total_flips)
            metrics |= {"seconds": time.perf_counter() - started, "img_per_s": rate}
            if processes.size > 1:
                metrics["sent_bytes"] = processes.sent - sent
            history.end_epoch(stage, metrics, student.networks)
            if history.stage is not stage:
                student.end_stage()
            training.save()
            recorder.epoch()
            watcher.epoch(history.log[-1])
            if is_over and history.stage is not None:
                return training.end_early()
    return None


def begin_stage(training: Training, stage: Stage, recorder: Recorder) -> None:
    """Begin a stage with a new optimizer and schedule; the teacher restarts from the student."""
    student, is_first = training.student, training.history.stage_index == 0
    if not is_first and training.experiment.config.warm_start_from == "ema":
        student.become_teacher()
    if stage.uses_unlabeled:
        if not is_first and training.experiment.config.start == "warmup":
            recorder.labeled_only()
        training.experiment.method.begin_unlabeled(student.network)
    student.begin_stage(stage)


def label_unlabeled(training: Training, labeled: Labeled, watcher: Watcher | None = None) -> None:
    """Score the unlabeled set with the teacher, and compute this epoch's targets from the scores by the method."""
    experiment, method, pseudo_labels = training.experiment, training.experiment.method, training.pseudo_labels
    dataset, teacher, state = experiment.dataset, training.student.teacher, pseudo_labels.method_state
    progress = None if watcher is None else watcher.begin("labeling")
    if method.reads_labeled:
        apart = experiment.set_apart(teacher)
        labeled = replace(labeled, scores=experiment.teacher_scores(teacher, dataset.labeled), apart=apart)
    method.new_epoch(labeled, state)
    if not (method.per_step and pseudo_labels.exist):
        scores, targets = score_and_label(training, labeled, progress)
        pseudo_labels.relabel(slice(None), targets, scores)
    labels = pseudo_labels.targets.labels
    metrics: dict[str, float] = {"pseudo_positives": int((labels >= 0.5).sum()), "ignored": int((labels == -1).sum())}
    if dataset.oracle is not None:
        truth = torch.from_numpy(dataset.oracle).to(labels.device)
        report = multilabel_report((labels >= 0.5).to(torch.int8), truth)
        metrics |= {f"pseudo_{name}": value for name, value in report.items()}
    training.history.label_metrics = metrics


def score_and_label(training: Training, labeled: Labeled, progress: Progress | None = None) -> tuple[Tensor, Targets]:
    """Return the teacher's scores of the unlabeled set, and the targets that the method computes from them."""
    experiment, method, state = training.experiment, training.experiment.method, training.pseudo_labels.method_state
    teacher, rows, store = training.student.teacher, experiment.dataset.unlabeled, experiment.dataset.store
    if isinstance(store, ShardedStore):
        own_scores, own = experiment.own_teacher_scores(teacher, store, rows, progress), store.own(rows)
        shard = Shard(torch.from_numpy(np.flatnonzero(own)), len(rows), experiment.processes.sum)
        scores = store.in_order(rows, own_scores)
        training.check_scores(scores, "teacher")
        own_targets = method.targets_of_shard(own_scores, shard, labeled, state)
        if own_targets is not None:
            labels, weight, _ = own_targets
            whole = Targets(store.in_order(rows, labels), None if weight is None else store.in_order(rows, weight))
            return scores, check_targets(method, whole, scores)
    else:
        scores = experiment.teacher_scores(teacher, rows, progress)
        training.check_scores(scores, "teacher")
    return scores, check_targets(method, method.targets(scores, labeled, state), scores)


def student_steps(training: Training, stage: Stage, labeled: Labeled) -> Iterator[int]:
    """Train for the remaining steps of the epoch; yield the number of images after each step."""
    experiment, student, history = training.experiment, training.student, training.history
    config, dataset, device = experiment.config, experiment.dataset, experiment.device
    n, m, steps = stage.batch_labeled, stage.batch_unlabeled, stage.steps - history.step
    student.train_mode()
    # both streams continue where the previous epoch ended, so that all batches are full and all rows equally frequent
    labeled_rows = stream(dataset.labeled, history.read_labeled, steps * n, config.seed, LABELED).reshape(steps, n)
    all_places = np.arange(len(dataset.unlabeled))
    unlabeled_places = stream(all_places, history.read_unlabeled, steps * m, config.seed, UNLABELED).reshape(steps, m)
    unlabeled_rows = dataset.unlabeled[unlabeled_places]
    rows = np.concatenate([labeled_rows, unlabeled_rows], axis=1)
    views = Views(config.seed, config.flip, config.cutout, config.operations)
    processes = experiment.processes  # each trains on its part of every batch: position i belongs to process i mod N
    own, own_labeled = slice(processes.rank, None, processes.size), slice(processes.rank, n, processes.size)
    own_unlabeled = slice((processes.rank - n) % processes.size, None, processes.size)
    batches = training_batches(student.network, dataset.store, views, rows, history.epoch, cutout=stage.cutout, own=own)
    needs_scores = stage.uses_unlabeled and experiment.method.per_step
    fresh: Iterator[Tensor | None] = fresh_scores(training, unlabeled_rows) if needs_scores else repeat(None)
    y = torch.from_numpy(dataset.y[labeled_rows[:, own_labeled]]).to(device, torch.float32)
    places = torch.from_numpy(unlabeled_places).to(device)

    losses: list[Tensor] = []
    for i, (images, scores) in enumerate(zip(batches, fresh, strict=False)):
        labels, weight = y[i], torch.ones_like(y[i])
        if stage.uses_unlabeled:
            if scores is not None:
                label_batch(training, labeled, places[i], scores)
            targets = training.pseudo_labels.at(places[i, own_unlabeled])
            labels = torch.cat([labels, targets.labels.float()])
            ones = torch.ones_like(labels[len(weight) :])
            weight = torch.cat([weight, ones if targets.weight is None else targets.weight])
        loss = student.step(images, labels, weight, places[i, own_unlabeled])  # objective, optimizer, schedule, EMA
        history.count_step(stage, loss)
        losses.append(loss)
        if len(losses) == STEPS_BETWEEN_CHECKS or i == steps - 1:
            training.check_losses(losses)
            losses.clear()
        yield stage.batch


def fresh_scores(training: Training, rows: np.ndarray) -> Iterator[Tensor]:
    """Yield the teacher's scores of the rows of each step (``rows`` is steps x batch), shortly before they are needed.

    Several steps are scored at once, because the launches of one small batch would take longer than its computation;
    the teacher hardly changes in so few steps. The checkpoint saves scores that are not used yet.
    """
    chunk, pseudo_labels = steps_per_chunk(rows), training.pseudo_labels
    for i in range(len(rows)):
        if not len(pseudo_labels.fresh):
            ahead = rows[i : i + chunk]
            scores = training.experiment.teacher_scores(training.student.teacher, ahead.reshape(-1))
            pseudo_labels.fresh = scores.reshape(*ahead.shape, -1)
        scores, pseudo_labels.fresh = pseudo_labels.fresh[0], pseudo_labels.fresh[1:]
        yield scores


def label_batch(training: Training, labeled: Labeled, places: Tensor, scores: Tensor) -> None:
    """Update the targets of a batch's unlabeled rows from fresh scores, for methods that label per step."""
    pseudo_labels, method = training.pseudo_labels, training.experiment.method
    targets = method.step_targets(scores, pseudo_labels.at(places), labeled, pseudo_labels.method_state)
    if training.history.step == 0:  # once an epoch, because reading values waits for the device
        check_targets(method, targets, scores)
    pseudo_labels.relabel(places, targets, scores)


def evaluate(training: Training, watcher: Watcher | None = None) -> dict[str, float]:
    """Compute the mAP of student and teacher on the test images and on the held-out images."""
    experiment, metrics = training.experiment, dict[str, float]()
    progress = None if watcher is None else watcher.begin("evaluating")
    for part, rows in (("test", experiment.dataset.test), ("held_out", experiment.dataset.held_out)):
        truth = torch.from_numpy(experiment.dataset.y[rows]).to(experiment.device)
        for name, network in training.student.networks.items():
            if len(rows):
                scores = experiment.score(network, rows, progress=progress)
                training.check_scores(scores, name)
                metrics[f"{part}_map_{name}"] = mean_average_precision(scores, truth)
    return metrics
