"""A head on a frozen network: an ordinary run, with settings chosen on the labeled part and features kept."""

import csv
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.linear.search import INTERVALS
from tagspread.methods import get_method
from tagspread.progress import Watcher
from tagspread.train import head, preflight
from tagspread.train.config import make_config, with_priors
from tagspread.train.trainer import RunOptions, run_training
from tagspread.vision.backbones import build_network
from tests.train.conftest import make_dataset


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run of the head mode on digits, with the features of an untrained network."""
    dataset = make_dataset(train=260, labeled=60)
    config = make_config(mode="head", backbone="small", weights="none", image_size=24, flip=False)
    folder = tmp_path_factory.mktemp("head")
    return dataset, run_training(
        dataset, config, folder / "run", RunOptions(cache=folder / "cache"), watcher=Watcher(quiet=True)
    )


def test_the_run_is_an_ordinary_one(run):
    dataset, done = run
    names = {file.name for file in done.path.iterdir()}
    assert {"config.json", "log.jsonl", "metrics.json", "labels.json", "ema.safetensors"} <= names
    settings = json.loads((done.path / "config.json").read_text())["settings"]
    assert (settings["mode"], settings["epochs"], settings["warmup_epochs"]) == ("head", 0, 0)
    chosen = done.log[-1]["chosen"]
    assert chosen["ridge"] > 0
    assert ("pseudo_labels.csv" in names) == (chosen["unlabeled_weight"] > 0)
    assert done.metrics["test"]["mAP"] > 0.3  # chance is the mean share of positives, about 0.2
    gain = done.metrics["gain"]
    assert ("left_out" in gain, "difference" in gain) == (
        chosen["unlabeled_weight"] == 0,
        chosen["unlabeled_weight"] > 0,
    )
    tagger = ts.load(done.path)
    images = dataset.store.batch(dataset.test).permute(0, 2, 3, 1).numpy()
    found = tagger.predict(images).probabilities
    truth = dataset.y[dataset.test]
    # the saved network, shown images, says what the features said
    assert ts.mean_average_precision(found, truth) == pytest.approx(done.metrics["test"]["mAP"], abs=1e-6)


def test_the_network_below_the_head_is_the_one_it_began_with(run):
    _, done = run
    trained = load_file(done.path / "ema.safetensors")
    torch.manual_seed(1)
    fresh = build_network("small", 10, weights="none").state_dict()
    for name, value in fresh.items():
        if name.startswith("backbone."):
            assert torch.equal(trained[name], value)
    assert not torch.equal(trained["head.weight"], fresh["head.weight"])


def test_a_finished_run_can_be_resumed(run, silent):
    dataset, done = run
    config = make_config(mode="head", backbone="small", weights="none", image_size=24, flip=False)
    again = run_training(
        dataset, config, done.path, RunOptions(resume=True, cache=done.path.parent / "cache"), watcher=silent
    )
    assert again.metrics["test"]["mAP"] == done.metrics["test"]["mAP"]
    assert again.log == done.log


def test_a_run_that_lost_a_file_is_finished_anew_with_its_own_network(tmp_path, silent):
    donor = build_network("test_resnet", 1, weights="none")
    tensors = {name: value.contiguous() for name, value in donor.backbone.state_dict().items()}
    save_file(tensors, tmp_path / "weights.safetensors")
    config = make_config(
        mode="head", backbone="test_resnet", weights=str(tmp_path / "weights.safetensors"), image_size=24, flip=False
    )
    dataset = make_dataset()
    done = run_training(dataset, config, tmp_path / "run", watcher=silent)
    before = load_file(done.path / "ema.safetensors")
    (done.path / "labels.json").unlink()
    again = run_training(dataset, config, tmp_path / "run", RunOptions(resume=True), watcher=silent)
    after = load_file(done.path / "ema.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.metrics["test"]["mAP"] == done.metrics["test"]["mAP"]


def test_when_the_mode_is_chosen():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    auto = make_config(backbone="tf_efficientnet_lite0")

    def mode(config=auto, device=cpu, method="cap"):
        return preflight.resolve_mode(config, get_method(method), device).mode

    assert auto.mode == "auto"
    assert mode() == "head"
    assert mode(device=gpu) == "full"
    assert mode(method="freematch") == "full"
    assert mode(replace(auto, weights="none")) == "full"
    assert mode(replace(auto, head="ml_decoder")) == "full"
    assert make_config(epochs=3).mode == "full"  # who says how long to train wants it trained
    assert make_config("paper").mode == "full"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"head": "ml_decoder"}, "mode 'head' fits a linear head, but head is 'ml_decoder'"),
        ({"method": "freematch"}, "trains the network in its own way"),
        ({"method": "d2l"}, "trains the network in its own way"),
        ({"mode": "heads"}, "mode is 'heads'"),
    ],
)
def test_what_cannot_be_done_on_features(settings, words, silent, tmp_path):
    given = {"mode": "head", "backbone": "small", "weights": "none", "image_size": 24, **settings}
    with pytest.raises(TagspreadError, match=words):
        run_training(make_dataset(), make_config(**given), tmp_path / "run", watcher=silent)
    assert not (tmp_path / "run").exists()


def test_the_weight_of_the_unlabeled_can_be_given(tmp_path, silent):
    dataset = make_dataset(train=120, labeled=40)
    config = make_config(mode="head", backbone="small", weights="none", image_size=24, flip=False, unlabeled_weight=0.5)
    done = run_training(dataset, config, tmp_path / "run", watcher=silent)
    assert done.log[-1]["chosen"]["unlabeled_weight"] == 0.5
    assert (tmp_path / "run" / "pseudo_labels.csv").exists()


def test_priors_are_kept_while_the_interval_is_chosen(tmp_path, silent):
    dataset = make_dataset(train=160, labeled=60)
    config = make_config(mode="head", backbone="small", weights="none", image_size=24, flip=False, unlabeled_weight=1.0)
    config = with_priors(config, {dataset.classes[0]: 0.5})
    run = run_training(dataset, config, tmp_path / "run", watcher=silent)
    options = run.log[-1]["chosen"]["options"]
    assert options["priors"] == {dataset.classes[0]: 0.5}
    assert (options["keep_pos"], options["keep_neg"]) in INTERVALS
    lines = (run.path / "pseudo_labels.csv").read_text().splitlines()
    rows = [row for row in csv.reader(lines) if row[1] == dataset.classes[0]]
    assert sum(row[2] == "1" for row in rows) == int(options["keep_pos"] * 0.5 * 100)
    with pytest.raises(TagspreadError, match="'asl'; use method 'cap', or omit the priors"):
        with_priors(make_config(method="asl"), {})


def test_a_network_without_weights_is_noticed(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(Watcher, "note", lambda self, text: said.append(text))
    dataset = make_dataset(train=120, labeled=40)
    config = make_config(mode="head", backbone="small", image_size=24, flip=False)
    run_training(dataset, config, tmp_path / "run", watcher=Watcher(quiet=True))
    assert any("small begins with random weights" in text for text in said)
    auto = replace(config, mode="auto")
    assert preflight.resolve_mode(auto, get_method("cap"), torch.device("cpu")).mode == "full"


def test_how_to_train_is_no_question_of_the_head(tmp_path):
    images = np.zeros((4, 24, 24, 3), np.uint8)
    with pytest.raises(TagspreadError, match="epochs has no effect in mode 'head', which does not train the network"):
        ts.train(images, np.eye(4, dtype=int), out=tmp_path / "run", backbone="small", mode="head", epochs=5)


def test_the_log_says_when_each_round_ended(tmp_path, monkeypatch, silent):
    ticks = itertools.count()
    monkeypatch.setattr(head, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    config = make_config(mode="head", backbone="small", weights="none", image_size=24, flip=False, unlabeled_weight=1.0)
    done = run_training(make_dataset(train=120, labeled=40), config, tmp_path / "run", watcher=silent)
    seconds = [line["seconds"] for line in done.log if line["stage"] == "head"]
    assert len(seconds) > 1
    assert min(seconds) >= 0
    assert sum(seconds) < next(ticks)  # each line has its own time, so that they add up to the whole
