"""FreeMatch, compared with loops over batches; its state through a run."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS, Labeled, Targets, get_method
from tagspread.methods.freematch import FreeMatch
from tagspread.train import batches as feed
from tagspread.train import loop
from tagspread.train.trainer import run_training
from tests.methods.helpers import assert_same, named, probabilities, problems, saved, train_in_two_parts


def bce(logits, labels, weight):
    return ts.bce_loss(logits, labels, weight=weight, reduction="none")


def freematch_labels(f, confidence, mean):
    """Apply the published rule, entry by entry."""
    expected = []
    for row in f:
        line = []
        for k, p in enumerate(row):
            present = p >= 0.5
            usual = max(mean[k], 1 - mean[k])
            threshold = confidence[k] * (mean[k] if present else 1 - mean[k]) / usual
            assert 0 < threshold < 1
            margin = max(p, 1 - p) - threshold
            line.append(None if abs(margin) < 1e-6 else int(present) if margin > 0 else -1)  # None: rounding decides
        expected.append(line)
    return expected


def column_means(f, of):
    return [sum(of(row[k]) for row in f) / len(f) for k in range(len(f[0]))]


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.5, 0.999, 1.0]), st.data())
def test_freematch_equals_a_loop_over_batches(dataset, momentum, data):
    scores, labeled = dataset
    scores = scores.clamp(-6, 6)
    method = get_method("freematch", momentum=momentum)
    state = method.start(labeled)
    of = {"confidence": lambda p: max(p, 1 - p), "mean": lambda p: p, "predicted": lambda p: float(p >= 0.5)}
    averages = {name: column_means(probabilities(scores), value) for name, value in of.items()}
    targets = method.targets(scores, labeled, state)
    for batch in [None, *data.draw(st.lists(st.integers(0, len(scores) - 1), max_size=3))]:
        if batch is not None:
            seen = scores[: batch + 1].neg().roll(1, 1)  # a batch with another distribution than the unlabeled set
            fresh = {name: column_means(probabilities(seen), value) for name, value in of.items()}
            for name, values in averages.items():
                averages[name] = [momentum * a + (1 - momentum) * b for a, b in zip(values, fresh[name], strict=True)]
            targets = method.step_targets(seen, Targets(torch.zeros(1)), labeled, state)
        for name, values in averages.items():
            np.testing.assert_allclose(state[name].numpy(), values, atol=1e-6)
        expected = freematch_labels(
            probabilities(scores if batch is None else seen), averages["confidence"], averages["mean"]
        )
        assert targets.labels.dtype == torch.int8
        for line, wanted in zip(targets.labels.tolist(), expected, strict=True):
            assert all(b is None or a == b for a, b in zip(line, wanted, strict=True))


def test_freematch_of_a_rare_class_keeps_every_positive_and_drops_doubtful_negatives():
    labeled = Labeled(torch.tensor([[1], [0]]), named(1))
    scores = torch.tensor([*[-4.0] * 18, -0.2, 0.1])[:, None]
    found = get_method("freematch").targets(scores, labeled, get_method("freematch").start(labeled))
    assert found.labels.flatten().tolist() == [0] * 18 + [-1, 1]


def test_freematch_with_saturated_scores_keeps_what_it_is_certain_of():
    """In float32 the probabilities of these logits are exactly 0 and 1."""
    labeled, scores = Labeled(torch.tensor([[1, 0, 1]]), named(3)), torch.tensor([[-200.0, 200.0, 0.0]] * 3)
    method = get_method("freematch", fairness=0.1)
    state = method.start(labeled)
    targets = method.targets(scores, labeled, state)
    assert targets.labels.tolist() == [[0, 1, 1]] * 3
    assert torch.isfinite(method.loss(scores, targets, bce, state)).all()


def fairness_term(f, labels, mean, predicted):
    """Sum sum_c a_c log b_c over the classes, on kept entries; a class whose shares are not defined adds nothing."""
    total = 0.0
    for k in range(len(f[0])):
        kept = [row[k] for row, line in zip(f, labels, strict=True) if line[k] >= 0]
        positive = sum(p >= 0.5 for p in kept) / max(1, len(kept))
        if positive in (0, 1) or predicted[k] in (0, 1):
            continue
        batch = sum(kept) / len(kept)
        wanted = [mean[k] / predicted[k], (1 - mean[k]) / (1 - predicted[k])]
        found = [batch / positive, (1 - batch) / (1 - positive)]
        for a, b in zip(wanted, found, strict=True):
            total += a / sum(wanted) * math.log(b / sum(found))
    return total


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.01, 1.0]), st.integers(0, 99))
def test_freematch_s_fairness_term(dataset, weight, seed):
    """The term of each class is added to its mean loss over the batch, so the summed loss has it once per row."""
    scores, labeled = dataset
    scores = scores.clamp(-6, 6)
    method = get_method("freematch", fairness=weight)
    state = method.start(labeled)
    method.targets(scores, labeled, state)
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(scores.shape, generator=random).requires_grad_()
    labels = torch.randint(-1, 2, scores.shape, generator=random)
    found = method.loss(logits, Targets(labels), bce, state)
    assert found.shape == logits.shape
    f = logits.detach().double().sigmoid().tolist()
    term = fairness_term(f, labels.tolist(), state["mean"].tolist(), state["predicted"].tolist())
    expected = float(bce(logits.detach(), labels, None).mean(0).sum()) + weight * term
    assert float(found.detach().mean(0).sum()) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    found.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_freematch_s_fairness_term_of_a_batch_without_a_predicted_positive_is_zero():
    method, labeled = get_method("freematch", fairness=1.0), Labeled(torch.tensor([[1], [0]]), named(1))
    state = method.start(labeled)
    method.targets(torch.tensor([[1.0], [-2.0], [-2.0], [-3.0]]), labeled, state)
    logits = torch.tensor([[-1.0], [-2.0], [-0.5]], requires_grad=True)
    targets = Targets(torch.zeros(3, 1, dtype=torch.int8))
    found = method.loss(logits, targets, bce, state)
    torch.testing.assert_close(found, bce(logits, targets.labels, None))
    (slope,) = torch.autograd.grad(found.sum(), logits)
    torch.testing.assert_close(slope, logits.detach().sigmoid())


RUN = {"warmup_epochs": 1, "epochs": 2, "batch": 16, "batch_labeled": 6}


@pytest.mark.parametrize("after", [2, 3, 4, 7])
def test_freematch_stopped_within_an_epoch_goes_on_bit_for_bit(
    after, small_problem, tiny, silent, tmp_path, monkeypatch
):
    """Score batches two steps at a time, so that some interruptions leave a scored batch."""
    monkeypatch.setattr(feed, "ITEMS_PER_CHUNK", 20)
    config = tiny(method="freematch", method_options={"momentum": 0.7, "fairness": 0.01}, **RUN)
    whole = run_training(small_problem, config, tmp_path / "whole", watcher=silent)
    parts = train_in_two_parts(small_problem, config, tmp_path / "parts", after, silent, monkeypatch)
    assert_same(saved(whole.path), saved(parts.path))
    state = saved(whole.path)
    assert {"method.confidence", "method.mean", "method.predicted"} <= state.keys()
    for value in (state["method.confidence"], state["method.mean"]):
        assert ((value > 0) & (value < 1)).all()


def test_each_batch_is_labeled_from_the_teacher_s_scores_of_its_own_rows(
    small_problem, tiny, silent, tmp_path, monkeypatch
):
    """With a learning rate of 0, the teacher's scores stay the same."""
    monkeypatch.setattr(feed, "ITEMS_PER_CHUNK", 20)
    first, steps = [], 0

    class Spy(FreeMatch):
        def targets(self, scores, labeled, state):
            first.append(scores.clone())
            return super().targets(scores, labeled, state)

        def step_targets(self, scores, targets, labeled, state):
            nonlocal steps
            steps += 1
            torch.testing.assert_close(scores, first[0][targets.places])
            return super().step_targets(scores, targets, labeled, state)

    monkeypatch.setitem(METHODS, "spy", Spy)
    still = {"lr": 0.0, "weight_decay": 0.0, "batch_norm": "frozen"}
    run_training(small_problem, tiny(method="spy", **RUN, **still), tmp_path / "run", watcher=silent)
    assert (len(first), steps) == (1, 8)


def test_evaluation_leaves_freematch_s_state_alone(small_problem, tiny, silent, tmp_path, monkeypatch):
    evaluations = 0
    original = loop.evaluate

    def watched(training, watcher):
        nonlocal evaluations
        labels = training.pseudo_labels
        before = {name: value.clone() for name, value in labels.method_state.items()}
        targets = labels.targets.labels.clone() if labels.exist else None
        figures = original(training, watcher)
        assert_same(before, labels.method_state)
        assert targets is None or torch.equal(targets, labels.targets.labels)
        evaluations += 1
        return figures

    monkeypatch.setattr(loop, "evaluate", watched)
    often = run_training(small_problem, tiny(method="freematch", **RUN), tmp_path / "often", watcher=silent)
    assert evaluations == 3
    blind = replace(small_problem, test=small_problem.test[:0], identity=small_problem.fingerprint())
    never = run_training(blind, tiny(method="freematch", **RUN), tmp_path / "never", watcher=silent)
    assert_same(saved(often.path), saved(never.path))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("freematch", {"momentum": 1.5}, "momentum is 1.5; give a share from 0 to 1."),
        ("freematch", {"momentum": None}, "momentum is None; give a share from 0 to 1."),
        ("freematch", {"fairness": -0.1}, "fairness is -0.1; give a number of at least 0."),
        ("freematch", {"fairness": math.inf}, "fairness is inf; give a number of at least 0."),
        ("freematch", {"fairness": "0.1"}, "fairness is '0.1'; give a number of at least 0."),
        ("freematch", {"fair": 1}, "method 'freematch' has no option 'fair'; its options are momentum, fairness."),
    ],
)
def test_bad_options(name, options, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        get_method(name, **options)
