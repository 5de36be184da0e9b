"""Plans for a time budget: what is measured, what is chosen, what is recorded, and that training keeps to it."""

import json
from typing import Any

import numpy as np
import pytest
import torch

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.linear.heads import DenseRows
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.search import search_settings
from tagspread.methods import get_method
from tagspread.progress import Stopwatch
from tagspread.train import plan as plan_module
from tagspread.train.config import make_config
from tagspread.train.deadline import Deadline, seconds_of
from tagspread.train.plan import Counts, Planner, Rates, estimate, ladder, make_planner, measure
from tagspread.train.preflight import resolve_mode, seeded_backbone

CPU = torch.device("cpu")
LITE: dict[str, Any] = {"preset": "default", "backbone": "tf_efficientnet_lite0"}
COUNTS = Counts(labeled=100, unlabeled=500, test=200, classes=20)
RATES = Rates(size=288, decode=400.0, score=40.0, train=10.0, fit=1e9, width=1280)
SMALL: dict[str, Any] = {
    "backbone": "small",
    "image_size": 24,
    "flip": False,
    "operations": (),
    "quiet": True,
    "device": "cpu",
}


@pytest.mark.parametrize(
    "wrong", ["", "10x", "0s", "-5m", "1.2.3s", "m", 0, -1, float("inf"), float("nan"), None, True]
)
def test_a_wrong_duration_is_one_message(wrong):
    with pytest.raises(TagspreadError, match="give a duration above 0 such as 90s, 10m or 1h30m"):
        seconds_of(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "soon"}, "time is 'soon'"),
        ({"quality": "fest"}, "quality is 'fest'; it must be one of 'fast', 'good', 'best'. Did you mean"),
        ({"time": "1m", "preset": "paper"}, "those of the preset 'paper' are fixed"),
        ({"quality": "fast", "resume": True}, "a resumed run keeps its own"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_read(options, message, tmp_path):
    with pytest.raises(TagspreadError, match=message):
        ts.train(tmp_path / "no folder", tmp_path / "no table", tmp_path / "run", **options)


def test_the_ladder_goes_down_to_a_small_head_and_changes_nothing_given():
    rungs = [config for config, _ in ladder(LITE, COUNTS, CPU, "good")]
    seen = [(config.mode, config.image_size, config.search, config.flip) for config in rungs]
    assert seen == [
        ("head", 288, "full", True), ("head", 288, "short", False), ("head", 224, "short", False),
        ("head", 160, "short", False),
    ]  # fmt: skip
    seconds = [sum(estimate(config, COUNTS, RATES).values()) for config in rungs]
    assert seconds == sorted(seconds, reverse=True)
    given = LITE | {"image_size": 200, "flip": True, "seed": 7}
    for quality in plan_module.QUALITY:
        for config, _ in ladder(given, COUNTS, CPU, quality):
            assert (config.image_size, config.flip, config.seed) == (200, True, 7)
    assert {config.mode for config, _ in ladder(LITE | {"mode": "head"}, COUNTS, CPU, "best")} == {"head"}
    trained = [(config.mode, config.epochs) for config, _ in ladder(LITE | {"mode": "full"}, COUNTS, CPU, "good")]
    assert trained == [("full", 9), ("full", 6), ("full", 3)]
    assert [config.epochs for config, _ in ladder(LITE | {"epochs": 4}, COUNTS, CPU, "good")] == [4]


def test_qualities_differ_in_what_they_train():
    large = COUNTS._replace(unlabeled=5000)

    def first(quality, given=LITE):
        config, unlabeled = next(iter(ladder(given, large, CPU, quality)))
        return config.mode, config.image_size, unlabeled

    assert first("best") == ("full", 288, 5000)
    assert first("good") == ("head", 288, 5000)  # as without a quality: there is no GPU
    assert first("fast") == ("head", 224, 2000)
    assert first("fast", LITE | {"weights": "none"}) == ("full", 224, 2000)  # features of random weights mean little
    normal = make_config(**LITE)
    assert resolve_mode(normal, get_method("cap"), CPU) == next(iter(ladder(LITE, large, CPU, "good")))[0]


def test_the_estimate_is_the_work_divided_by_the_rates():
    full, head = (next(ladder(LITE | {"mode": mode}, COUNTS, CPU, "good"))[0] for mode in ("full", "head"))
    seconds = estimate(head, COUNTS, RATES)
    assert seconds["decoding"] == 800 / 400
    assert seconds["features"] == (2 * 600 + 200) / 40  # the test images are not mirrored
    smaller = estimate(next(ladder(LITE | {"mode": "head", "image_size": 144}, COUNTS, CPU, "good"))[0], COUNTS, RATES)
    assert smaller["features"] == seconds["features"] / 4
    training = estimate(full, COUNTS, RATES)["training"]
    # per epoch: the teacher scores each unlabeled image twice, both networks the test images; 8 of 64 are labeled
    assert training == pytest.approx(9 * ((2 * 500 + 2 * 200) / 40 + 500 * 64 / 56 / 10))


def plan_with(monkeypatch, time, given=LITE, counts=COUNTS, quality="good"):
    monkeypatch.setattr(plan_module, "measure", lambda *arguments, **options: RATES)
    network = seeded_backbone(make_config("default", **SETTINGS, weights="none"))
    plan_for = Planner(given, time, quality).on(network, CPU)
    assert plan_for is not None
    return plan_for(counts, (), None)


def test_the_budget_decides_how_much_is_done(monkeypatch):
    modes = []
    for time, quality in ((3600, "best"), (150, "best"), (150, "good"), (75, "good"), (50, "good"), (20, "good")):
        plan = plan_with(monkeypatch, time, quality=quality)
        assert plan.total <= time
        modes.append((plan.config.mode, plan.config.search, plan.config.image_size, plan.unlabeled))
    assert modes[0] == ("full", "full", 288, 500)
    assert modes[1] == modes[2] == ("head", "full", 288, 500)
    assert modes[3] == ("head", "short", 288, 500)
    assert modes[4] == ("head", "short", 224, 500)
    assert modes[5][:3] == ("head", "short", 160)
    assert 100 <= modes[5][3] < 500
    many = plan_with(monkeypatch, 600, LITE | {"image_size": 288}, COUNTS._replace(unlabeled=10**6))
    assert 100 <= many.unlabeled < 10**6
    assert many.total <= 600
    assert f"{many.unlabeled:,} of 1,000,000 unlabeled images" in many.in_words()
    with pytest.raises(TagspreadError, match=r"time is 5 s, but .* even the smallest plan takes about \d+ s"):
        plan_with(monkeypatch, 5)


def test_measuring_changes_neither_the_network_nor_the_random_state():
    config = make_config("default", backbone="small", weights="none", image_size=32)
    backbone = seeded_backbone(config)
    before = {name: value.clone() for name, value in backbone.backbone.network.state_dict().items()}
    state = torch.get_rng_state()
    rates = measure(backbone, config, CPU, classes=3)
    assert torch.equal(torch.get_rng_state(), state)
    after = backbone.backbone.network.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(parameter.grad is None for parameter in backbone.backbone.network.parameters())
    assert rates.decode == float("inf")
    assert rates.score > rates.train > 0
    assert rates.width == 128


def test_a_plan_is_followed_and_recorded(tmp_path, capsys):
    images, y = drawn()
    run = ts.train(images, y, tmp_path / "run", quality="fast", **SMALL | {"quiet": False})
    config = json.loads((run.path / "config.json").read_text())
    assert (config["settings"]["epochs"], config["settings"]["image_size"]) == (3, 24)
    assert config["plan"]["quality"] == "fast"
    assert config["plan"]["unlabeled"] == config["plan"]["unlabeled_available"] == 40
    assert "plan (quality fast): the whole network, 3 epochs, 24 pixels" in capsys.readouterr().out
    times = run.metrics["timings"]
    assert {"planning", "training", "labeling", "choosing thresholds"} <= times.keys()
    assert "stopped_early" not in run.metrics
    assert (
        ts.train(images, y, tmp_path / "run", resume=True, epochs=3, preset="default", **SMALL).metrics == run.metrics
    )


def test_the_unlabeled_images_of_a_small_budget_are_a_sample(tmp_path, monkeypatch):
    images, y = drawn()

    def fewer(self, *arguments):
        self.plan = plan_module.Plan(make_config("default", **SETTINGS), 10, Counts(20, 40, 0, 3), {"finish": 0.0})
        return self.plan

    monkeypatch.setattr(Planner, "_make", fewer)
    run = ts.train(images, y, tmp_path / "run", quality="fast", **SMALL)
    rows = (run.path / "split.csv").read_text().splitlines()[1:]
    parts = [row.split(",")[1] for row in rows]
    assert (parts.count("labeled"), parts.count("unlabeled"), len(parts)) == (20, 10, 30)


SETTINGS: dict[str, Any] = {"backbone": "small", "image_size": 24, "flip": False, "operations": (), "epochs": 1}


def drawn():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (60, 3)).astype(np.int8)
    images = rng.integers(0, 60, (60, 24, 24, 3)).astype(np.uint8)
    for k in range(3):
        images[y[:, k] == 1, :, 8 * k : 8 * k + 8, k] += 180
    y[20:] = -1
    return images, y


@pytest.mark.parametrize(("questions", "epochs"), [(0, 0), (1, 1), (6, 2)])
def test_training_ends_with_a_usable_model_when_the_time_is_over(tmp_path, monkeypatch, questions, epochs):
    images, y = drawn()
    asked: list[float] = []

    def is_near(self, *seconds):
        asked.extend(seconds)  # of the loop; rounds of the head ask without a number
        return len(asked) > questions

    monkeypatch.setattr(Deadline, "is_near", is_near)
    monkeypatch.setattr(plan_module, "estimate", lambda *arguments: {"finish": 0.0})
    out = tmp_path / "run"
    options = SMALL | {"epochs": 4, "batch": 16, "batch_labeled": 4}
    run = ts.train(images, y, out, time="1h", test_share=0.3, **options)
    assert run.metrics["stopped_early"] == f"the time budget was spent after {epochs} of 4 epochs"
    assert [line["epoch"] for line in run.log] == list(range(epochs))
    assert 0 <= run.metrics["test"]["mAP"] <= 1
    assert run.metrics["gain"]["part"] == "test"  # it has a labeled-only model, too
    first = ts.load(run).predict(images).probabilities
    assert len(np.unique(first)) > 50
    again = ts.train(images, y, out, resume=True, test_share=0.3, **options)
    assert again.metrics["stopped_early"] == run.metrics["stopped_early"]  # it is finished


def test_the_head_is_fitted_with_what_was_tried_in_time():
    rows, labels = torch.randn(60, 5), torch.zeros(24, 2, dtype=torch.int8)
    labels[::3, 0] = labels[1::3, 1] = 1
    made = [get_method("cap")]
    searched = search_settings(
        DenseRows(rows[:24]), labels, DenseRows(rows[24:]), made, head=LogisticHead(), classes=("a", "b"),
        out_of_time=lambda: True,
    )  # fmt: skip
    assert [trial.settings.ridge for trial in searched.trials] == [0.3]
    assert searched.settings.unlabeled_weight == 0  # nothing shows that the unlabeled rows help
    seen = []
    both = search_settings(
        DenseRows(rows[:24]), labels, DenseRows(rows[24:]), made, head=LogisticHead(), classes=("a", "b"),
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert len(both.trials) == 5 + 1 + 1 + 1
    assert seen[-1] == (4 * (5 + 3 * 3), 4 * (5 + 3 * 3))


def test_steps_of_a_stopwatch_add_up(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 7.0, 8.0])
    monkeypatch.setattr("tagspread.progress.perf_counter", lambda: next(clock))
    stopwatch = Stopwatch()
    stopwatch.begin("decoding")
    stopwatch.begin("training")
    stopwatch.begin("decoding")
    assert stopwatch.seconds() == {"starting": 1.0, "decoding": 3.0, "training": 4.0}


def test_an_earlier_session_is_added():
    stopwatch = Stopwatch()
    stopwatch.add({"decoding": 5.0})
    assert stopwatch.seconds()["decoding"] == 5.0


def test_requests_without_time_or_quality_plan_nothing():
    config = make_config("default", **SETTINGS, weights="none")
    assert make_planner({"preset": "paper"}, None, None).on(seeded_backbone(config), CPU) is None
    assert Planner({}).deadline == Deadline()
