"""LL-R, LL-Ct and LL-Cp, compared with loops over entries; what they keep through a run."""

import itertools
import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS, Labeled, Targets, get_method
from tagspread.methods.large_loss import LLCp, LLCt
from tagspread.train.trainer import run_training
from tests.methods.helpers import assert_same, highest, named, problems, saved, train_in_two_parts


def bce(logits, labels, weight):
    return ts.bce_loss(logits, labels, weight=weight, reduction="none")


def asl(logits, labels, weight):
    return ts.asl_loss(logits, labels, weight=weight, reduction="none")


def most_by_tags(y, observed="top1"):
    """Return the share of tags that the observed tag misses: (sum of class proportions - 1) / classes, exactly."""
    tags = Fraction(0)
    for column in y.T.tolist():
        known = [value for value in column if value >= 0]
        tags += Fraction(sum(known), len(known)) if known else 0
    return max(Fraction(0), tags - (observed == "top1")) / y.shape[1]


def chosen_entries(losses, labels, share):
    """Select the ceil(B q r) assumed negatives with the largest loss above 0; the first among equals."""
    rows, classes = len(losses), len(losses[0])
    candidates = [(j, k) for j in range(rows) for k in range(classes) if labels[j][k] == 0 and losses[j][k] > 0]
    candidates.sort(key=lambda entry: -losses[entry[0]][entry[1]])
    return candidates[: math.ceil(rows * classes * share)]


@st.composite
def steps(draw):
    """Draw scores of the unlabeled set, the student's logits of the same rows, and the epoch."""
    scores, labeled = draw(problems())
    elements = draw(st.sampled_from([st.sampled_from([-4.0, 0.0, 1.5]), st.floats(-9, 9, width=32), st.just(2.0)]))
    logits = torch.from_numpy(draw(hnp.arrays(np.float32, tuple(scores.shape), elements=elements)))
    labeled = replace(labeled, epoch=draw(st.integers(0, 4)), epochs=5, unlabeled_size=len(scores))
    options = {"step": draw(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.3, 1.0]))}
    options["most"] = draw(st.sampled_from([None, 0.0, 0.05, 0.5, 1.0]))
    options["observed"] = draw(st.sampled_from(["top1", "none"]))
    return scores, logits, labeled, options


@settings(max_examples=150, deadline=None)
@given(steps(), st.sampled_from([bce, asl]))
def test_llr_and_llct_equal_a_loop_over_entries(step, entry_loss):
    scores, logits, labeled, options = step
    observed = highest(scores, int(options["observed"] == "top1"))
    most = (
        most_by_tags(labeled.y.numpy(), options["observed"])
        if options["most"] is None
        else Fraction(str(options["most"]))
    )
    share = min(labeled.epoch * Fraction(str(options["step"])), most)
    losses = entry_loss(logits, torch.from_numpy(observed), None)
    chosen = chosen_entries(losses.tolist(), observed.tolist(), share)
    if_present = entry_loss(logits, torch.ones_like(logits), None)
    rejected, corrected = losses.clone(), losses.clone()
    for j, k in chosen:
        rejected[j, k], corrected[j, k] = 0.0, if_present[j, k]
    for name, expected in (("llr", rejected), ("llct", corrected)):
        method = get_method(name, **options)
        state = method.start(labeled)
        targets = method.targets(scores, labeled, state)
        np.testing.assert_array_equal(targets.labels.numpy(), observed)
        assert targets.weight is None
        student = logits.clone().requires_grad_()
        found = method.loss(student, targets, entry_loss, state)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        found.sum().backward()
        assert student.grad is not None
        for j, k in chosen:
            assert student.grad[j, k] == 0 if name == "llr" else student.grad[j, k] <= 0
        np.testing.assert_array_equal(targets.labels.numpy(), observed)  # no correction is kept


@settings(max_examples=100, deadline=None)
@given(steps(), st.sampled_from([bce, asl]), st.data())
def test_llcp_equals_a_loop_that_keeps_a_matrix(step, entry_loss, data):
    """Three epochs of two batches each, in which a row may come twice."""
    scores, logits, labeled, options = step
    rows, classes = scores.shape
    method = get_method("llcp", **options)
    state = method.start(labeled)
    kept: set[tuple[int, int]] = set()
    most = (
        most_by_tags(labeled.y.numpy(), options["observed"])
        if options["most"] is None
        else Fraction(str(options["most"]))
    )
    for epoch in range(3):
        now, moved = replace(labeled, epoch=epoch), scores.roll(epoch, 1)  # another most probable class
        expected = highest(moved, int(options["observed"] == "top1"))
        for j, k in kept:
            expected[j, k] = 1
        left = most - Fraction(len(kept), rows * classes)
        share = min(Fraction(str(options["step"])), max(Fraction(0), left)) if epoch else Fraction(0)
        targets = method.targets(moved, now, state)
        np.testing.assert_array_equal(targets.labels.numpy(), expected)
        for _ in range(2):
            places = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5))
            labels = [[int((p, k) in kept or expected[p, k]) for k in range(classes)] for p in places]
            losses = entry_loss(logits[places], torch.tensor(labels), None)
            for i, k in chosen_entries(losses.tolist(), labels, share):
                losses[i, k] = entry_loss(logits[places[i], k], torch.tensor(1), None)
                kept.add((places[i], k))
            at = torch.tensor(places)
            batch = Targets(targets.labels[at].float(), None, at)
            found = method.loss(logits[at], batch, entry_loss, state)
            torch.testing.assert_close(found, losses, rtol=0, atol=0)
            assert {tuple(entry) for entry in state["corrected"].nonzero().tolist()} == kept


@pytest.mark.parametrize("name", ["llr", "llct", "llcp"])
def test_exactly_so_many_entries_also_where_they_are_many_and_all_alike(name):
    """0.1 in single precision is a little more than 0.1: of 10000 entries it would take 1001."""
    labeled = Labeled(torch.ones(1, 100), named(100), epoch=1, epochs=3, unlabeled_size=100)
    method = get_method(name, step=0.1, most=1.0, observed="none")
    state = method.start(labeled)
    targets = method.targets(torch.zeros(100, 100), labeled, state)._replace(places=torch.arange(100))
    method.loss(torch.zeros(100, 100), targets, bce, state)
    found = method.loss(torch.ones(100, 100), targets, bce, state)
    changed = (found != bce(torch.ones(100, 100), targets.labels, None)).sum()
    assert int(changed) == (2000 if name == "llcp" else 1000)  # the loss was called twice


def test_shares_that_make_a_whole_number_of_entries_never_take_one_more():
    labeled = Labeled(torch.ones(1, 100), named(100), epoch=1, epochs=3, unlabeled_size=100)
    for thousandths in range(1, 100):
        method = get_method("llr", step=thousandths / 1000, most=1.0, observed="none")
        state = method.start(labeled)
        targets = method.targets(torch.zeros(100, 100), labeled, state)
        losses = method.loss(torch.zeros(100, 100), targets, bce, state)
        assert int((losses == 0).sum()) == 10 * thousandths


def test_the_default_cap_is_what_one_tag_per_image_misses():
    y = torch.zeros(8, 20, dtype=torch.int8)
    y[:, 0], y[:4, 1] = 1, 1  # 1.5 tags per image
    labeled = Labeled(y, named(20), epochs=28, unlabeled_size=50)
    for epoch, share in [(0, 0.0), (1, 0.001), (10, 0.01), (25, 0.025), (26, 0.025), (28, 0.025)]:
        for name in ("llr", "llct"):
            state = get_method(name).start(labeled)
            get_method(name).targets(torch.zeros(50, 20), replace(labeled, epoch=epoch), state)
            assert state["share"].item() == pytest.approx(share)
        state = get_method("llcp").start(labeled)
        get_method("llcp").targets(torch.zeros(50, 20), replace(labeled, epoch=epoch), state)
        assert state["share"].item() == pytest.approx(0.001 if epoch else 0.0)
    assert get_method("llr", observed="none").cap(labeled) == pytest.approx(0.075)  # type: ignore[attr-defined]
    state["corrected"][:, 7] = True  # 1 of 20 entries: more than the limit
    get_method("llcp").targets(torch.zeros(50, 20), replace(labeled, epoch=9), state)
    assert state["share"].item() == 0


@pytest.mark.parametrize("name", ["llr", "llct", "llcp"])
def test_entries_without_loss_and_observed_ones_are_never_touched(name):
    labeled = Labeled(torch.tensor([[1, 1, 1]]), named(3), epoch=3, epochs=5, unlabeled_size=2)
    method = get_method(name, step=1.0, most=1.0)
    state = method.start(labeled)
    targets = method.targets(torch.tensor([[5.0, 0, 0], [0, 0, 5]]), labeled, state)._replace(places=torch.arange(2))
    logits = torch.tensor([[-3.0, -9.0, 2.0], [-9.0, -3.0, -4.0]])  # f < 0.05 except for one entry: ASL is 0
    expected = asl(logits, targets.labels, None)
    expected[0, 2] = 0.0 if name == "llr" else asl(logits, torch.ones(2, 3), None)[0, 2]
    torch.testing.assert_close(method.loss(logits, targets, asl, state), expected, rtol=0, atol=0)
    if name == "llcp":
        assert state["corrected"].nonzero().tolist() == [[0, 2]]


RUN = {"warmup_epochs": 1, "epochs": 4, "batch": 16, "batch_labeled": 6, "loss": "bce"}
OPTIONS = {"step": 0.02, "most": 0.3}


def test_llcp_remembers_through_the_run_and_llct_does_not(small_problem, tiny, silent, tmp_path, monkeypatch):
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    @dataclass(frozen=True)
    class Spy(LLCp):
        def targets(self, scores, labeled, state):
            found = super().targets(scores, labeled, state)
            seen.append((state["corrected"].clone(), found.labels.clone(), scores.clone()))
            return found

    monkeypatch.setitem(METHODS, "spy", Spy)
    config = tiny(method="spy", method_options=OPTIONS, **RUN)
    run = run_training(small_problem, config, tmp_path / "llcp", watcher=silent)
    seen.append((saved(run.path)["method.corrected"], *seen[-1][1:]))
    counts = [int(corrected.sum()) for corrected, _, _ in seen]
    assert counts[0] == counts[1] == 0  # no corrections in the first epoch
    assert 0 < counts[2] < counts[3] < counts[4]
    for (corrected, labels, scores), (later, _, _) in itertools.pairwise(seen):
        assert (later >= corrected).all()  # corrections are permanent
        np.testing.assert_array_equal(labels.numpy(), np.maximum(highest(scores, 1), corrected.numpy()))

    @dataclass(frozen=True)
    class Temporary(LLCt):
        def targets(self, scores, labeled, state):
            found = super().targets(scores, labeled, state)
            np.testing.assert_array_equal(found.labels.numpy(), highest(scores, 1))
            return found

    monkeypatch.setitem(METHODS, "temporary", Temporary)
    config = tiny(method="temporary", method_options=OPTIONS, **RUN)
    run = run_training(small_problem, config, tmp_path / "llct", watcher=silent)
    assert saved(run.path).keys() & {"method.corrected", "method.share"} == {"method.share"}


def test_llcp_remembers_when_it_is_stopped_within_an_epoch(small_problem, tiny, silent, tmp_path, monkeypatch):
    config = tiny(method="llcp", method_options=OPTIONS, **RUN)
    whole = run_training(small_problem, config, tmp_path / "whole", watcher=silent)
    # an epoch of the main stage has 40 / 10 = 4 steps; this is the third of its third epoch
    parts = train_in_two_parts(small_problem, config, tmp_path / "parts", 1 + 2 * 4 + 3, silent, monkeypatch)
    assert_same(saved(whole.path), saved(parts.path))
    assert saved(whole.path)["method.corrected"].any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": 1.5}, "step is 1.5; give a share from 0 to 1"),
        ({"step": -0.1}, "step is -0.1; give a share"),
        ({"step": "0.1"}, "step is '0.1'; give a share"),
        ({"step": None}, "step is None; give a share"),
        ({"most": 2}, "most is 2; give a share"),
        ({"most": math.nan}, "most is nan; give a share"),
        ({"observed": "top2"}, "observed is 'top2'; it must be one of 'top1', 'none'. Did you mean 'top1'?"),
        ({"delta": 0.1}, "has no option 'delta'; its options are step, most, observed."),
    ],
)
@pytest.mark.parametrize("name", ["llr", "llct", "llcp"])
def test_bad_options(name, options, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        get_method(name, **options)


def test_llcp_must_know_its_rows():
    labeled = Labeled(torch.tensor([[1]]), named(1), unlabeled_size=1)
    method = get_method("llcp")
    with pytest.raises(TagspreadError, match=r"set Targets\.places to the batch's rows"):
        method.loss(torch.zeros(1, 1), Targets(torch.zeros(1, 1)), bce, method.start(labeled))
