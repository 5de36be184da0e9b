"""DRML: the network, its four updates compared with a loop, which rows move when, and that the features stay frozen."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tagspread as ts
from tagspread.data.images.store import TensorStore
from tagspread.errors import TagspreadError
from tagspread.methods import Labeled, get_method
from tagspread.methods.drml import FourUpdates
from tagspread.run.pseudo_labels import read_pseudo_labels
from tagspread.train.config import make_config
from tagspread.train.dataset import Dataset
from tagspread.train.experiment import Experiment
from tagspread.train.feature_cache import FeatureCache
from tagspread.train.features import on_features
from tagspread.train.trainer import RunOptions, run_training
from tagspread.vision.backbones import build_network
from tagspread.vision.dual_relation import DualRelation
from tests.methods.helpers import assert_same, named, saved, train_in_two_parts

CHANNELS, CLASSES = 5, 3


@pytest.fixture
def head():
    torch.manual_seed(0)
    return DualRelation(CHANNELS, CLASSES)


# --- the network ---


def test_layers_are_as_wide_as_published_and_begin_as_published(head):
    shapes = {name: tuple(layer.weight.shape) for name, layer in head.named_modules() if isinstance(layer, nn.Linear)}
    assert shapes == {
        "projector.0": (1024, CHANNELS), "projector.2": (1024, 1024),
        "first.0": (800, 1024), "first.2": (CLASSES, 800), "second.0": (800, 1024), "second.2": (CLASSES, 800),
        "relation.0": (1000, CLASSES**2), "relation.2": (CLASSES, 1000),
    }  # fmt: skip
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            assert not layer.bias.any()
            assert layer.weight.std().item() == pytest.approx((2 / layer.in_features) ** 0.5, rel=0.1)


@torch.no_grad()
def test_the_relation_network_sees_every_pair_of_answers(head):
    features = torch.randn(4, CHANNELS)
    head.center.copy_(torch.arange(CHANNELS))
    head.spread.fill_(2.0)
    first, second = head.both(features)
    assert first.shape == second.shape == (4, CLASSES)
    assert ((first > 0) & (first < 1) & (first != second)).all()
    standard = (features - torch.arange(CHANNELS)) / 2
    projected = head.projector[2](torch.where(head.projector[0](standard) > 0, 1.0, 0.1) * head.projector[0](standard))
    torch.testing.assert_close(first, head.first(projected))
    torch.testing.assert_close(second, head.second(projected))
    products = torch.tensor(
        [[a * b for a in one for b in two] for one, two in zip(first.tolist(), second.tolist(), strict=True)]
    )
    torch.testing.assert_close(head(features), head.relation(products))
    torch.testing.assert_close(head.relate(first, second), head(features))


# --- one step ---


def batch():
    """Two labeled rows, one moved row (soft targets), two unlabeled rows; one label is unknown."""
    labels = torch.tensor([[1.0, 0, -1], [0, 1, 1], [0.8, 0.1, 0.3], [-1, -1, -1], [-1, -1, -1]])
    features = torch.randn(5, CHANNELS, generator=torch.Generator().manual_seed(3))
    return features, labels, torch.ones(5, CLASSES), torch.tensor([4, 0, 2])


def losses_by_hand(head, features, labels):
    """Compute L and D entry by entry."""
    first, second = head.both(features)
    third = head(features).sigmoid()
    known = [(i, k) for i in range(len(labels)) for k in range(CLASSES) if labels[i, k] >= 0]
    error = sum(
        scale * sum((found[i, k] - labels[i, k]) ** 2 for i, k in known) / len(known)
        for scale, found in ((1.0, first), (1.0, second), (0.2, third))
    )
    unlabeled = [i for i in range(len(labels)) if all(labels[i, k] == -1 for k in range(CLASSES))]
    gap = 1e-5 * sum(abs(first[i, k] - second[i, k]) for i in unlabeled for k in range(CLASSES))
    return error, gap


def test_two_steps_equal_a_loop_of_four_updates(head):
    features, labels, weight, places = batch()
    other = copy.deepcopy(head)
    distance = torch.full((6,), torch.inf)
    step = FourUpdates(head, {"distance": distance})
    pair, projector = [*other.first.parameters(), *other.second.parameters()], list(other.projector.parameters())
    plans = [
        (torch.optim.Adam([*projector, *pair], lr=1e-4), lambda error, gap: error),
        (torch.optim.Adam(pair, lr=1e-5), lambda error, gap: error - gap),
        (torch.optim.Adam(projector, lr=1e-5), lambda error, gap: gap),
        (torch.optim.Adam(other.relation.parameters(), lr=1e-3), lambda error, gap: error),
    ]
    for _ in range(2):
        expected = losses_by_hand(other, features, labels)[0]
        for number, (optimizer, aim) in enumerate(plans):
            if number == 3:
                first, second = other.both(features)
            other.zero_grad()
            aim(*losses_by_hand(other, features, labels)).backward()
            optimizer.step()
        assert step(features, labels, weight, places).item() == pytest.approx(expected.item(), rel=1e-5)
        apart = (first - second).square().sum(1).detach()
        torch.testing.assert_close(distance[[4, 0, 2]], apart[2:], rtol=1e-3, atol=1e-6)
        assert distance[[1, 3, 5]].isinf().all()
    for (name, mine), theirs in zip(head.named_parameters(), other.parameters(), strict=True):
        # Adam divides by the size of the gradient: near 0, rounding errors become visible
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    ("number", "parts"),
    [(0, {"projector", "first", "second"}), (1, {"first", "second"}), (2, {"projector"}), (3, {"relation"})],
)
def test_each_update_touches_only_its_own_parameters(head, number, parts):
    step = FourUpdates(head, {"distance": torch.zeros(6)})
    assert [optimizer.param_groups[0]["lr"] for optimizer in step.optimizers] == [1e-4, 1e-5, 1e-5, 1e-3]
    for other in (0, 1, 2, 3):
        if other != number:
            step.optimizers[other].param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(head.state_dict())
    step(*batch())
    changed = {
        name.partition(".")[0] for name, value in head.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == parts


@torch.no_grad()
def disagreement(head, features):
    first, second = head.both(features)
    return float((first - second).abs().sum())


def test_the_classifiers_part_and_the_projector_brings_them_together(head):
    features, labels, weight, places = batch()
    for number, falls in ((1, False), (2, True)):
        tried = copy.deepcopy(head)
        step = FourUpdates(tried, {"distance": torch.zeros(6)})
        for other, optimizer in enumerate(step.optimizers):
            optimizer.param_groups[0]["lr"] = 1e-4 if other == number else 0.0
        only_unlabeled = torch.full_like(labels, -1)  # no labeled row: L is 0
        gap = disagreement(tried, features)
        for _ in range(5):
            step(features, only_unlabeled, weight, places)
        assert (disagreement(tried, features) < gap) == falls


def test_a_step_of_the_warm_up_has_no_rows_of_the_unlabeled(head):
    features, labels, weight, _ = batch()
    distance = torch.full((6,), 7.0)
    step = FourUpdates(head, {"distance": distance})
    loss = step(features[:2], labels[:2], weight[:2], torch.empty(0, dtype=torch.int64))
    assert torch.isfinite(loss)
    assert (distance == 7).all()


def moved_by_hand(kept, distances, soft, count):
    """The ``count`` unlabeled rows with the best agreement, the first among equals, keep their soft targets."""
    waiting = sorted((d, row) for row, d in enumerate(distances) if row not in kept)
    return kept | {row: soft[row] for _, row in waiting[:count]}


@pytest.mark.parametrize("rows", [1, 9, 10, 40])
@pytest.mark.parametrize("moved", [0.0, 0.1, 0.25, 1.0])
def test_rows_move_for_good_when_their_time_has_come(rows, moved):
    labeled = Labeled(torch.tensor([[1, 0]]), named(2), epochs=6, unlabeled_size=rows)
    method = get_method("drml", moved=moved, after=0.4)
    state = method.start(labeled)
    assert state["soft"].shape == (rows, 2)
    random = torch.Generator().manual_seed(rows)
    kept: dict[int, list[float]] = {}
    for epoch in range(6):
        scores = torch.randn(rows, 2, generator=random)
        state["distance"].copy_(torch.rand(rows, generator=random).mul(4).round())  # with ties
        if epoch > 0.4 * 6:
            count = int(moved * (rows - len(kept)) + 1e-9)
            kept = moved_by_hand(kept, state["distance"].tolist(), scores.sigmoid().tolist(), count)
        found = method.targets(scores, replace(labeled, epoch=epoch), state)
        assert found.weight is None
        for row in range(rows):
            assert found.labels[row].tolist() == kept.get(row, [-1.0, -1.0])
        found.labels.fill_(9.0)  # the returned targets are a copy
    if moved == 1:
        assert len(kept) == rows


def test_the_published_schedule():
    """150 rounds; the first rows move after the 52nd."""
    config = make_config("paper", method="drml")
    assert (config.epochs, config.batch, config.batch_labeled, config.warmup_epochs) == (150, 128, 64, 0)
    labeled = Labeled(torch.tensor([[1]]), named(1), epochs=150, unlabeled_size=100)
    method = get_method("drml")
    state = method.start(labeled)
    state["distance"].zero_()
    for epoch, count in [(0, 0), (51, 0), (52, 10), (53, 19), (54, 27)]:
        found = method.targets(torch.zeros(100, 1), replace(labeled, epoch=epoch), state)
        assert int((found.labels >= 0).sum()) == count


class Silent(nn.Module):
    """A backbone whose last feature is 0 in dark images."""

    num_features = 2

    def forward(self, x):
        bright = x.mean((1, 2, 3))
        return torch.stack([bright, (bright - 0.5).clamp(min=0)], 1)


def test_features_are_those_of_the_plain_view_and_standardized_by_the_labeled_part(silent, tmp_path):
    """A feature that is constant on the labeled set is centered but not scaled; it may vary on the unlabeled set."""
    store = TensorStore(
        np.full((4, 3, 2, 2), [[[[10]]], [[[30]]], [[[250]]], [[[0]]]], dtype=np.uint8), torch.device("cpu")
    )
    dataset = Dataset(store, np.array([[1], [0], [-1], [1]]), ("a",), np.arange(2), np.array([2]), np.array([3]))
    network = build_network("small", 1, weights="none", normalize="none")
    head = DualRelation(2, 1)
    network.backbone, network.head = Silent(), head  # type: ignore[assignment]
    config, cpu = make_config("paper", method="drml"), torch.device("cpu")
    experiment = Experiment(dataset, config, get_method("drml"), (), cpu, network, torch.get_rng_state())
    learned, views = on_features(experiment, tmp_path, silent)
    assert views is None
    seen = learned.dataset
    expected = [[value / 255, max(0.0, value / 255 - 0.5)] for value in (10, 30, 250, 0)]
    np.testing.assert_allclose(seen.store.batch(np.arange(4)), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(head.center.numpy(), [20 / 255, 0], rtol=1e-5)
    np.testing.assert_allclose(head.spread.numpy(), [10 / 255, 1], rtol=1e-4)
    assert seen.fingerprint() == dataset.fingerprint()


def test_a_frozen_network_sees_images_like_those_it_was_trained_on():
    """The paper's preset omits the normalization; a trained network adapts to that, a frozen one cannot."""
    assert make_config("paper").normalize == "none"
    assert make_config("paper", method="drml").normalize == "weights"
    assert make_config("paper", method="drml", normalize="none").normalize == "none"  # overrides the recipe


# --- a run ---

RUN = {"method": "drml", "warmup_epochs": 0, "epochs": 4, "batch": 16, "batch_labeled": 6, "ema_decay": 0.0}
OPTIONS = {"moved": 0.25, "after": 0.3}


def test_features_have_no_mirror_image(small_problem, tiny, silent, tmp_path):
    how = RUN | {"method_options": OPTIONS, "flip": True}
    runs = [
        run_training(small_problem, tiny(teacher_flips=flips, **how), tmp_path / str(flips), watcher=silent)
        for flips in (False, True)
    ]
    assert_same(*(load_file(run.path / "model.safetensors") for run in runs))


def test_a_run_trains_the_head_on_a_frozen_network_and_can_be_stopped(
    small_problem, tiny, silent, tmp_path, monkeypatch
):
    config = tiny(method_options=OPTIONS, **RUN)
    run = run_training(small_problem, config, tmp_path / "whole", watcher=silent)
    torch.manual_seed(config.seed)
    start = get_method("drml").network(build_network("small", len(small_problem.classes), weights="none"))
    begun = start.state_dict()
    for name in ("model.safetensors", "ema.safetensors"):
        tensors = load_file(run.path / name)
        assert tensors.keys() == begun.keys()
        for key, value in tensors.items():
            same = key.startswith("backbone.") or key in ("scale", "shift")
            assert torch.equal(value, begun[key]) == same, key
    state = saved(run.path)
    # 40 rows: from the third epoch on, a quarter of the remaining ones
    assert int((state["method.soft"] >= 0).all(1).sum()) == 10 + 7
    assert ((state["method.soft"] == -1) | ((state["method.soft"] > 0) & (state["method.soft"] < 1))).all()
    assert torch.equal(state["targets.labels"], state["method.soft"])
    assert torch.isfinite(state["method.distance"]).all()
    assert [line.get("ignored") for line in run.log] == [400, 400, 300, 230]
    for image, soft in zip(read_pseudo_labels(run.path), state["targets.labels"], strict=True):
        tags = [name for name, value in zip(small_problem.classes, soft, strict=True) if value >= 0.5]
        assert [entry.tag for entry in image.given] == tags
        assert sum(entry.target == -1 for entry in image.entries) == int((soft == -1).sum())

    rows = small_problem.test
    found = ts.load(run.path, device="cpu").predict(small_problem.store.batch(rows).numpy())
    measured = ts.mean_average_precision(found.probabilities, small_problem.y[rows])
    assert measured == pytest.approx(run.metrics["test"]["mAP"])

    parts = train_in_two_parts(small_problem, config, tmp_path / "parts", 11, silent, monkeypatch)
    assert_same(saved(run.path), saved(parts.path))
    assert_same(load_file(run.path / "model.safetensors"), load_file(parts.path / "model.safetensors"))


def test_a_second_run_finds_the_features_of_the_first(small_problem, tiny, silent, tmp_path, monkeypatch):
    config, cache = tiny(method_options=OPTIONS, **RUN), tmp_path / "cache"
    first = run_training(small_problem, config, tmp_path / "first", RunOptions(cache=cache), watcher=silent)
    (shard,) = cache.glob("features-*/*.safetensors")
    tensors = load_file(shard)
    assert tensors["features"].shape[0] == len(small_problem.store)
    assert not list(first.path.glob("features-*"))
    shard.unlink()
    zeros = FeatureCache(cache, shard.parent.name.removeprefix("features-"))  # features computed again would differ
    zeros.add(tensors["digests"].numpy().view("S32").reshape(-1), torch.zeros_like(tensors["features"]).numpy())
    second = run_training(small_problem, config, tmp_path / "second", RunOptions(cache=cache), watcher=silent)
    assert len(list(cache.glob("features-*/*"))) == 1
    center = load_file(second.path / "model.safetensors")["head.center"]
    assert not center.any()
    assert load_file(first.path / "model.safetensors")["head.center"].any()


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"head": "ml_decoder"}, "drml replaces the linear head by its own; set head to 'linear'."),
        ({"start": "fitted_head"}, "start is 'fitted_head', which fits a linear head, but the network has another"),
        ({"method_options": {"moved": 1.5}}, "moved is 1.5; give a share from 0 to 1."),
        ({"method_options": {"moved": "all"}}, "moved is 'all'; give a share from 0 to 1."),
        ({"method_options": {"after": -1}}, "after is -1; give a share from 0 to 1."),
        ({"method_options": {"alpha": 1}}, "method 'drml' has no option 'alpha'; its options are moved, after."),
    ],
)
def test_bad_settings(settings_, words, small_problem, tiny, silent, tmp_path):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        run_training(small_problem, tiny(**(RUN | settings_)), tmp_path / "run", watcher=silent)
    assert not (tmp_path / "run").exists()
