"""D2L: patches, fusion, which head learns from which labels, and its pseudo-labels."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from PIL import Image

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.methods import Labeled, Targets, get_method
from tagspread.methods.mat import MAT
from tagspread.train.trainer import run_training
from tagspread.vision.augment import Views
from tagspread.vision.backbones import build_network
from tagspread.vision.patches import PARTS, PatchNet, fuse, with_patches
from tests.methods.helpers import assert_same, named, problems, saved, train_in_two_parts

HEADS = ("whole_true", "patch_true", "whole_pseudo", "patch_pseudo")


def bce(logits, labels, weight):
    return ts.bce_loss(logits, labels, weight=weight, reduction="none")


def images(count=4, height=12, width=12):
    random = torch.Generator().manual_seed(height)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=random)


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = get_method("d2l").network(build_network("small", 3, weights="none"))
    assert isinstance(made, PatchNet)
    return made.eval()


# --- fusion and patches ---


def fused_by_hand(patches):
    """Sum softmax times logit over the patches, in double precision."""
    top = max(patches)
    weights = [math.exp(v - top) for v in patches]
    return sum(w * v for w, v in zip(weights, patches, strict=True)) / sum(weights)


def test_fusion_lets_the_largest_patch_speak_loudest():
    assert fuse(torch.tensor([4.0, 0, 0, 0])[None, :, None]).item() == pytest.approx(3.7917, abs=5e-5)
    logits = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0)).mul(4)
    logits[0], logits[1, :, 0] = (
        2.0,
        torch.tensor([900.0, -900, 0, 900]),
    )  # equal; overflowing exponential
    found = fuse(logits)
    for (j, k), value in np.ndenumerate(found.numpy()):
        assert value == pytest.approx(fused_by_hand(logits[j, :, k].tolist()), rel=1e-5, abs=1e-5)
    assert found[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize(("height", "width"), [(8, 8), (24, 16), (7, 9), (2, 2)])
def test_patches_equal_slices_enlarged_by_pillow(height, width):
    batch = images(2, height, width)
    before = batch.clone()
    parts = with_patches(batch)
    assert parts.shape == (2, PARTS, 3, height, width)
    assert parts.dtype == torch.uint8
    assert torch.equal(parts[:, 0], batch)
    top, left = math.ceil(height / 2), math.ceil(width / 2)
    corners = [(slice(0, top), slice(0, left)), (slice(0, top), slice(left, width)),
               (slice(top, height), slice(0, left)), (slice(top, height), slice(left, width))]  # fmt: skip
    for i in range(2):
        for number, (rows, columns) in enumerate(corners, start=1):
            quarter = Image.fromarray(batch[i, :, rows, columns].permute(1, 2, 0).numpy())
            enlarged = np.asarray(quarter.resize((width, height), Image.Resampling.BILINEAR), dtype=int)
            found = parts[i, number].permute(1, 2, 0).numpy().astype(int)
            assert np.abs(found - enlarged).max() <= 1  # Pillow rounds between its two passes
    parts.zero_()
    assert torch.equal(batch, before)


def test_every_part_has_a_strong_view_of_its_own(network):
    batch, rows, views = images(), np.array([5, 9, 2, 7]), Views(seed=1)
    before = batch.clone()
    shown = network.show(views, batch, rows, 3, True)
    assert shown.shape == (4, PARTS, 3, 12, 12)
    for part in range(PARTS):
        assert torch.equal(shown[:, part], views.strong(with_patches(batch)[:, part], rows * PARTS + part, 3))
    assert torch.equal(network.show(views, batch, rows, 3, False)[:, 1], views.strong(
        with_patches(batch)[:, 1], rows * PARTS + 1, 3, cutout=False))  # fmt: skip
    assert torch.equal(batch, before)


# --- the network ---


@torch.no_grad()
def test_four_heads_answer_for_whole_and_patches(network):
    batch = images()
    parts = with_patches(batch)
    features = [network.backbone(network.prepare(parts[:, p])) for p in range(PARTS)]
    expected = []
    for name in HEADS:
        head = getattr(network.head, name)
        by_part = torch.stack([f @ head.weight.T + head.bias for f in features], 1)
        by_hand = [[fused_by_hand(by_part[j, 1:, k].tolist()) for k in range(3)] for j in range(4)]
        expected.append(by_part[:, 0] if name.startswith("whole") else torch.tensor(by_hand))
    torch.testing.assert_close(network(parts), torch.stack(expected, 1))
    torch.testing.assert_close(network(batch), (expected[0] + expected[1]) / 2)  # the prediction


def test_true_and_pseudo_labels_reach_only_their_own_heads(network):
    method, parts = get_method("d2l"), with_patches(images())
    labels, weight = torch.tensor([[1.0, 0, -1]] * 4), torch.rand(4, 3)
    for kind, loss in (
        ("true", lambda output: method.loss_labeled(output, labels, weight, bce)),
        ("pseudo", lambda output: method.loss(output, Targets(labels, weight), bce, {})),
    ):
        network.zero_grad()
        output = network(parts)
        entries = loss(output)
        first = 0 if kind == "true" else 2
        expected = bce(output[:, first], labels, weight) + bce(output[:, first + 1], labels, weight)
        torch.testing.assert_close(entries, expected)
        entries.sum().backward()
        for name in HEADS:
            gradient = getattr(network.head, name).weight.grad
            assert bool(gradient.any()) == name.endswith(kind)
        assert all(bool(p.grad.any()) for p in network.backbone.parameters())  # shared


def test_the_heads_for_pseudo_labels_begin_as_copies(network):
    method = get_method("d2l")
    heads = network.head
    assert not torch.equal(heads.whole_pseudo.weight, heads.whole_true.weight)
    method.begin_unlabeled(network)
    for part in ("whole", "patch"):
        true, pseudo = (getattr(heads, f"{part}_{kind}") for kind in ("true", "pseudo"))
        assert_same(true.state_dict(), pseudo.state_dict())
        assert true.weight.data_ptr() != pseudo.weight.data_ptr()
    assert not torch.equal(heads.whole_true.weight, heads.patch_true.weight)


# --- pseudo-labels ---


@settings(max_examples=60, deadline=None)
@given(problems())
def test_labels_are_mat_s_at_the_epoch_s_thresholds(dataset):
    scores, labeled = dataset
    random = torch.Generator().manual_seed(len(scores))
    labeled = replace(labeled, scores=torch.randn(labeled.y.shape, generator=random))
    method = get_method("d2l", beta=1.0)
    state = method.start(labeled)
    assert method.targets(scores, labeled, state).labels.sum() == 0  # no pseudo-positives before the first thresholds
    method.new_epoch(labeled, state)
    assert torch.equal(state["thresholds"], MAT(beta=1.0).thresholds(labeled))
    chosen = state["thresholds"].tolist()
    for seen in (scores, scores.neg()[:1]):
        expected = [[int(p >= t) for p, t in zip(row, chosen, strict=True)] for row in seen.sigmoid().tolist()]
        last = Targets(torch.zeros_like(seen))
        for found in (method.targets(seen, labeled, state), method.step_targets(seen, last, labeled, state)):
            assert found.labels.tolist() == expected
            assert found.weight is None
    assert state["thresholds"].tolist() == chosen


# --- a run ---

RUN = {"warmup_epochs": 1, "epochs": 2, "batch": 16, "batch_labeled": 6, "method": "d2l"}


def test_a_run_chooses_thresholds_each_epoch_and_leaves_the_images_alone(
    small_problem, tiny, silent, tmp_path, monkeypatch
):
    everything = np.arange(len(small_problem.store))
    before = small_problem.store.batch(everything).clone()
    whole = run_training(small_problem, tiny(**RUN), tmp_path / "whole", watcher=silent)
    assert torch.equal(small_problem.store.batch(everything), before)
    parts = train_in_two_parts(small_problem, tiny(**RUN), tmp_path / "parts", 7, silent, monkeypatch)
    assert_same(saved(whole.path), saved(parts.path))
    assert torch.isfinite(saved(whole.path)["method.thresholds"]).any()


def test_the_copies_are_made_between_warm_up_and_unlabeled(small_problem, tiny, silent, tmp_path):
    """With a learning rate of 0, the heads keep their initial values."""
    still = tiny(**(RUN | {"epochs": 1, "lr": 0.0, "weight_decay": 0.0}))
    state = saved(run_training(small_problem, still, tmp_path / "run", watcher=silent).path)
    for who in ("student", "ema"):
        for part in ("whole", "patch"):
            for tensor in ("weight", "bias"):
                true, pseudo = (state[f"{who}.head.{part}_{kind}.{tensor}"] for kind in ("true", "pseudo"))
                assert torch.equal(true, pseudo)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"head": "ml_decoder"}, "d2l replaces the linear head by its own; set head to 'linear'."),
        ({"start": "fitted_head"}, "start is 'fitted_head', which fits a linear head, but the network has another"),
        ({"method_options": {"beta": 0}}, "beta is 0; give a number above 0."),
        ({"method_options": {"metric": "F1"}}, "metric is 'F1'; it must be one of 'fbeta', 'precision', 'recall'."),
        ({"method_options": {"patches": 9}}, "method 'd2l' has no option 'patches'; its options are metric, beta"),
    ],
)
def test_bad_settings(settings_, words, small_problem, tiny, silent, tmp_path):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        run_training(small_problem, tiny(**(RUN | settings_)), tmp_path / "run", watcher=silent)
    assert not (tmp_path / "run").exists()


def test_d2l_needs_scores_of_the_labeled_part():
    labeled = Labeled(torch.tensor([[1]]), named(1))
    method = get_method("d2l")
    with pytest.raises(TagspreadError, match="needs the scores of the labeled set"):
        method.new_epoch(labeled, method.start(labeled))
