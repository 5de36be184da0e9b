"""DiCaP, compared with loops over entries; its contrastive term with a loop over pairs; the network of pairs."""

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.nn import functional

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.methods import Labeled, Targets, get_method
from tagspread.methods.base import SetApart
from tagspread.methods.dicap import DiCaP, midpoint_thresholds
from tagspread.train.trainer import run_training
from tagspread.vision import backbones
from tagspread.vision.augment import Views
from tagspread.vision.backbones import TagNet, build_network
from tagspread.vision.heads import MLDecoder
from tagspread.vision.pairs import WIDTH, PairNet
from tests.methods.helpers import assert_same, named, problems, saved, train_in_two_parts


def bce(logits, labels, weight):
    return ts.bce_loss(logits, labels, weight=weight, reduction="none")


def middles(f, y):
    """Compute the midpoints of the positives' and of the negatives' scores per class, in float32."""
    present, absent = [], []
    for column, truth in zip(f.T, y.T, strict=True):
        positive = [p for p, t in zip(column, truth, strict=True) if t == 1]
        negative = [p for p, t in zip(column, truth, strict=True) if t == 0]
        present.append((min(positive) + max(positive)) / np.float32(2) if positive else math.inf)
        below = (min(negative) + max(negative)) / np.float32(2) if negative else -math.inf
        absent.append(min(below, present[-1]))
    return present, absent


def share_at(score, f, y, bins):
    """Interpolate the share of positives, from the entries of all classes together."""
    found: list[list[int]] = [[] for _ in range(bins)]
    for p, t in zip(f.flatten(), y.flatten(), strict=True):
        if t >= 0:
            found[min(bins - 1, int(p * np.float32(bins)))].append(int(t))

    def share(b):
        nearest = min((c for c in range(bins) if found[c]), key=lambda c: (abs(c - b), c))
        return sum(found[nearest]) / len(found[nearest])

    b = min(bins - 1, int(score * bins))
    t = score * bins - b
    return (1 - t) * share(b) + t * share(b + 1) if b + 1 < bins else share(b)


@st.composite
def judged_problems(draw):
    """Draw problems whose labeled rows have scores, some of them set apart."""
    scores, labeled = draw(problems())
    elements = draw(st.sampled_from([st.sampled_from([-1.0, 0.0, 2.0]), st.floats(-9, 9, width=32), st.just(0.5)]))
    seen = torch.from_numpy(draw(hnp.arrays(np.float32, tuple(labeled.y.shape), elements=elements)))
    labeled = replace(labeled, scores=seen)
    if draw(st.booleans()):
        labeled = replace(labeled, apart=SetApart(labeled.y, seen.neg().roll(1, 0)))
    return scores, labeled


@settings(max_examples=100, deadline=None)
@given(judged_problems(), st.sampled_from([1, 2, 5, 20]))
def test_targets_and_weights_equal_loops(dataset, bins):
    scores, labeled = dataset
    f, y = scores.sigmoid().numpy(), labeled.y.numpy()
    assert labeled.scores is not None
    present, absent = middles(labeled.scores.sigmoid().numpy(), y)
    judge = (labeled.scores, y) if labeled.apart is None else (labeled.apart.scores, labeled.apart.y.numpy())
    found = get_method("dicap", bins=bins).targets(scores, labeled, {})
    assert found.weight is not None
    for (j, k), p in np.ndenumerate(f):
        label = 1 if p > present[k] else 0 if p < absent[k] else -1
        assert found.labels[j, k] == label
        right = share_at(float(p), judge[0].sigmoid().numpy(), judge[1], bins)
        if label >= 0:
            assert found.weight[j, k].item() == pytest.approx(right if label else 1 - right, abs=1e-5)
    assert ((found.weight >= 0) & (found.weight <= 1)).all()


def test_thresholds_of_hand_made_classes():
    """Classes: ordinary; negatives above positives; no positives; no negatives; no known label."""
    y = torch.tensor([[1, 1, 0, 1, -1], [1, 1, 0, 1, -1], [0, 0, 0, 1, -1], [0, 0, 0, 1, -1], [-1, -1, -1, -1, -1]])
    f = torch.tensor([[0.9, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.5, 0.6, 0.5], [0.1, 0.9, 0.2, 0.9, 0.5],
                      [0.3, 0.7, 0.1, 0.2, 0.5], [0.99, 0.01, 0.99, 0.01, 0.5]])  # fmt: skip
    present, absent = midpoint_thresholds(Labeled(y, named(5), scores=f.logit()))
    assert present.tolist() == pytest.approx([0.7, 0.3, math.inf, 0.55, math.inf])
    assert absent.tolist() == pytest.approx([0.2, 0.3, 0.3, -math.inf, -math.inf])


def test_what_is_measured_apart_is_what_weighs():
    """Scores above 1/2 are correct half of the time, scores below never."""
    apart = SetApart(torch.tensor([[1, 0], [0, 0]]), torch.tensor([[3.0, -3.0], [3.0, -3.0]]))
    labeled = Labeled(torch.tensor([[1, 1], [0, 0]]), named(2), scores=torch.tensor([[1.0, 1], [-1, -1]]), apart=apart)
    found = get_method("dicap", bins=2).targets(torch.tensor([[4.0, -4.0], [0.8, -0.8]]), labeled, {})
    assert found.labels.tolist() == [[1, 0], [-1, -1]]
    assert found.weight is not None
    assert found.weight[0, 0].item() == pytest.approx(0.5)  # constant in the last bin
    f = 1 / (1 + math.exp(4))
    assert found.weight[0, 1].item() == pytest.approx(1 - 0.5 * 2 * f, abs=1e-6)  # linear from 0 to 0.5


def contrast_by_pairs(strong, weak, ambiguous, temperature):
    """Sum the InfoNCE loss over the ambiguous (image, class) entries, one at a time."""
    entries = [(j, k) for j, row in enumerate(ambiguous) for k, open_ in enumerate(row) if open_]
    total = 0.0
    for j, k in entries:
        likeness = [float(strong[j, k] @ weak[i, c]) / temperature for i, c in entries]
        own = float(strong[j, k] @ weak[j, k]) / temperature
        total += math.log(sum(math.exp(value) for value in likeness)) - own
    return total


def pair_output(rows, classes, seed=0):
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, 1, generator=random)
    strong, weak = (functional.normalize(torch.randn(rows, classes, WIDTH, generator=random), dim=-1) for _ in range(2))
    return torch.cat([logits, strong, (strong + weak) / (strong + weak).norm(dim=-1, keepdim=True)], dim=-1)


@pytest.mark.parametrize(
    "labels",
    [
        [[-1, 1, 0], [-1, -1, 0], [1, 0, -1], [0, 0, 0]],
        [[-1, -1, -1]] * 4,
        [[0, 0, 0], [0, -1, 0], [1, 1, 0], [1, 1, 1]],  # a single ambiguous entry has no other candidates
        [[0, 1, 0]] * 4,
    ],
)
@pytest.mark.parametrize(("contrast", "temperature"), [(1.0, 0.1), (0.3, 0.5)])
def test_the_contrast_equals_a_loop_over_pairs(labels, contrast, temperature):
    output = pair_output(4, 3).requires_grad_()
    targets = Targets(torch.tensor(labels), torch.rand(4, 3))
    method = get_method("dicap", contrast=contrast, temperature=temperature)
    found = method.loss(output, targets, bce, {})
    assert found.shape == (4, 3)
    whole = output.detach()
    term = contrast_by_pairs(*PairNet.embeddings(whole), targets.labels == -1, temperature)
    expected = float(bce(whole[..., 0], targets.labels, targets.weight).sum()) + contrast * term
    assert float(found.detach().sum()) == pytest.approx(expected, rel=1e-5)
    found.sum().backward()
    assert output.grad is not None
    assert torch.isfinite(output.grad).all()
    settled = (targets.labels != -1).nonzero()
    assert (output.grad[settled[:, 0], settled[:, 1], 1:] == 0).all()  # only ambiguous entries are contrasted


def test_at_most_so_many_pairs_take_part_and_the_ambiguous_come_first():
    output = torch.zeros(10, 4, 1 + 2 * WIDTH)
    output[..., 1] = output[..., 1 + WIDTH] = 1.0  # all equal: each loss is the log of the number of entries
    labels = torch.zeros(10, 4)
    labels[2:7] = -1
    for pairs, taking_part in [(1, 1), (7, 7), (20, 20), (30, 20), (999, 20)]:
        found = DiCaP(pairs=pairs).info_nce(output, labels == -1)
        assert found.item() == pytest.approx(taking_part * math.log(taking_part))


def test_a_linear_head_has_no_such_term_and_no_pairs():
    method = get_method("dicap")
    network = build_network("small", 3, weights="none")
    assert method.network(network) is network
    assert type(network) is TagNet
    decoder = build_network("small", 3, weights="none", head="ml_decoder")
    assert type(get_method("dicap", contrast=0).network(decoder)) is TagNet
    logits, weight = torch.randn(4, 3), torch.rand(4, 3)
    labels = torch.tensor([[-1, 1, 0]] * 4)
    assert torch.equal(method.loss(logits, Targets(labels, weight), bce, {}), bce(logits, labels, weight))
    assert torch.equal(method.loss_labeled(logits, labels, weight, bce), bce(logits, labels, weight))


def test_labeled_rows_are_trained_on_the_strong_view_s_logits():
    output, y = pair_output(4, 3), torch.tensor([[1, 0, -1]] * 4)
    found = get_method("dicap").loss_labeled(output, y, torch.ones(4, 3), bce)
    assert torch.equal(found, bce(output[..., 0], y, None))


@pytest.fixture(scope="module")
def pair_net():
    torch.manual_seed(0)
    network = get_method("dicap").network(build_network("small", 3, weights="none", head="ml_decoder"))
    assert isinstance(network, PairNet)
    return network.eval()


IMAGES = torch.randint(0, 256, (4, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_pairs_are_seen_as_their_views_are_one_by_one(pair_net):
    strong, weak = IMAGES, IMAGES.flip(-1)
    output = pair_net(torch.stack([strong, weak], 1))
    assert output.shape == (4, 3, 1 + 2 * WIDTH)
    torch.testing.assert_close(PairNet.logits(output), pair_net(strong))
    torch.testing.assert_close(PairNet.logits(pair_net(strong)), pair_net(strong))
    for view, found in zip((strong, weak), PairNet.embeddings(output), strict=True):
        seen = pair_net.head.embed(pair_net.backbone.forward_features(pair_net.prepare(view)))
        projected = pair_net.head.project_pairs(seen)
        torch.testing.assert_close(found, projected / projected.norm(dim=-1, keepdim=True))
        torch.testing.assert_close(found.norm(dim=-1), torch.ones(4, 3))


def test_a_pair_is_a_strong_and_a_weak_view(pair_net):
    views, rows, before = Views(seed=3), np.arange(10, 14), IMAGES.clone()
    shown = pair_net.show(views, IMAGES, rows, 2, True)
    assert torch.equal(shown[:, 0], views.strong(IMAGES, rows, 2))
    assert torch.equal(shown[:, 1], views.weak(IMAGES, rows, 2))
    assert torch.equal(IMAGES, before)


def test_a_run_with_class_embeddings_sets_items_apart_and_can_be_stopped(
    small_problem, tiny, silent, tmp_path, monkeypatch
):
    """Pairs are drawn at random; a resumed run continues the random stream."""
    monkeypatch.setattr(backbones, "MLDecoder", partial(MLDecoder, embedding=16, heads=4, hidden=24))  # saves fast
    run = {"warmup_epochs": 1, "epochs": 1, "batch": 16, "batch_labeled": 4, "head": "ml_decoder"}
    config = tiny(method="dicap", method_options={"pairs": 16}, **run)
    whole = run_training(small_problem, config, tmp_path / "whole", watcher=silent)
    parts = train_in_two_parts(small_problem, config, tmp_path / "parts", 3, silent, monkeypatch)
    assert_same(saved(whole.path), saved(parts.path))
    state = saved(whole.path)
    assert len(state["targets.labels"]) == len(small_problem.unlabeled) + round(0.2 * len(small_problem.labeled))
    assert ((state["targets.weight"] >= 0) & (state["targets.weight"] <= 1)).all()
    assert "student.head.project_pairs.weight" in state


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"apart": 1.2}, "apart is 1.2; give a share from 0 to 1."),
        ({"apart": "half"}, "apart is 'half'; give a share from 0 to 1."),
        ({"bins": 0}, "bins is 0; give a whole number of at least 1."),
        ({"bins": 2.5}, "bins is 2.5; give a whole number of at least 1."),
        ({"bins": "20"}, "bins is '20'; give a whole number of at least 1."),
        ({"contrast": -1}, "contrast is -1; give a number of at least 0."),
        ({"contrast": math.inf}, "contrast is inf; give a number of at least 0."),
        ({"temperature": 0}, "temperature is 0; give a number above 0."),
        ({"temperature": math.nan}, "temperature is nan; give a number above 0."),
        ({"temperature": None}, "temperature is None; give a number above 0."),
        ({"pairs": -4}, "pairs is -4; give a whole number of at least 1."),
        ({"pair": 4}, "has no option 'pair'; its options are apart, bins, contrast, temperature, pairs. Did you mean"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        get_method("dicap", **options)


def test_dicap_needs_scores_of_the_labeled_part():
    with pytest.raises(TagspreadError, match="dicap needs the scores of the labeled set"):
        get_method("dicap").targets(torch.zeros(1, 1), Labeled(torch.tensor([[1]]), named(1)), {})
