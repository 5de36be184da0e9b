"""What a run must never do: lose a stranger's files, find a mistake late, or leave a user without a way on."""

import json
import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from tagspread.data.images.store import TensorStore
from tagspread.run import schema
from tagspread.run.checkpoint import load_checkpoint
from tagspread.run.folder import RunFolder
from tagspread.train import trainer as session
from tagspread.train.config import TrainConfig
from tagspread.train.interrupts import Interrupted, StopSignal
from tagspread.train.student import make_optimizer, make_schedule
from tagspread.train.trainer import RunOptions, run_training
from tagspread.vision.backbones import build_network
from tests.train.conftest import make_dataset


def test_overwrite_knows_a_run_from_another_program_s_folder(dataset, tiny, silent, tmp_path):
    theirs = {"config.json": '{"architectures": ["Bert"]}', "model.safetensors": "weights", "report.html": "page"}
    for name, text in theirs.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="holds files that do not belong to a run"):
        run_training(dataset, tiny(), tmp_path, RunOptions(overwrite=True), watcher=silent)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == theirs
    with pytest.raises(ValueError, match="is not a run folder"):
        RunFolder(tmp_path).read_json("config.json", schema.CONFIG)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head": "ml_decoder", "start": "fitted_head"}, "fits a linear head"),
        ({"method_options": {"priors": {"eleven": 0.5}}}, "eleven"),
        ({"loss_options": {"gamma": 1}}, "the loss 'asl' has no option 'gamma'; its options are gamma_pos"),
    ],
)
def test_overwrite_removes_nothing_before_everything_is_checked(changes, words, dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(warmup_epochs=1, method="asl"), tmp_path / "run", watcher=silent)
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=words):
        run_training(dataset, tiny(**changes), run.path, RunOptions(overwrite=True), watcher=silent)
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("steps", range(1, 13))
def test_a_schedule_of_any_length(steps):
    optimizer = make_optimizer(build_network("small", 1, weights="none"), TrainConfig(lr=1.0))
    schedule = make_schedule(optimizer, steps)
    for _ in range(steps):
        assert 0 < optimizer.param_groups[0]["lr"] <= 1.0
        optimizer.step()
        schedule.step()


def test_a_run_stopped_before_its_first_epoch_can_be_resumed(dataset, tiny, silent, tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(session, "train_loop", _stop)
        with pytest.raises(Interrupted):
            run_training(dataset, tiny(), folder.path, watcher=silent)
    assert load_checkpoint(folder.checkpoint).facts["history"]["epoch"] == 0
    folder.checkpoint.unlink()  # killed even earlier: only the configuration is there
    run_training(dataset, tiny(), folder.path, RunOptions(resume=True), watcher=silent)
    assert (folder.path / "metrics.json").is_file()


def _stop(*_):
    raise Interrupted


def test_resume_looks_at_the_images_themselves(dataset, tiny, silent, tmp_path):
    run_training(dataset, tiny(epochs=1), tmp_path / "run", watcher=silent)
    rows = np.arange(len(dataset.store))
    others = replace(dataset, store=TensorStore(255 - dataset.store.batch(rows), "cpu"))
    with pytest.raises(ValueError, match="of other data"):
        run_training(others, tiny(epochs=1), tmp_path / "run", RunOptions(resume=True), watcher=silent)


def test_any_image_that_is_another_makes_it_other_data(dataset, tmp_path):
    before = dataset.fingerprint()
    images = dataset.store.batch(np.arange(len(dataset.store))).clone()
    for row in (0, 1, len(images) // 2, len(images) - 1):
        changed = images.clone()
        changed[row, 0, 0, 0] += 1
        assert replace(dataset, store=TensorStore(changed, "cpu")).fingerprint() != before
    files = [tmp_path / f"{k}.png" for k in range(len(images))]
    for file in files:
        file.write_bytes(b"as it was")
    named = replace(dataset, files=files)
    before = named.fingerprint()
    os.utime(files[1], (0, 0))
    assert named.fingerprint() == before  # a copy is no other image
    files[1].write_bytes(b"as it is now")
    assert named.fingerprint() != before


def test_figures_are_valid_json_where_nothing_can_be_measured(dataset, tiny, silent, tmp_path):
    y = dataset.y.copy()
    y[dataset.test] = 0
    run = run_training(replace(dataset, y=y), tiny(epochs=1), tmp_path / "run", watcher=silent)
    assert json.loads((run.path / "metrics.json").read_text())["test"]["mAP"] is None
    assert json.loads((run.path / "labels.json").read_text())["preprocessing"]["image_size"] == 24
    assert run.metrics["seconds"] == pytest.approx(sum(line["seconds"] for line in run.log), abs=0.06)


def test_held_out_figures_come_with_a_warning(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(selection="held_out"), tmp_path / "run", watcher=silent)
    assert "chosen on" in run.metrics["warning"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"flip": "False"}, "flip is 'False'; give true or false"),
        ({"lr": "abc"}, "lr is 'abc'; give a number"),
        ({"lr_head": -1}, "lr_head is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"operations": "Invert"}, "operations is 'Invert'; give a list"),
        ({"operations": ["Inwert"]}, "Did you mean 'Invert'"),
        ({"operations": None}, "operations is None; give a list"),
        ({"backbone": 3}, "backbone is 3; give a string"),
        ({"method_options": [1]}, r"method_options is \[1\]; give a mapping"),
        ({"cutout": 2}, "cutout is 2"),
        ({"epochs": 2.5}, "epochs is 2.5; give a whole number"),
        ({"image_size": 15}, "image_size is 15; give 16 to 2,048 pixels"),
        ({"image_size": 2049}, "image_size is 2049; give 16 to 2,048 pixels"),
        ({"epochs": True}, "epochs is True"),
        ({"epochs": math.nan}, "epochs is nan; give a whole number"),
        ({"batch": math.inf}, "batch is inf; give a whole number"),
        ({"seed": 2**32}, "seed is 4294967296; give a whole number below 4,294,967,296"),
    ],
)
def test_settings_of_the_wrong_kind(settings, words):
    with pytest.raises(ValueError, match=words):
        TrainConfig(**settings)


def test_numbers_of_numpy_become_plain_ones():
    config = TrainConfig.from_dict({"epochs": np.int64(3), "lr": np.float32(0.5)})
    assert json.loads(json.dumps(config.to_dict()))["epochs"] == 3


def test_signals_are_a_question_first_and_an_order_the_second_time():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.received
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_small_sets_with_the_default_preset_s_sizes(silent, tmp_path, tiny):
    few = make_dataset(train=60, labeled=5)
    run = run_training(few, tiny(batch_labeled=8, batch=8), tmp_path / "run", watcher=silent)
    assert torch.isfinite(torch.tensor([line["loss"] for line in run.log])).all()
