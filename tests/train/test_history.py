"""Where a training stands: which stage, what is evaluated when, which epoch was best, and its checkpoint."""

import json

import pytest
import torch
from torch import nn

from tagspread.run.checkpoint import Checkpoint
from tagspread.train.experiment import Stage
from tagspread.train.training import History

WARMUP = Stage("warmup", 3, 2, 4, 0, False, 3)
MAIN = Stage("main", 4, 5, 2, 6, True, 4)


def networks():
    return {"raw": nn.Linear(1, 1), "ema": nn.Linear(1, 1)}


def run_through(history, metrics_of_epoch=lambda epoch: {}):
    """Train to the end; return whether each epoch was evaluated, and its stage."""
    epochs = []
    while (stage := history.stage) is not None:
        epochs.append((stage.name, history.is_evaluation_due))
        for _ in range(stage.steps):
            history.count_step(stage, torch.tensor(0.5))
        history.end_epoch(stage, metrics_of_epoch(history.epoch), networks())
    return epochs


@pytest.mark.parametrize(
    ("every", "evaluated"),
    [(1, [0, 1, 2, 3, 4, 5, 6]), (2, [1, 2, 3, 5, 6]), (5, [2, 4, 6]), (100, [2, 6])],
)
def test_evaluation_is_due_every_so_many_epochs_and_at_the_end_of_each_stage(every, evaluated):
    epochs = run_through(History((WARMUP, MAIN), every))
    assert [name for name, _ in epochs] == ["warmup"] * 3 + ["main"] * 4
    assert [epoch for epoch, (_, due) in enumerate(epochs) if due] == evaluated


def test_progress_counts_images_of_all_stages():
    history = History((WARMUP, MAIN))
    total = 3 * 2 * 4 + 4 * 5 * 8
    assert history.progress == (0, total)
    history.count_step(WARMUP, torch.tensor(1.0))
    assert history.progress == (4, total)
    run_through(History((WARMUP, MAIN)))
    done = History((WARMUP, MAIN))
    run_through(done)
    assert done.progress == (total, total)
    assert (done.read_labeled, done.read_unlabeled) == (3 * 2 * 4 + 4 * 5 * 2, 4 * 5 * 6)
    assert done.stage_index == 2


def test_an_epoch_s_line_has_its_metrics_and_those_of_its_targets():
    history = History((MAIN,))
    history.label_metrics = {"pseudo_positives": 7}
    history.count_step(MAIN, torch.tensor(2.0))
    history.count_step(MAIN, torch.tensor(3.0))
    assert float(history.loss_sum) == 5.0
    history.end_epoch(MAIN, {"loss": 1.0}, networks())
    assert history.log == [{"epoch": 0, "stage": "main", "loss": 1.0, "pseudo_positives": 7}]
    assert (history.epoch, history.step, float(history.loss_sum), history.label_metrics) == (1, 0, 0.0, {})


def test_flips_of_an_epoch_are_those_since_the_last_line():
    history = History((MAIN,))
    history.log = [{"flips": 3}, {"epoch": 1}, {"flips": 4}]
    assert history.count_flips(9) == 2


@pytest.mark.parametrize(("selection", "part"), [("held_out", "held_out"), ("test_best", "test"), ("last", None)])
def test_the_best_epoch_s_weights_are_kept_by_what_the_selection_says(selection, part):
    values = {  # raw and EMA in each epoch; the third of two equals is no better
        "held_out": [(0.2, 0.1), (0.5, 0.6), (0.6, 0.6), (0.1, 0.3)],
        "test": [(0.3, 0.2), (0.1, 0.1), (0.2, 0.4), (0.4, 0.1)],
    }
    history, kept = History((MAIN,), selection=selection), []
    for epoch in range(MAIN.epochs):
        metrics = {f"{p}_map_{name}": value for p, rows in values.items() for name, value in zip(
            ("raw", "ema"), rows[epoch], strict=True)}  # fmt: skip
        made = networks()
        history.end_epoch(MAIN, metrics, made)
        kept.append(made)
    best = {"held_out": (1, "ema"), "test": (2, "ema")}.get(part or "")
    if best is None:
        assert history.best == {}
        assert not any("best" in line for line in history.log)
        return
    epoch, name = best
    assert all(torch.equal(value, kept[epoch][name].state_dict()[key]) for key, value in history.best.items())
    assert [line["best_is"] for line in history.log if "best" in line][-1] == name
    assert [line["best"] for line in history.log if "best" in line][-1] == max(max(row) for row in values[part])


def test_an_epoch_without_evaluation_is_never_the_best():
    history = History((MAIN,), selection="held_out")
    history.end_epoch(MAIN, {}, networks())
    history.end_epoch(MAIN, {"held_out_map_raw": float("nan"), "held_out_map_ema": float("nan")}, networks())
    assert history.best == {}


def test_a_checkpoint_brings_all_of_it_back():
    history = History((WARMUP, MAIN), selection="held_out")
    for epoch, stage in enumerate((WARMUP, WARMUP, WARMUP, MAIN)):
        history.end_epoch(stage, {"held_out_map_raw": 0.1 * epoch}, networks())
    history.label_metrics = {"ignored": 2}
    history.count_step(MAIN, torch.tensor(0.25))
    saved = Checkpoint(history.tensors(), {"history": json.loads(json.dumps(history.facts()))})
    other = History((WARMUP, MAIN), selection="held_out")
    other.restore(saved)
    assert other.facts() == history.facts()
    assert (other.stage, other.step, other.read_unlabeled) == (MAIN, 1, 6)
    assert all(torch.equal(other.best[name], value) for name, value in history.best.items())
    after = History((WARMUP, MAIN))
    after.start_after(saved)
    assert (after.epoch, after.step, after.log) == (4, 0, history.log)
