"""Did the unlabeled images help? The labeled-only model is what it is said to be, and so is the answer."""

import json
import re
from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

import tagspread as ts
from tagspread.methods import METHODS
from tagspread.methods.base import Method, Targets
from tagspread.progress import Output, Watcher
from tagspread.run.config import RunConfig
from tagspread.train import finalize, loop
from tagspread.train.finalize import gain_in_words
from tagspread.train.interrupts import Interrupted, StopSignal
from tagspread.train.trainer import RunOptions, run_training
from tagspread.vision.backbones import build_network
from tests.train.conftest import make_dataset

FILE = "labeled_only.safetensors"


@dataclass(frozen=True)
class Harmful(Method):
    """Takes the unlabeled set for the opposite of what it looks like."""

    def targets(self, scores, labeled, state):
        return Targets((scores < scores.median(0).values).to(torch.int8))


@pytest.fixture
def harmful(monkeypatch):
    monkeypatch.setitem(METHODS, "harmful", Harmful)
    return {"method": "harmful", "warmup_epochs": 24, "epochs": 4, "lr": 0.01}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def network_of(file, classes=10):
    network = build_network("small", classes, weights="none")
    network.load_state_dict(load_file(file))
    return network.eval()


def mean_ap(network, dataset, rows):
    with torch.no_grad():
        scores = network(dataset.store.batch(rows)).numpy()
    return float(np.mean([average_precision_score(dataset.y[rows][:, k], scores[:, k]) for k in range(10)]))


def test_the_end_of_the_warm_up_is_kept_and_compared(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(), tmp_path / "cap", watcher=silent)
    alone = run_training(dataset, tiny(method="asl"), tmp_path / "asl", watcher=silent)
    kept = load_file(run.path / FILE)
    same(kept, load_file(alone.path / "model.safetensors"))
    assert kept.keys() == load_file(run.path / "model.safetensors").keys()
    metrics = json.loads((run.path / "metrics.json").read_text())
    before, after = (mean_ap(network_of(run.path / name), dataset, dataset.test) for name in (FILE, "ema.safetensors"))
    assert metrics["labeled_only"]["mAP"] == pytest.approx(before)
    gain = metrics["gain"]
    assert gain["difference"] == pytest.approx(after - before)
    assert gain["interval_90"][0] <= gain["difference"] <= gain["interval_90"][1]
    assert (gain["part"], gain["images"]) == ("test", 60)
    assert metrics["labeled_only"]["interval_90"][0] < before < metrics["labeled_only"]["interval_90"][1]
    assert metrics["test"]["mAP"] == pytest.approx(after)


def test_a_labeled_only_method_compares_nothing(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(method="bce"), tmp_path / "run", watcher=silent)
    assert not (run.path / FILE).exists()
    assert not {"gain", "labeled_only"} & run.metrics.keys()
    assert gain_in_words(run.metrics) is None


def test_the_held_out_part_is_preferred(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(selection="held_out", held_out=0.25), tmp_path / "run", watcher=silent)
    assert (run.metrics["gain"]["part"], run.metrics["gain"]["images"]) == ("held_out", 10)
    assert "; with so few images this is a rough estimate" in str(gain_in_words(run.metrics))


def test_a_warm_up_that_is_shared(dataset, tiny, silent, tmp_path):
    alone = run_training(dataset, tiny(method="asl"), tmp_path / "asl", watcher=silent)
    run = run_training(dataset, tiny(), tmp_path / "cap", RunOptions(after=alone.path), watcher=silent)
    same(load_file(run.path / FILE), load_file(alone.path / "model.safetensors"))
    assert "difference" in run.metrics["gain"]


def test_start_from_the_average_is_kept_as_it_starts(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(warm_start_from="ema"), tmp_path / "cap", watcher=silent)
    alone = run_training(dataset, tiny(method="asl"), tmp_path / "asl", watcher=silent)
    same(load_file(run.path / FILE), load_file(alone.path / "ema.safetensors"))


@pytest.mark.parametrize("at", [2, 9])
def test_a_resumed_run_finds_it(at, dataset, tiny, silent, tmp_path, monkeypatch):
    """Stopped in the warm-up, and in the main stage."""
    whole = run_training(dataset, tiny(), tmp_path / "whole", watcher=silent)
    steps = 0

    class StopAfter(StopSignal):
        @property
        def received(self):
            nonlocal steps
            steps += 1
            return steps == at

        @received.setter
        def received(self, value):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(loop, "StopSignal", StopAfter)
        with pytest.raises(Interrupted):
            run_training(dataset, tiny(), tmp_path / "parts", watcher=silent)
    assert (tmp_path / "parts" / FILE).exists() == (at == 9)
    resumed = run_training(dataset, tiny(), tmp_path / "parts", RunOptions(resume=True), watcher=silent)
    same(load_file(whole.path / FILE), load_file(resumed.path / FILE))
    assert resumed.metrics["gain"] == whole.metrics["gain"]
    run_training(dataset, tiny(method="asl", epochs=0), tmp_path / "parts", RunOptions(overwrite=True), watcher=silent)
    assert not (tmp_path / "parts" / FILE).exists()


@pytest.mark.parametrize("options", [{}, {"keep_pos": 0.8}])
def test_a_fitted_head_is_compared_with_the_probe_of_the_labeled_alone(options, dataset, tiny, tmp_path):
    """With the penalty that the run says it chose, or with the default where the user gave options."""
    config, said = tiny(start="fitted_head", warmup_epochs=0, epochs=1, method_options=options), StringIO()
    run = run_training(dataset, config, tmp_path / "run", watcher=Watcher(console=Output(file=said)))
    network = network_of(run.path / FILE)
    assert run.metrics["labeled_only"]["what"] == "a linear head on the frozen network"
    assert run.metrics["labeled_only"]["mAP"] == pytest.approx(mean_ap(network, dataset, dataset.test))
    (chosen,) = re.findall(r"L2 penalty ([\d.]+),", said.getvalue()) or [None]
    assert (chosen is None) == bool(options)
    ridge = 0.3 if chosen is None else float(chosen)
    with torch.no_grad():
        x = network.features(dataset.store.batch(dataset.labeled)).numpy()
        found = network(dataset.store.batch(dataset.labeled)).numpy()
    x = (x - x.mean(0)) / np.where(x.std(0) > 1e-6, x.std(0), 1.0)
    y = dataset.y[dataset.labeled]
    for k in range(3):
        reference = LogisticRegression(C=1 / (len(x) * ridge), tol=1e-8, max_iter=1000).fit(x, y[:, k])
        np.testing.assert_allclose(found[:, k], reference.decision_function(x), atol=0.02)
    # the unlabeled set has no part in it: another unlabeled set, the same head
    other = replace(dataset, unlabeled=dataset.unlabeled[:100])
    again = run_training(other, config, tmp_path / "other", watcher=Watcher(quiet=True))
    same(load_file(run.path / FILE), load_file(again.path / FILE))


def test_a_run_that_ends_with_a_warmup_of_a_fitted_head_is_measured_as_it_is_shipped(dataset, tiny, silent, tmp_path):
    config = tiny(start="fitted_head", warmup_epochs=3, epochs=0, loss="bce", lr=0.0005)
    run = run_training(dataset, config, tmp_path / "run", watcher=silent)
    ((_, logits),) = ts.load(run, device="cpu").logits(dataset.store.batch(dataset.test).numpy())
    measured = ts.mean_average_precision(logits, dataset.y[dataset.test])
    assert run.metrics["test"]["mAP"] == pytest.approx(measured)
    assert run.metrics["test"]["mAP"] != pytest.approx(run.metrics["labeled_only"]["mAP"])


@pytest.mark.parametrize(("unlabeled_weight", "same"), [(0.0, True), (1.0, False)])
def test_a_unlabeled_without_weight_has_no_part_in_the_head(unlabeled_weight, same, dataset, tiny, silent, tmp_path):
    config = tiny(
        start="fitted_head", warmup_epochs=0, epochs=1, lr=0.0, batch_norm="frozen", unlabeled_weight=unlabeled_weight
    )
    run = run_training(dataset, config, tmp_path / "run", watcher=silent)
    tests = run.metrics["test"]["mAP"], run.metrics["labeled_only"]["mAP"]
    assert (tests[0] == pytest.approx(tests[1])) == same


def test_harm_is_told_and_the_better_one_is_kept_if_asked(harmful, dataset, tiny, silent, tmp_path):
    plain = run_training(dataset, tiny(**harmful), tmp_path / "plain", watcher=silent)
    assert plain.metrics["gain"]["interval_90"][1] < 0
    assert str(gain_in_words(plain.metrics)).startswith("the unlabeled images hurt: mAP ")
    assert str(gain_in_words(plain.metrics)).endswith("; --keep better would have kept the labeled-only model")
    labels = json.loads((plain.path / "labels.json").read_text())
    assert (labels["model"], labels["network"]) == ("ema.safetensors", "ema")

    run = run_training(dataset, tiny(**harmful), tmp_path / "better", RunOptions(keep="better"), watcher=silent)
    assert run.metrics["gain"] == plain.metrics["gain"]
    assert run.metrics["network"] == "labeled_only"
    assert run.metrics["test"]["mAP"] == run.metrics["labeled_only"]["mAP"]
    assert "chosen on the test images" in run.metrics["warning"]
    assert str(gain_in_words(run.metrics)).endswith("; the run keeps the labeled-only model")
    assert run.metrics["kept"].startswith("the labeled-only model: its mAP is higher")
    assert "kept" not in plain.metrics
    labels = json.loads((run.path / "labels.json").read_text())
    assert (labels["model"], labels["network"]) == (FILE, "labeled_only")
    found = ts.load(run.path, device="cpu").predict(dataset.store.batch(dataset.test).numpy())
    measured = ts.mean_average_precision(found.probabilities, dataset.y[dataset.test])
    assert measured == pytest.approx(run.metrics["labeled_only"]["mAP"])
    same(load_file(plain.path / "model.safetensors"), load_file(run.path / "model.safetensors"))


def test_keep_better_is_remembered_when_the_run_is_gone_on_with(harmful, dataset, tiny, silent, tmp_path):
    run_training(dataset, tiny(**harmful), tmp_path / "run", RunOptions(keep="better"), watcher=silent)
    (tmp_path / "run" / "metrics.json").unlink()
    run = run_training(dataset, tiny(**harmful), tmp_path / "run", RunOptions(resume=True), watcher=silent)
    assert run.metrics["network"] == "labeled_only"


def test_the_best_of_a_shared_warmup_is_not_forgotten(harmful, tiny, silent, tmp_path):
    dataset = make_dataset(labeled=100)
    config = tiny(**harmful, selection="held_out")
    labels_alone = replace(config, method="asl")
    run_training(dataset, labels_alone, tmp_path / "asl", watcher=silent)
    whole = run_training(dataset, config, tmp_path / "whole", watcher=silent)
    shared = run_training(dataset, config, tmp_path / "shared", RunOptions(after=tmp_path / "asl"), watcher=silent)
    assert (
        whole.metrics["held_out"]["mAP"] > whole.log[-1]["held_out_map_ema"] + 0.1
    )  # it was best before the unlabeled set
    assert shared.metrics["network"] == whole.metrics["network"]
    assert shared.metrics["held_out"] == whole.metrics["held_out"]


def test_a_run_that_ends_with_its_warmup_is_known_by_what_a_warmup_hands_on(dataset, tiny, silent, tmp_path):
    config = tiny(method="asl", ema_decay=0.9997, ema_warmup=False, warmup_epochs=12)
    run = run_training(dataset, config, tmp_path / "run", watcher=silent)
    assert run.metrics["network"] == "raw"
    assert run.metrics["test"]["mAP"] == run.log[-1]["test_map_raw"] > run.log[-1]["test_map_ema"]
    tagger = ts.load(run.path, device="cpu")
    assert tagger.artifact.model.name == "model.safetensors"
    found = tagger.predict(dataset.store.batch(dataset.test).numpy()).probabilities
    assert ts.mean_average_precision(found, dataset.y[dataset.test]) == pytest.approx(run.metrics["test"]["mAP"])
    averaged = run_training(dataset, replace(config, warm_start_from="ema"), tmp_path / "ema", watcher=silent)
    assert averaged.metrics["network"] == "ema"


def test_keep_better_keeps_what_the_unlabeled_made_if_that_is_better(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(), tmp_path / "run", RunOptions(keep="better"), watcher=silent)
    assert run.metrics["gain"]["difference"] > 0
    assert run.metrics["network"] == "ema"
    assert "warning" not in run.metrics
    assert json.loads((run.path / "config.json").read_text())["keep"] == "better"


@pytest.mark.parametrize(("high", "kept"), [(0.01, False), (-0.01, True)])
def test_a_difference_within_its_interval_changes_nothing(high, kept, dataset, tiny, silent, tmp_path, monkeypatch):
    """The labeled-only model is kept only if the whole interval is on its side."""
    monkeypatch.setattr(finalize, "paired_difference_interval", lambda *_, **__: (-0.02, -0.05, high))
    run = run_training(dataset, tiny(epochs=1), tmp_path / "run", RunOptions(keep="better"), watcher=silent)
    assert (run.metrics["network"] == "labeled_only") == ("kept" in run.metrics) == kept


def test_a_run_of_an_earlier_version_says_keep_better(tmp_path):
    written = {"tagspread": "0.1.0", "settings": {"method": "cap", "backbone": "small"}}
    for keep_better, keep in ((True, "better"), (False, "last")):
        (tmp_path / "config.json").write_text(json.dumps(written | {"keep_better": keep_better}))
        assert RunConfig.read(tmp_path).keep == keep


def test_nothing_to_measure_on_is_said_with_what_to_do(dataset, tiny, silent, tmp_path):
    run = run_training(replace(dataset, test=dataset.test[:0]), tiny(epochs=1), tmp_path / "run", watcher=silent)
    assert (run.path / FILE).exists()
    assert "set some aside with --test-share 0.2" in str(gain_in_words(run.metrics))
    y = dataset.y.copy()
    y[dataset.test] = 0
    none = run_training(
        replace(dataset, y=y), tiny(epochs=1), tmp_path / "none", RunOptions(keep="better"), watcher=silent
    )
    assert "carries any tag" in str(gain_in_words(none.metrics))
    cold = run_training(
        dataset, tiny(warmup_epochs=0, epochs=1), tmp_path / "cold", RunOptions(keep="better"), watcher=silent
    )
    assert not (cold.path / FILE).exists()
    assert "no labeled-only model to compare with; give warmup_epochs" in str(gain_in_words(cold.metrics))


def test_no_difference_in_words():
    metrics = {
        "network": "ema",
        "labeled_only": {"mAP": 0.5, "what": "the network after the warm-up"},
        "gain": {"difference": -0.004, "interval_90": (-0.02, 0.01), "part": "held_out", "images": 1234},
    }
    assert gain_in_words(metrics) == (
        "the unlabeled images made no measurable difference: mAP 49.6 against 50.0 without them (the network after the "
        "warm-up), a loss of 0.4 points on 1,234 held-out images (90 % interval \u22122.0 to 1.0)"
    )


@pytest.mark.parametrize("difference", [0.0004, 0.0, -0.0004])
def test_what_rounds_to_nothing_is_no_difference(difference):
    labeled_only = {"mAP": 0.31, "interval_90": (0.3, 0.32), "what": "the network after the warm-up"}
    gain = {"difference": difference, "interval_90": (-0.004, 0.0003), "part": "test", "images": 1}
    assert gain_in_words({"network": "ema", "labeled_only": labeled_only, "gain": gain}) == (
        "the unlabeled images made no difference: mAP 31.0 with and without them (the network after the warm-up), "
        "on 1 test image (90 % interval \u22120.4 to 0.0 points); with so few images this is a rough estimate"
    )


def test_the_figures_that_are_shown_agree():
    """49.94 and 50.03 are shown as 49.9 and 50.0, and 49.86 and 49.94 both as 49.9: so are their differences."""
    for before, after, words in (
        (0.4994, 0.5003, "a gain of 0.1 points"),
        (0.4986, 0.4994, "49.9 with and without"),
        (0.4996, 0.5014, "a gain of 0.1 points"),
        (0.5014, 0.4996, "a loss of 0.1 points"),
    ):
        gain = {"difference": after - before, "interval_90": (-0.01, 0.01), "part": "test", "images": 50}
        metrics = {"network": "ema", "labeled_only": {"mAP": before, "what": "x"}, "gain": gain}
        assert words in str(gain_in_words(metrics))
