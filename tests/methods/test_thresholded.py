"""PLC, ADSH, FreeMatch and MAT against loops over entries (acceptance 8, 9, 10)."""

import math
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import fbeta_score, precision_score

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS, Labelled, Targets, get_method
from tagspread.methods.base import SetApart
from tagspread.methods.freematch import FreeMatch
from tagspread.methods.mat import BLOCK, MAT
from tagspread.train import feed, loop
from tagspread.train.session import run_training

from .helpers import assert_same, named, problems, saved, train_in_two_parts


def probabilities(scores):
    """Single precision, as plain lists: what the thresholds are compared with."""
    return scores.sigmoid().tolist()


def bce(logits, labels, weight):
    return ts.bce_loss(logits, labels, weight=weight, reduction="none")


# --- PLC ---


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from([0.5, 0.6, 0.75, 0.9, 1.0]))
def test_plc_believes_the_two_ends(problem, threshold):
    scores, labelled = problem
    expected = [[1 if f >= threshold else 0 if f < 1 - threshold else -1 for f in row] for row in probabilities(scores)]
    found = get_method("plc", threshold=threshold).targets(scores, labelled, {})
    assert found.labels.tolist() == expected
    assert found.weight is None


def test_plc_at_its_borders():
    labelled = Labelled(torch.tensor([[1, 0, 1, 1]]), named(4))
    scores = torch.tensor([[0.0, -0.01, 200.0, -200.0]])
    assert get_method("plc", threshold=0.5).targets(scores, labelled, {}).labels.tolist() == [[1, 0, 1, 0]]
    assert get_method("plc").targets(scores, labelled, {}).labels.tolist() == [[-1, -1, 1, 0]]
    assert get_method("plc", threshold=1).targets(scores, labelled, {}).labels.tolist() == [[-1, -1, 1, -1]]


# --- ADSH ---


def adsh_thresholds(f, reference, tau, before):
    """The rule of the book, class by class, on lists of probabilities."""
    columns = list(zip(*f, strict=True))
    sure = [sorted((p for p in column if p >= 0.5), reverse=True) for column in columns]
    share = sum(p >= tau for p in sure[reference]) / len(sure[reference]) if sure[reference] else 0.0
    found = []
    for k, known in enumerate(sure):
        if k == reference:
            found.append(tau)
        elif known:
            found.append(min(tau, known[max(0, round(len(known) * share - 1))]))
        else:
            found.append(before[k])
    return found


def most_frequent(y):
    """The class with the highest share of positives among what is known; the first of equals."""
    shares = []
    for column in y.T.tolist():
        known = [value for value in column if value >= 0]
        shares.append(sum(known) / len(known) if known else 0.0)
    return shares.index(max(shares))


def in_single_precision(number):
    return float(np.float32(number))


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([0.5, 0.75, 0.875, 0.95]), st.sampled_from(["all", "symmetric", "complement"]))
def test_adsh_equals_a_loop_over_classes_for_two_epochs(problem, tau, negatives):
    scores, labelled = problem
    method = get_method("adsh", threshold=tau, negatives=negatives)
    state, reference = method.start(labelled), most_frequent(labelled.y.numpy())
    tau = in_single_precision(tau)
    present = absent = [tau] * scores.shape[1]
    for epoch in range(2):
        now = scores - 1.5 * epoch  # less sure: some class finds nothing any more
        f = probabilities(now)
        gone = (1 - now.sigmoid()).tolist()
        present = adsh_thresholds(f, reference, tau, present)
        absent = adsh_thresholds(gone, reference, tau, absent) if negatives == "symmetric" else absent
        expected = []
        for row, without in zip(f, gone, strict=True):
            line = []
            for k, p in enumerate(row):
                is_absent = {"all": p < 0.5, "symmetric": without[k] >= absent[k] and p < 0.5, "complement": True}
                line.append(1 if p >= present[k] else 0 if is_absent[negatives] else -1)
            expected.append(line)
        found = method.targets(now, replace(labelled, epoch=epoch), state)
        assert state["present"].tolist() == present
        assert state["absent"].tolist() == absent
        assert found.labels.tolist() == expected
        assert max(present) <= tau


def logit(*shares):
    return torch.tensor([math.log(p / (1 - p)) for p in shares])


def test_adsh_takes_the_most_frequent_class_as_reference_wherever_it_stands():
    """The third class is the most frequent; half of what it finds reaches 0.9, so half of every class passes."""
    labelled = Labelled(torch.tensor([[0, 1, 1], [1, 0, 1], [0, 0, 1]]), named(3))
    columns = [logit(0.9, 0.8, 0.7, 0.6), logit(0.55, 0.54, 0.53, 0.1), logit(0.95, 0.94, 0.6, 0.55)]
    method = get_method("adsh", threshold=0.9)
    state = method.start(labelled)
    found = method.targets(torch.stack(columns, 1), labelled, state)
    assert state["present"].tolist() == pytest.approx([0.8, 0.55, 0.9])  # places 1, round(0.5) = 0 and the reference
    assert found.labels.T.tolist() == [[1, 1, -1, -1], [1, -1, -1, 0], [1, 1, -1, -1]]


def test_adsh_without_a_sure_reference_takes_the_single_most_confident():
    """Index -1 would be the least sure of all."""
    labelled = Labelled(torch.tensor([[1, 1, 0], [1, 0, 1]]), named(3))
    columns = [logit(0.7, 0.6, 0.9, 0.8), logit(0.7, 0.51, 0.9, 0.6), logit(0.4, 0.3, 0.2, 0.1)]
    method = get_method("adsh")
    state = method.start(labelled)
    found = method.targets(torch.stack(columns, 1), labelled, state)
    assert state["present"].tolist() == pytest.approx([0.95, 0.9, 0.95])  # of the last nothing is found
    assert found.labels.T.tolist() == [[-1, -1, -1, -1], [-1, -1, 1, -1], [0, 0, 0, 0]]
    nobody = method.targets(torch.full((1, 3), -3.0), labelled, state)  # a reference that finds nothing at all
    assert nobody.labels.tolist() == [[0, 0, 0]]
    assert state["present"].tolist() == pytest.approx([0.95, 0.9, 0.95])


# --- FreeMatch ---


def freematch_labels(f, confidence, mean):
    """The rule of the book, entry by entry."""
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
def test_freematch_equals_a_loop_over_batches(problem, momentum, data):
    scores, labelled = problem
    scores = scores.clamp(-6, 6)
    method = get_method("freematch", momentum=momentum)
    state = method.start(labelled)
    of = {"confidence": lambda p: max(p, 1 - p), "mean": lambda p: p, "predicted": lambda p: float(p >= 0.5)}
    averages = {name: column_means(probabilities(scores), value) for name, value in of.items()}
    targets = method.targets(scores, labelled, state)
    for batch in [None, *data.draw(st.lists(st.integers(0, len(scores) - 1), max_size=3))]:
        if batch is not None:
            seen = scores[: batch + 1].neg().roll(1, 1)  # a batch unlike the pile
            fresh = {name: column_means(probabilities(seen), value) for name, value in of.items()}
            for name, values in averages.items():
                averages[name] = [momentum * a + (1 - momentum) * b for a, b in zip(values, fresh[name], strict=True)]
            targets = method.step_targets(seen, Targets(torch.zeros(1)), labelled, state)
        for name, values in averages.items():
            np.testing.assert_allclose(state[name].numpy(), values, atol=1e-6)
        expected = freematch_labels(
            probabilities(scores if batch is None else seen), averages["confidence"], averages["mean"]
        )
        assert targets.labels.dtype == torch.int8
        for line, wanted in zip(targets.labels.tolist(), expected, strict=True):
            assert all(b is None or a == b for a, b in zip(line, wanted, strict=True))


def test_freematch_of_a_rare_class_keeps_every_positive_and_drops_doubtful_negatives():
    labelled = Labelled(torch.tensor([[1], [0]]), named(1))
    scores = torch.tensor([*[-4.0] * 18, -0.2, 0.1])[:, None]
    found = get_method("freematch").targets(scores, labelled, get_method("freematch").start(labelled))
    assert found.labels.flatten().tolist() == [0] * 18 + [-1, 1]


def test_freematch_with_saturated_scores_keeps_what_it_is_certain_of():
    """In single precision the probabilities of these logits are 0 and 1 themselves."""
    labelled, scores = Labelled(torch.tensor([[1, 0, 1]]), named(3)), torch.tensor([[-200.0, 200.0, 0.0]] * 3)
    method = get_method("freematch", fairness=0.1)
    state = method.start(labelled)
    targets = method.targets(scores, labelled, state)
    assert targets.labels.tolist() == [[0, 1, 1]] * 3
    assert torch.isfinite(method.loss(scores, targets, bce, state)).all()


def fairness_term(f, labels, mean, predicted):
    """Sum over the classes of sum_c a_c log b_c, on kept entries; a class without any has none."""
    total = 0.0
    for k in range(len(f[0])):
        kept = [row[k] for row, line in zip(f, labels, strict=True) if line[k] >= 0]
        if not kept:
            continue
        batch, positive = sum(kept) / len(kept), sum(p >= 0.5 for p in kept) / len(kept)
        wanted = [mean[k] / (predicted[k] + 1e-6), (1 - mean[k]) / (1 - predicted[k] + 1e-6)]
        found = [batch / (positive + 1e-6), (1 - batch) / (1 - positive + 1e-6)]
        for a, b in zip(wanted, found, strict=True):
            total += a / sum(wanted) * math.log(b / sum(found) + 1e-6)
    return total


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.01, 1.0]), st.integers(0, 99))
def test_freematch_s_fairness_term(problem, weight, seed):
    scores, labelled = problem
    scores = scores.clamp(-6, 6)
    method = get_method("freematch", fairness=weight)
    state = method.start(labelled)
    method.targets(scores, labelled, state)
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(scores.shape, generator=random).requires_grad_()
    labels = torch.randint(-1, 2, scores.shape, generator=random)
    found = method.loss(logits, Targets(labels), bce, state)
    assert found.shape == logits.shape
    f = logits.detach().double().sigmoid().tolist()
    term = fairness_term(f, labels.tolist(), state["mean"].tolist(), state["predicted"].tolist())
    expected = float(bce(logits.detach(), labels, None).sum()) + weight * term
    assert float(found.detach().sum()) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    found.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


RUN = {"warmup_epochs": 1, "epochs": 2, "batch": 16, "batch_labeled": 6}


@pytest.mark.parametrize("after", [2, 3, 4, 7])
def test_freematch_stopped_within_an_epoch_goes_on_bit_for_bit(
    after, small_problem, tiny, silent, tmp_path, monkeypatch
):
    """Batches are scored two steps at a time, so that some are stopped with a scored batch left."""
    monkeypatch.setattr(feed, "ITEMS_PER_CHUNK", 20)
    config = tiny(method="freematch", method_options={"momentum": 0.7, "fairness": 0.01}, **RUN)
    whole = run_training(small_problem, config, tmp_path / "whole", watcher=silent)
    parts = train_in_two_parts(small_problem, config, tmp_path / "parts", after, silent, monkeypatch)
    assert_same(saved(whole.path), saved(parts.path))
    state = saved(whole.path)
    assert {"method.confidence", "method.mean", "method.predicted"} <= state.keys()
    for value in (state["method.confidence"], state["method.mean"]):
        assert ((value > 0) & (value < 1)).all()


def test_each_batch_is_labelled_from_the_teacher_s_scores_of_its_own_rows(
    small_problem, tiny, silent, tmp_path, monkeypatch
):
    """A teacher that learns nothing says of every row what it said at the start."""
    monkeypatch.setattr(feed, "ITEMS_PER_CHUNK", 20)
    first, steps = [], 0

    class Spy(FreeMatch):
        def targets(self, scores, labelled, state):
            first.append(scores.clone())
            return super().targets(scores, labelled, state)

        def step_targets(self, scores, targets, labelled, state):
            nonlocal steps
            steps += 1
            torch.testing.assert_close(scores, first[0][targets.places])
            return super().step_targets(scores, targets, labelled, state)

    monkeypatch.setitem(METHODS, "spy", Spy)
    still = {"lr": 0.0, "weight_decay": 0.0, "batch_norm": "frozen"}
    run_training(small_problem, tiny(method="spy", **RUN, **still), tmp_path / "run", watcher=silent)
    assert (len(first), steps) == (1, 8)


def test_evaluation_leaves_freematch_s_state_alone(small_problem, tiny, silent, tmp_path, monkeypatch):
    evaluations = 0
    original = loop.evaluate

    def watched(problem, state):
        nonlocal evaluations
        before = {name: value.clone() for name, value in state.method_state.items()}
        targets = state.targets.labels.clone() if state.targets is not None else None
        figures = original(problem, state)
        assert_same(before, state.method_state)
        assert targets is None or torch.equal(targets, state.targets.labels)
        evaluations += 1
        return figures

    monkeypatch.setattr(loop, "evaluate", watched)
    often = run_training(small_problem, tiny(method="freematch", **RUN), tmp_path / "often", watcher=silent)
    assert evaluations == 3
    blind = replace(small_problem, test=small_problem.test[:0], identity=small_problem.fingerprint())
    never = run_training(blind, tiny(method="freematch", **RUN), tmp_path / "never", watcher=silent)
    assert_same(saved(often.path), saved(never.path))


# --- MAT ---


def by_hand(metric, beta, support, truth, f):
    """The first threshold of the grid with the best value, by scikit-learn; none without positives or support."""
    known = [(y, p) for y, p in zip(truth, f, strict=True) if y >= 0]
    if not any(y == 1 for y, _ in known):
        return math.inf
    y = [y for y, _ in known]
    best, chosen, before = -1.0, math.inf, None
    for step in range(100):
        tau = in_single_precision(step / 100)
        found = [int(p >= tau) for _, p in known]
        if found == before:
            continue  # the same predictions are never better
        before = found
        if metric == "fbeta":
            value = fbeta_score(y, found, beta=beta, zero_division=0)
        elif metric == "recall":
            value = sum(a and b for a, b in zip(y, found, strict=True)) / sum(y)
        else:
            value = precision_score(y, found, zero_division=0) if sum(found) >= support else -1.0
        if value > best + 1e-9:
            best, chosen = value, tau
    return chosen


@settings(max_examples=40, deadline=None)
@given(
    problems(),
    st.sampled_from(["fbeta", "precision", "recall"]),
    st.sampled_from([0.5, 0.5**0.5, 1.0, 2.0]),
    st.integers(1, 4),
    st.booleans(),
)
def test_mat_equals_brute_force_over_scikit_learn(problem, metric, beta, support, set_apart):
    scores, labelled = problem
    random = torch.Generator().manual_seed(len(scores))
    seen = torch.randn(labelled.y.shape, generator=random).mul(3).round()  # with ties
    if set_apart:
        labelled = replace(labelled, scores=seen.neg(), apart=SetApart(labelled.y, seen))
    else:
        labelled = replace(labelled, scores=seen)
    method = MAT(metric=metric, beta=beta, support=support)
    expected = [
        by_hand(metric, beta, support, labelled.y[:, k].tolist(), seen[:, k].sigmoid().tolist())
        for k in range(scores.shape[1])
    ]
    assert method.thresholds(labelled).tolist() == expected
    labels = [[int(p >= tau) for p, tau in zip(row, expected, strict=True)] for row in probabilities(scores)]
    found = method.targets(scores, labelled, {})
    assert found.labels.tolist() == labels
    assert found.weight is None


def test_mat_on_a_hand_made_example():
    """F1 is 2/3 at 0, 4/5 above 0.2, 1/2 above 0.6 and 2/3 again above 0.7."""
    f = logit(0.2, 0.605, 0.705, 0.9)
    labelled = Labelled(torch.tensor([[0], [1], [0], [1]]), named(1), scores=f[:, None])
    assert MAT(beta=1).thresholds(labelled).item() == pytest.approx(0.21)
    assert MAT(beta=0.1).thresholds(labelled).item() == pytest.approx(0.71)  # precision
    assert MAT(beta=9).thresholds(labelled).item() == pytest.approx(0.21)
    assert MAT(metric="precision", support=1).thresholds(labelled).item() == pytest.approx(0.71)
    assert MAT(metric="precision", support=2).thresholds(labelled).item() == pytest.approx(0.21)
    assert MAT(metric="recall").thresholds(labelled).item() == 0


@pytest.mark.parametrize("metric", ["fbeta", "precision", "recall"])
def test_mat_gives_no_positives_to_a_class_without_any_or_with_too_few_items(metric):
    y = torch.tensor([[0, -1, 1], [0, -1, -1], [0, -1, -1]])
    labelled = Labelled(y, named(3), scores=torch.full((3, 3), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = get_method("mat", metric=metric).targets(torch.full((2, 3), 9.0), labelled, {})
    assert found.labels.tolist() == [[0, 0, int(metric != "precision")]] * 2  # one item is less than the support


def test_mat_looks_at_all_items_of_a_large_labelled_part():
    random = torch.Generator().manual_seed(0)
    seen = torch.randn(BLOCK + 40, 2, generator=random)
    y = (seen + 2 * torch.randn(seen.shape, generator=random) > 1).to(torch.int8)
    labelled = Labelled(y, named(2), scores=seen)
    expected = [by_hand("fbeta", 1.0, 1, y[:, k].tolist(), seen[:, k].sigmoid().tolist()) for k in range(2)]
    assert MAT(beta=1.0).thresholds(labelled).tolist() == expected


def test_mat_sets_items_apart_on_request(small_problem, tiny, silent, tmp_path):
    assert get_method("mat").share_apart == 0
    config = tiny(method="mat", method_options={"apart": 0.25}, **(RUN | {"epochs": 1}))
    run = run_training(small_problem, config, tmp_path / "run", watcher=silent)
    assert len(saved(run.path)["targets.labels"]) == len(small_problem.pile) + 6


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("plc", {"threshold": 0.4}, "threshold is 0.4; give a share from 0.5 to 1."),
        ("plc", {"threshold": 1.1}, "threshold is 1.1; give a share from 0.5 to 1."),
        ("plc", {"threshold": "0.6"}, "threshold is '0.6'; give a share from 0.5 to 1."),
        ("plc", {"tau": 0.6}, "method 'plc' has no option 'tau'; its options are threshold."),
        ("adsh", {"threshold": 0.3}, "threshold is 0.3; give a share from 0.5 to 1."),
        ("adsh", {"threshold": math.nan}, "threshold is nan; give a share from 0.5 to 1."),
        ("adsh", {"negatives": "some"}, "negatives is 'some'; it must be one of 'all', 'symmetric', 'complement'."),
        ("adsh", {"negative": "all"}, "has no option 'negative'; its options are threshold, negatives. Did you mean"),
        ("freematch", {"momentum": 1.5}, "momentum is 1.5; give a share from 0 to 1."),
        ("freematch", {"momentum": None}, "momentum is None; give a share from 0 to 1."),
        ("freematch", {"fairness": -0.1}, "fairness is -0.1; give a number of at least 0."),
        ("freematch", {"fairness": math.inf}, "fairness is inf; give a number of at least 0."),
        ("freematch", {"fairness": "0.1"}, "fairness is '0.1'; give a number of at least 0."),
        ("freematch", {"fair": 1}, "method 'freematch' has no option 'fair'; its options are momentum, fairness."),
        ("mat", {"metric": "f1"}, "metric is 'f1'; it must be one of 'fbeta', 'precision', 'recall'."),
        ("mat", {"beta": 0}, "beta is 0; give a number above 0."),
        ("mat", {"beta": math.nan}, "beta is nan; give a number above 0."),
        ("mat", {"beta": "1"}, "beta is '1'; give a number above 0."),
        ("mat", {"support": 0}, "support is 0; give a whole number of at least 1."),
        ("mat", {"support": 2.5}, "support is 2.5; give a whole number of at least 1."),
        ("mat", {"apart": 2}, "apart is 2; give a share from 0 to 1."),
        ("mat", {"betta": 1}, "has no option 'betta'; its options are metric, beta, support, apart. Did you mean"),
    ],
)
def test_bad_options(name, options, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        get_method(name, **options)


def test_mat_needs_scores_of_the_labelled_part():
    labelled = Labelled(torch.tensor([[1]]), named(1))
    with pytest.raises(TagspreadError, match="looks at the scores of the labelled part, and none were given"):
        get_method("mat").targets(torch.zeros(1, 1), labelled, {})
