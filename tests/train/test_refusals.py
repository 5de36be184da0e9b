"""What is refused, before training where that is possible, and what is said about it."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tagspread as ts
from tagspread.data.datasets.digits import digit_canvases
from tagspread.methods import METHODS
from tagspread.run import folder
from tagspread.train import preflight
from tagspread.train.experiment import plan_stages, size_notes
from tagspread.train.step import Step
from tagspread.train.trainer import RunOptions, run_training


def test_out_of_memory_names_what_to_lower(dataset, tiny, silent, tmp_path, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Step, "__call__", full)
    with pytest.raises(ValueError, match=r"out of memory on cpu. Lower batch \(now 32\)"):
        run_training(dataset, tiny(), tmp_path / "run", watcher=silent)


def test_a_full_disk_is_found_before_training(dataset, tiny, silent, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ValueError, match=r"has 0.0 GB free but the run needs"):
        run_training(dataset, tiny(), tmp_path / "run", watcher=silent)


def test_the_output_folder_is_the_user_s(dataset, tiny, silent, tmp_path):
    quick = tiny(warmup_epochs=1, method="asl")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="holds files that do not belong to a run"):
            run_training(dataset, quick, tmp_path / "notes", RunOptions(overwrite=overwrite), watcher=silent)
    with pytest.raises(ValueError, match="is a file"):
        run_training(dataset, quick, tmp_path / "notes" / "diary.txt", watcher=silent)
    run_training(dataset, quick, tmp_path / "run", watcher=silent)
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds another run"):
        run_training(dataset, quick, tmp_path / "run", watcher=silent)
    run_training(dataset, quick, tmp_path / "run", RunOptions(overwrite=True), watcher=silent)
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"  # only what a run writes is replaced


def test_unwritable_folder(dataset, tiny, silent, tmp_path, monkeypatch):
    def refuse(_folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder, "check_writable", refuse)
    with pytest.raises(ValueError, match=r"cannot be written to .Permission denied"):
        run_training(dataset, tiny(), tmp_path / "run", watcher=silent)


def test_problems_that_cannot_be_learned(dataset, tiny, silent, tmp_path):
    def run(dataset, **changes):
        run_training(dataset, tiny(**changes), tmp_path / "run", watcher=silent)

    with pytest.raises(ValueError, match="the unlabeled set is empty"):
        run(replace(dataset, unlabeled=dataset.unlabeled[:0]))
    with pytest.raises(ValueError, match="no image is labeled"):
        run(replace(dataset, labeled=dataset.labeled[:0]))
    with pytest.raises(ValueError, match="no labeled image carries any tag"):
        run(replace(dataset, y=np.zeros_like(dataset.y)))
    with pytest.raises(ValueError, match="batch is 1, but a batch holds labeled and unlabeled images"):
        run(dataset, batch=1)
    with pytest.raises(ValueError, match="is in more than one part"):
        replace(dataset, test=dataset.unlabeled[:3])
    with pytest.raises(ValueError, match="warmup_epochs is 0 and epochs is 0, so there is nothing to train"):
        run(dataset, warmup_epochs=0, epochs=0)
    assert not (tmp_path / "run").exists()


def test_one_class_a_missing_class_and_fewer_labels_than_classes_are_said_and_work(dataset, tiny, silent, tmp_path):
    one = replace(dataset, y=dataset.y[:, :1], classes=("0",))
    assert "only one class" in " ".join(one.check_trainable(True))
    run_training(one, tiny(), tmp_path / "one", watcher=silent)
    y = dataset.y.copy()
    y[dataset.labeled, 9] = 0
    missing = replace(dataset, y=y)
    assert "no labeled image carries 9" in " ".join(missing.check_trainable(True))
    run = run_training(missing, tiny(), tmp_path / "missing", watcher=silent)
    saved = load_file(run.path / "checkpoint" / "state.safetensors")
    assert (saved["targets.labels"][:, 9] != 1).all()
    y[dataset.labeled] = 0  # negatives are labels, too
    with pytest.raises(ValueError, match="no labeled image carries any tag"):
        replace(dataset, y=y).check_trainable(True)
    y[dataset.labeled] = -1
    with pytest.raises(ValueError, match="no image is labeled"):
        replace(dataset, y=y).check_trainable(True)
    few = replace(dataset, labeled=dataset.labeled[:6])
    assert "6 labeled images for 10 classes" in " ".join(few.check_trainable(True))
    one = replace(dataset, labeled=dataset.labeled[:1])
    assert "1 labeled image for 10 classes" in " ".join(one.check_trainable(True))
    config = tiny(batch=500, batch_labeled=7, warmup_batch=8)  # batches larger than the set are reduced, with a note
    assert [stage.batch for stage in plan_stages(few, config, METHODS["cap"]())] == [6, 6 + 160]
    assert "batch_labeled is 7 but there are 6" in " ".join(size_notes(few, config))
    run_training(few, config, tmp_path / "few", watcher=silent)


def test_devices(monkeypatch):
    assert preflight.choose_device("cpu").type == "cpu"
    for name in ("gpu", "tpu"):
        with pytest.raises(ValueError, match=f"device '{name}' cannot be used; give auto, cpu or cuda\\.$"):
            preflight.choose_device(name)


def test_tensorboard_missing_is_one_message(dataset, tiny, silent, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'tagspread\[tensorboard\]'"):
        run_training(dataset, tiny(), tmp_path / "run", RunOptions(tensorboard=True), watcher=silent)


def test_wrong_weights_are_noticed_before_images_are_decoded_and_random_numbers_stay(tmp_path, monkeypatch):
    drawn, _ = digit_canvases(12, 1)
    (tmp_path / "net.pth").write_bytes(b"no tensors")
    monkeypatch.setattr("tagspread.api.dataset_from_arrays", lambda *_, **__: pytest.fail("decoded too early"))
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    with pytest.raises(ValueError, match="does not hold plain tensors"):
        ts.train(drawn.images, drawn.y, tmp_path / "run", backbone="test_resnet", weights=str(tmp_path / "net.pth"))
    assert torch.equal(torch.random.get_rng_state(), before)
