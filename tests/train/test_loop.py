"""Training as a whole, on tiny data: what it learns, that it repeats itself, and that it can be stopped anywhere."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tagspread.errors import TagspreadError
from tagspread.methods import METHODS
from tagspread.methods.base import Method, Targets
from tagspread.train import experiment, loop
from tagspread.train import scoring as score_module
from tagspread.train.experiment import plan_stages
from tagspread.train.interrupts import Interrupted, StopSignal
from tagspread.train.step import Step
from tagspread.train.student import Student
from tagspread.train.trainer import RunOptions, run_training
from tests.train.conftest import make_dataset


def weights(run):
    return load_file(run.path / "model.safetensors") | {
        f"ema.{k}": v for k, v in load_file(run.path / "ema.safetensors").items()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_two_runs_with_one_seed_are_identical_and_the_folder_is_complete(dataset, tiny, silent, tmp_path):
    first, second = (run_training(dataset, tiny(), tmp_path / name, watcher=silent) for name in "ab")
    assert_same(weights(first), weights(second))
    other = run_training(dataset, tiny(seed=7), tmp_path / "c", watcher=silent)
    assert not torch.equal(weights(first)["head.weight"], weights(other)["head.weight"])
    log = [json.loads(line) for line in (first.path / "log.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in log] == ["warmup"] * 2 + ["main"] * 3
    assert {"loss", "test_map_raw", "test_map_ema", "pseudo_positives", "flips", "seconds"} <= log[-1].keys()
    assert json.loads((first.path / "labels.json").read_text())["classes"] == list(dataset.classes)
    assert json.loads((first.path / "config.json").read_text())["settings"]["seed"] == 1
    metrics = json.loads((first.path / "metrics.json").read_text())
    assert metrics["network"] == "ema"
    assert metrics["test"]["mAP"] == pytest.approx(log[-1]["test_map_ema"])
    pseudo_labels = (first.path / "pseudo_labels.csv").read_text().splitlines()
    assert pseudo_labels[0] == "image,tag,target,score,rank,flips"
    assert list(dict.fromkeys(line.split(",")[0] for line in pseudo_labels[1:])) == [
        dataset.name(k) for k in dataset.unlabeled
    ]
    low, high = metrics["test"]["interval_90"]
    assert low < metrics["test"]["mAP"] < high


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_trains(method, dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(method=method), tmp_path / "run", watcher=silent)
    stages = {line["stage"] for line in run.log}
    assert stages == ({"warmup", "main"} if METHODS[method].uses_unlabeled else {"warmup"})
    assert all(np.isfinite(line["loss"]) for line in run.log)


def test_the_caller_s_random_numbers_are_left_alone(dataset, tiny, silent, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    run_training(dataset, tiny(warmup_epochs=1, epochs=0, method="asl"), tmp_path / "run", watcher=silent)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("at", [1, 3, 7, 12, 15])
def test_stopped_at_any_step_and_resumed_gives_the_same_weights(at, dataset, tiny, silent, tmp_path, monkeypatch):
    whole = run_training(dataset, tiny(), tmp_path / "whole", watcher=silent)
    count = 0

    class StopAfter(StopSignal):
        @property
        def received(self):
            nonlocal count
            count += 1
            return count == at

        @received.setter
        def received(self, value):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(loop, "StopSignal", StopAfter)
        with pytest.raises(Interrupted):
            run_training(dataset, tiny(), tmp_path / "parts", watcher=silent)
    resumed = run_training(dataset, tiny(), tmp_path / "parts", RunOptions(resume=True), watcher=silent)
    assert_same(weights(whole), weights(resumed))
    keep = ("epoch", "stage", "test_map_raw", "test_map_ema", "pseudo_positives", "flips")
    shorten = lambda log: [{k: v for k, v in line.items() if k in keep} for line in log]  # noqa: E731
    assert shorten(resumed.log) == shorten(whole.log)


def test_resuming_a_finished_run_changes_nothing(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(), tmp_path / "run", watcher=silent)
    facts = (run.path / "labels.json").read_text().replace('"policy": "match"', '"policy": "mine"')
    (run.path / "labels.json").write_text(facts)
    again = run_training(dataset, tiny(), tmp_path / "run", RunOptions(resume=True), watcher=silent)
    assert_same(weights(run), weights(again))
    assert again.log == run.log
    assert again.metrics == json.loads((run.path / "metrics.json").read_text())
    assert '"policy": "mine"' in (run.path / "labels.json").read_text()


def test_a_checkpoint_of_other_data_or_settings_is_refused(dataset, tiny, silent, tmp_path):
    run_training(dataset, tiny(epochs=1), tmp_path / "run", watcher=silent)
    with pytest.raises(ValueError, match=r"other settings: lr \(0.003 then, 0.1 now\)"):
        run_training(dataset, tiny(epochs=1, lr=0.1), tmp_path / "run", RunOptions(resume=True), watcher=silent)
    faster = tiny(epochs=1, score_batch=16, graphs="off")  # how fast is the machine's affair
    assert run_training(dataset, faster, tmp_path / "run", RunOptions(resume=True), watcher=silent).log
    with pytest.raises(ValueError, match="of other data"):
        run_training(
            make_dataset(labeled=41), tiny(epochs=1), tmp_path / "run", RunOptions(resume=True), watcher=silent
        )
    with pytest.raises(ValueError, match="there is no checkpoint"):
        run_training(dataset, tiny(), tmp_path / "nothing", RunOptions(resume=True), watcher=silent)


def test_method_state_is_saved(dataset, tiny, silent, tmp_path, monkeypatch):
    """A method that counts its epochs in its state, and labels by it."""

    @dataclass(frozen=True)
    class Counting(Method):
        def start(self, labeled):
            return {"epochs": torch.zeros(1)}

        def targets(self, scores, labeled, state):
            state["epochs"] += 1
            return Targets((scores > 0).to(torch.int8), torch.full_like(scores, float(state["epochs"])))

    monkeypatch.setitem(METHODS, "counting", Counting)
    run = run_training(dataset, tiny(method="counting"), tmp_path / "run", watcher=silent)
    saved = load_file(run.path / "checkpoint" / "state.safetensors")
    assert saved["method.epochs"].item() == 3
    assert (saved["targets.weight"] == 3).all()


def test_a_method_may_label_per_step_and_change_the_loss(dataset, tiny, silent, tmp_path, monkeypatch):
    seen = []

    @dataclass(frozen=True)
    class PerStep(Method):
        per_step = True

        def targets(self, scores, labeled, state):
            return Targets(torch.full_like(scores, -1))

        def step_targets(self, scores, targets, labeled, state):
            seen.append(scores.shape)
            return Targets((scores > 0).to(torch.int8), (scores.abs() > 0.1).float())

        def loss(self, output, targets, loss, state):
            return 0 * loss(output, targets.labels, targets.weight)

    monkeypatch.setitem(METHODS, "per_step", PerStep)
    run_training(dataset, tiny(method="per_step", epochs=1), tmp_path / "run", watcher=silent)
    plan = plan_stages(dataset, tiny(), PerStep())[1]
    assert seen == [(plan.batch_unlabeled, 10)] * plan.steps


def test_wrong_labels_of_a_step_are_refused(dataset, tiny, silent, tmp_path, monkeypatch):
    """On a GPU the loss cannot afford to look at them."""

    @dataclass(frozen=True)
    class Wrong(Method):
        per_step = True

        def targets(self, scores, labeled, state):
            return Targets(torch.full_like(scores, -1))

        def step_targets(self, scores, targets, labeled, state):
            return Targets(torch.full_like(scores, 2))

    monkeypatch.setitem(METHODS, "wrong", Wrong)
    with pytest.raises(TagspreadError, match="Wrong returned targets that hold 2; give 1"):
        run_training(dataset, tiny(method="wrong", epochs=1), tmp_path / "run", watcher=silent)


def test_labels_of_a_step_rest_on_the_same_look_as_those_of_an_epoch(dataset, tiny, silent, tmp_path, monkeypatch):
    looks = []
    plain = score_module.score

    def watched(network, store, rows, **how):
        looks.append((len(rows), how.get("flips")))
        return plain(network, store, rows, **how)

    monkeypatch.setattr(experiment, "score", watched)
    config = tiny(method="freematch", epochs=1, flip=True, teacher_flips=True, evaluate_every=9)
    run_training(replace(dataset, test=dataset.test[:0]), config, tmp_path / "run", watcher=silent)
    steps = [flips for rows, flips in looks if rows != len(dataset.unlabeled)]
    assert steps
    assert all(steps)


def test_batch_sizes_follow_the_labeled_share(tiny):
    """The released batch sizes for the four shares, and any other share."""
    for share, batch, known, warm in [(0.05, 64, 4, 16), (0.1, 64, 8, 32), (0.15, 32, 6, 48), (0.2, 32, 8, 64)]:
        n = int(share * 5717)
        dataset = make_dataset(train=400, test=10)
        big = replace(dataset, labeled=np.arange(20), unlabeled=np.arange(20, 400))
        object.__setattr__(big, "labeled", np.arange(n))
        object.__setattr__(big, "unlabeled", np.arange(n, 5717))
        stages = plan_stages(big, tiny(batch=batch, warmup_epochs=12, epochs=28), METHODS["cap"]())
        assert (stages[0].batch_labeled, stages[1].batch_labeled, stages[1].batch_unlabeled) == (
            warm,
            known,
            batch - known,
        )
        assert stages[1].steps == -(-(5717 - n) // (batch - known))


def test_held_out_selection_keeps_the_best_and_never_looks_at_the_test_part(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(selection="held_out", held_out=0.25), tmp_path / "run", watcher=silent)
    figures = [max(line["held_out_map_raw"], line["held_out_map_ema"]) for line in run.log]
    assert run.metrics["held_out"]["mAP"] == pytest.approx(max(figures))
    assert run.metrics["held_out"]["images"] == 10
    assert (run.path / "best.safetensors").is_file()
    blind = replace(dataset, test=dataset.test[:0])
    again = run_training(blind, tiny(selection="held_out", held_out=0.25), tmp_path / "blind", watcher=silent)
    assert_same(load_file(run.path / "best.safetensors"), load_file(again.path / "best.safetensors"))


def test_best_on_test_is_named_as_what_it_is(dataset, tiny, silent, tmp_path):
    run = run_training(dataset, tiny(selection="test_best"), tmp_path / "run", watcher=silent)
    best = max(max(line["test_map_raw"], line["test_map_ema"]) for line in run.log)
    assert run.metrics["test"]["mAP"] == pytest.approx(best)
    assert "chosen on the test images" in run.metrics["warning"]
    with pytest.raises(ValueError, match="there is no test set"):
        run_training(
            replace(dataset, test=dataset.test[:0]), tiny(selection="test_best"), tmp_path / "x", watcher=silent
        )


def test_start_of_the_main_stage_from_the_average(dataset, tiny, silent, tmp_path, monkeypatch):
    begun = []
    original = Student.begin_stage

    def spy(self, stage):
        teacher = {k: v.clone() for k, v in self.teacher.state_dict().items()}
        original(self, stage)
        begun.append((teacher, {k: v.clone() for k, v in self.network.state_dict().items()}))

    monkeypatch.setattr(Student, "begin_stage", spy)
    run_training(dataset, tiny(warm_start_from="ema", epochs=1), tmp_path / "run", watcher=silent)
    assert_same(*begun[1])


def test_nan_loss_stops_names_the_step_and_keeps_the_checkpoint(dataset, tiny, silent, tmp_path, monkeypatch):
    calls = 0
    original = Step.__call__

    def poisoned(self, *batch):
        nonlocal calls
        calls += 1
        return original(self, *batch) * (float("nan") if calls == 9 else 1)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", poisoned)
        with pytest.raises(ValueError, match=r"the loss became nan in epoch 3, step \d.*previous checkpoint is kept"):
            run_training(dataset, tiny(warmup_batch=10), tmp_path / "run", watcher=silent)
    resumed = run_training(dataset, tiny(warmup_batch=10), tmp_path / "run", RunOptions(resume=True), watcher=silent)
    whole = run_training(dataset, tiny(warmup_batch=10), tmp_path / "whole", watcher=silent)
    assert_same(weights(whole), weights(resumed))


def test_fitted_head_starts_better_than_a_random_one(silent, tmp_path, tiny):
    from sklearn.linear_model import LogisticRegression

    from tagspread.linear.logistic import fit_logistic

    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype(np.float32)
    y = (x @ rng.normal(size=(4, 3)) + rng.normal(size=(80, 3)) > 0).astype(np.int8)
    fitted = fit_logistic(torch.from_numpy(x)[None], torch.from_numpy(y), torch.zeros(3, 5), ridge=0.1)
    for k in range(3):
        reference = LogisticRegression(C=1 / (80 * 0.1), tol=1e-8).fit(x, y[:, k])
        np.testing.assert_allclose(fitted[k, :4], reference.coef_[0], atol=2e-3)
        np.testing.assert_allclose(fitted[k, 4], reference.intercept_[0], atol=2e-3)
    dataset = make_dataset(train=300, labeled=100)
    config = tiny(start="fitted_head", warmup_epochs=0, epochs=1, lr=0.0, weight_decay=0.0, batch_norm="frozen")
    run = run_training(dataset, config, tmp_path / "run", watcher=silent)
    random = run_training(dataset, replace(config, start="warmup"), tmp_path / "random", watcher=silent)
    assert run.metrics["test"]["mAP"] > random.metrics["test"]["mAP"]
    with pytest.raises(ValueError, match="which fits a linear head"):
        run_training(dataset, replace(config, head="ml_decoder"), tmp_path / "x", watcher=silent)


def test_unknown_labels_of_labeled_rows_take_no_part(dataset, tiny, silent, tmp_path):
    """Turning an unknown entry's row order around changes nothing; making it known does."""
    y = dataset.y.copy()
    y[dataset.labeled[:20], 0] = -1
    unknown = replace(dataset, y=y)
    run = run_training(unknown, tiny(epochs=1), tmp_path / "unknown", watcher=silent)
    labels = load_file(run.path / "checkpoint" / "state.safetensors")["targets.labels"]
    known = y[dataset.labeled[20:], 0]
    assert int((labels[:, 0] == 1).sum()) == (known == 1).sum() * len(dataset.unlabeled) // 20
