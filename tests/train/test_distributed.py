"""Several processes train as one process does: the same examples, targets and weights, whatever their number."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tagspread.data.images.store import TensorStore
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS
from tagspread.progress import Watcher
from tagspread.train import loop
from tagspread.train.config import TrainConfig
from tagspread.train.distributed import Processes
from tagspread.train.interrupts import Interrupted, StopSignal
from tagspread.train.sharded_store import ShardedStore, part_of
from tagspread.train.trainer import RunOptions, run_training
from tests.train.conftest import TINY, make_dataset
from tests.train.processes import in_processes, outcomes

FROZEN = {**TINY, "batch_norm": "frozen", "warmup_epochs": 1, "epochs": 2}


def shared(dataset, processes):
    """Give each process its part of the images."""
    if processes.size == 1:
        return dataset
    store = dataset.store
    local = TensorStore(store.items[part_of(processes)].clone(), store.device)
    return replace(dataset, store=ShardedStore(local, len(store), processes))


def train(processes, folder, settings, options=None, **sizes):
    """Train on tiny data; return the targets of every epoch, the weights, the metrics and the log."""
    targets = []
    original = loop.label_unlabeled

    def recorded(training, labeled, watcher=None):
        original(training, labeled, watcher)
        targets.append(training.pseudo_labels.targets.labels.clone())

    loop.label_unlabeled = recorded
    try:
        run = run_training(
            shared(make_dataset(**sizes), processes),
            TrainConfig(**settings),
            folder,
            options,
            watcher=Watcher(quiet=True),
            processes=processes,
        )
    finally:
        loop.label_unlabeled = original
    return targets, load_file(run.path / "ema.safetensors"), run.metrics, run.log


def assert_like_one_process(found, expected, tolerance=1e-5):
    """Compare targets bit for bit, weights by their relative difference."""
    targets, weights, metrics, log = found
    expected_targets, expected_weights, expected_metrics, expected_log = expected
    assert len(targets) == len(expected_targets)
    for of_epoch, wanted in zip(targets, expected_targets, strict=True):
        assert torch.equal(of_epoch, wanted)
    for name, wanted in expected_weights.items():
        if wanted.is_floating_point():
            assert (weights[name] - wanted).norm() <= tolerance * wanted.norm(), name
    assert metrics["test"]["mAP"] == pytest.approx(expected_metrics["test"]["mAP"], abs=max(1e-3, tolerance))
    for line, wanted_line in zip(log, expected_log, strict=True):
        assert line.keys() - {"sent_bytes"} == wanted_line.keys()
        assert line["loss"] == pytest.approx(wanted_line["loss"], rel=tolerance)
        assert line.get("flips") == wanted_line.get("flips")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return train(Processes(), tmp_path_factory.mktemp("one") / "run", FROZEN)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_targets_weights_and_metrics_are_those_of_one_process(size, expected, tmp_path):
    results = in_processes(size, train, tmp_path / "several", FROZEN)
    for found in results:
        assert_like_one_process(found, expected)
    for name, value in results[0][1].items():
        assert all(torch.equal(value, other[1][name]) for other in results)


LABELING_METHODS = [name for name in METHODS if name not in ("cap", "drml", "llr", "llct", "llcp", "bce")]


def train_all(processes, folder, changes_of):
    quick = FROZEN | {"epochs": 1}
    sizes = {"train": 100, "test": 30, "labeled": 30}
    return {name: train(processes, folder / name, quick | changes, **sizes) for name, changes in changes_of.items()}


def test_other_methods_and_losses_too(tmp_path):
    changes: dict[str, Any] = {name: {"method": name} for name in LABELING_METHODS}
    changes["paper"] = {"reduction": "mean_mean", "teacher_flips": True, "flip": True, "selection": "held_out"}
    changes["few"] = {"warmup_batch": 1, "batch_labeled": 1}  # less than one image for each process
    expected = train_all(Processes(), tmp_path / "one", changes)
    found = in_processes(2, train_all, tmp_path / "several", changes)[0]
    for name in changes:
        # d2l amplifies rounding: weights that differ by 1e-7 at the start differ by 1e-2 after this training
        assert_like_one_process(found[name], expected[name], 2e-2 if name == "d2l" else 1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "llr"}, "ranks the losses of all rows of a batch"),
        ({"method": "freematch", "method_options": {"fairness": 0.1}}, "set fairness to 0"),
        ({"method": "dicap", "head": "ml_decoder"}, "set contrast to 0"),
        ({"method": "drml", "warmup_epochs": 0}, "four updates"),
    ],
)
def test_methods_that_compare_the_rows_of_a_batch_are_refused(settings, reason, tmp_path):
    several = Processes()
    several.size = 2
    with pytest.raises(TagspreadError, match=f"cannot be trained by 2 processes: .*{reason}"):
        run_training(make_dataset(), TrainConfig(**FROZEN | settings), tmp_path / "run", processes=several)


class StopAfter(StopSignal):
    steps = 7

    @property
    def received(self):
        StopAfter.steps -= 1
        return StopAfter.steps == 0

    @received.setter
    def received(self, value):
        pass


def stop(processes, folder, settings):
    loop.StopSignal = StopAfter  # type: ignore[attr-defined]
    try:
        train(processes, folder, settings)
    except Interrupted:
        return (folder / "checkpoint" / "state.safetensors").exists()
    finally:
        loop.StopSignal = StopSignal  # type: ignore[attr-defined]


def test_a_run_resumes_with_another_number_of_processes(expected, tmp_path):
    assert in_processes(3, stop, tmp_path / "run", FROZEN) == [True] * 3
    found = in_processes(2, train, tmp_path / "run", FROZEN, RunOptions(resume=True))[0]
    assert_like_one_process(found, (expected[0][-len(found[0]) :], *expected[1:]))


def parts_of_store(processes):
    items = torch.arange(3 * 101, dtype=torch.float32).reshape(101, 3)
    held = TensorStore(items[part_of(processes)].clone(), "cpu")
    store = ShardedStore(held, 101, processes)
    rng = np.random.default_rng(processes.rank)
    for _ in range(3):
        parts = [rng.integers(0, 101, rng.integers(0, 9)) for _ in range(4)]
        for wanted, got in zip(parts, store.batches(parts), strict=True):
            assert torch.equal(got, items[wanted])
    rows = np.array([5, 3, 3, 100, 0])
    squares = store.gathered(rows, lambda local, own: local.batch(own) ** 2)
    assert torch.equal(squares, items[rows] ** 2)
    only = store.gathered(rows[:1], lambda local, own: local.batch(own), first_only=True)
    assert torch.equal(only, items[rows[:1]] if processes.is_first else items[:0])
    return held.items.nbytes


def test_each_process_holds_its_part_and_gets_any_rows():
    held = in_processes(3, parts_of_store)
    assert sum(held) == 101 * 3 * 4
    assert max(held) - min(held) <= 12


def statistics(processes, folder):
    _, weights, metrics, _ = train(processes, folder, FROZEN | {"batch_norm": "batch"})
    return weights, metrics


def test_batch_statistics_are_averaged_over_the_processes(tmp_path):
    first, second = in_processes(2, statistics, tmp_path / "run")
    assert all(torch.equal(value, second[0][name]) for name, value in first[0].items())
    one, metrics = statistics(Processes(), tmp_path / "one")
    mean = next(name for name in one if name.endswith("running_mean"))
    assert not torch.equal(first[0][mean], one[mean])  # documented: each process has the statistics of its part
    assert (first[0][mean] - one[mean]).norm() < 0.5 * one[mean].norm()
    assert first[1]["test"]["mAP"] == pytest.approx(metrics["test"]["mAP"], abs=0.1)


def die(processes, folder):
    if processes.rank == 1:
        loop.label_unlabeled = lambda *given: os._exit(9)
    train(processes, folder, FROZEN)


def test_a_killed_process_ends_the_others_with_one_line(tmp_path):
    found: list[Any] = outcomes(3, die, tmp_path / "run")
    assert found[1] == ("gone", 9)
    errors = [found[0][1], found[2][1]]
    assert sorted(error[0] for error in errors) == ["Lost", "Silent"]
    (message,) = (error[1] for error in errors if error[0] == "Lost")
    assert message.startswith("process 1 on ")
    assert "has ended, so training ends. Resume the run with --resume" in message
    assert (tmp_path / "run" / "checkpoint" / "state.safetensors").exists()


def differ(processes):
    processes.check_same("data", "x" * (1 + processes.rank // 2))


def test_processes_with_different_data_are_named():
    found = outcomes(3, differ)
    for kind, (error, message, _) in found:
        assert (kind, error) == ("error", "TagspreadError")
        assert message.startswith("the processes have different data: x in process 0 on ")
        assert "but xx in process 2 on" in message
