import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import f1_score, precision_score

from tagspread.core.decision import choose_thresholds, decide

POLICIES = ["f1", "fbeta:2", "fbeta:0.5", "precision:0.9", "precision:0.5", "precision:1", "match"]
RNG = np.random.default_rng(0)


@st.composite
def labeled_scores(draw):
    """Draw few distinct scores (so many ties), unknown entries, and classes without a positive."""
    rows, classes = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    elements = draw(st.sampled_from([st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0]), st.floats(-2, 2, width=32)]))
    scores = draw(hnp.arrays(dtype, (rows, classes), elements=elements))
    y = draw(hnp.arrays(np.int8, (rows, classes), elements=st.sampled_from([1, 0, -1])))
    return scores, y


def goodness(policy, chosen, label, rows):
    """Return the value of a set of predicted rows by a policy, as an exact fraction; larger is better."""
    n, t, p = int(chosen.sum()), int((chosen & (label == 1)).sum()), int((label == 1).sum())
    name, _, number = policy.partition(":")
    if name == "precision":
        return Fraction(t if t >= Fraction(number) * n else -1)
    if name == "match":
        n_labeled = int((label >= 0).sum())
        return -abs(n - Fraction(p, n_labeled) * rows)
    square = Fraction(number or "1") ** 2
    return Fraction((1 + square) * t) / (square * p + n) if p else Fraction(0)


def brute_force(policy, score, label):
    """Try every set of rows that a threshold can predict; among the best, return the smallest."""
    eligible = np.ones(len(label), bool) if policy == "match" else label >= 0
    thresholds = [math.inf, *sorted(set(score[eligible].tolist()), reverse=True)]
    sets = [eligible & (score >= threshold) for threshold in thresholds]
    return max(sets, key=lambda chosen: (goodness(policy, chosen, label, len(score)), -chosen.sum())), eligible


@settings(max_examples=300, deadline=None)
@given(labeled_scores(), st.sampled_from(POLICIES))
def test_every_class_equals_brute_force(drawn, policy):
    scores, y = drawn
    if not (y == 1).any():
        y[0, 0] = 1
    before = scores.copy()
    decision = choose_thresholds(scores, y, policy, min_positives=1, enough_positives=1)
    assert decision.thresholds.dtype == np.float64
    assert decision.rare == tuple(np.flatnonzero((y == 1).sum(0) < 1))
    for k in range(scores.shape[1]):
        if k in decision.rare:
            assert decision.thresholds[k] == decision.pooled
            continue
        expected, seen = brute_force(policy, scores[:, k], y[:, k])
        found = decide(scores, decision.thresholds)[:, k] == 1
        np.testing.assert_array_equal(found[seen], expected[seen])
        if policy.startswith("precision"):
            assert (k in decision.unreachable) == (not expected.any())
    again = choose_thresholds(
        torch.from_numpy(scores), torch.from_numpy(y), policy, min_positives=1, enough_positives=1
    )
    assert isinstance(again.thresholds, torch.Tensor)
    np.testing.assert_array_equal(again.thresholds.numpy(), decision.thresholds)
    np.testing.assert_array_equal(scores, before)


@settings(max_examples=100, deadline=None)
@given(labeled_scores(), st.sampled_from(POLICIES[:-1]))
def test_the_pooled_threshold_is_that_of_all_entries_as_one_class(drawn, policy):
    scores, y = drawn
    y[0, 0] = 1
    decision = choose_thresholds(scores, y, policy, min_positives=10**6)
    assert decision.rare == tuple(range(scores.shape[1]))
    assert (decision.thresholds == decision.pooled).all()
    one = choose_thresholds(scores.reshape(-1, 1), y.reshape(-1, 1), policy, min_positives=1)
    assert one.thresholds.tolist() == [decision.pooled]


def test_no_threshold_gives_a_better_f1_says_scikit_learn():
    scores = RNG.normal(size=(200, 4))
    y = (scores + RNG.normal(size=scores.shape) > 1).astype(int)
    thresholds = choose_thresholds(scores, y).thresholds
    for k in range(4):
        found = f1_score(y[:, k], scores[:, k] >= thresholds[k])
        assert found == pytest.approx(max(f1_score(y[:, k], scores[:, k] >= cut) for cut in scores[:, k]))
    floor = choose_thresholds(scores, y, "precision:0.8")
    for k in range(4):
        assert precision_score(y[:, k], scores[:, k] >= floor.thresholds[k]) >= 0.8


def test_match_chooses_each_tag_as_often_as_it_occurs_and_needs_no_labels():
    scores = RNG.permutation(1000 * 3).reshape(1000, 3) / 3000
    decision = choose_thresholds(scores, policy="match", proportions=[0.1, 0.0, np.nan])
    assert decide(scores, decision.thresholds).sum(0)[:2].tolist() == [100, 0]
    assert math.isinf(decision.thresholds[1])
    assert decision.rare == (2,)  # its frequency is unknown
    pooled = choose_thresholds(scores[:, :2].reshape(-1, 1), policy="match", proportions=[0.05])
    assert decision.thresholds[2] == decision.pooled == pooled.thresholds[0]


def test_rare_classes_share_a_threshold():
    scores = np.array([[0.9, 0.2], [0.8, 0.3], [0.2, 0.1], [0.1, 0.4]])
    y = np.array([[1, 0], [1, 0], [0, 0], [0, 1]])
    decision = choose_thresholds(scores, y, min_positives=2, enough_positives=2)
    assert decision.rare == (1,)
    assert decision.thresholds[0] == pytest.approx(0.5)
    assert decision.thresholds[1] == decision.pooled == pytest.approx(0.35)


@settings(max_examples=100, deadline=None)
@given(labeled_scores(), st.sampled_from(POLICIES), st.integers(2, 5))
def test_few_positives_are_filled_up_with_the_entries_of_all_classes(drawn, policy, enough):
    """Reference: repeat the rows of the class, and the entries of all classes, as often as they count."""
    scores, y = drawn
    y[0, 0] = 1
    total = int((y == 1).sum())
    decision = choose_thresholds(scores, y, policy, min_positives=1, enough_positives=enough)
    positives = (y == 1).sum(0)
    assert set(decision.shrunken) == set(np.flatnonzero((positives > 0) & (positives < enough)))
    for k in decision.shrunken:
        is_match, label = policy == "match", y[:, k]
        if is_match and ((label < 0).any() or (y < 0).any()):
            continue  # then the share of each class is of other rows, which repeating rows cannot express
        own, pool = scores[:, k], scores.ravel()
        times, more = total, enough - int(positives[k])
        repeated = np.concatenate([np.repeat(own, times), np.repeat(pool, more)])
        labels = np.concatenate([np.repeat(label, times), np.repeat(y.ravel(), more)])
        expected, seen = brute_force(policy, repeated, labels)
        found = repeated >= decision.thresholds[k]
        if not is_match:  # rounding decides between equal distances
            np.testing.assert_array_equal(found[seen], expected[seen])
        else:
            best = goodness(policy, expected, labels, len(labels))
            assert goodness(policy, found, labels, len(labels)) == pytest.approx(float(best))


def test_a_few_low_positives_do_not_pull_the_threshold_down():
    """Otherwise F1 is best where every second row is predicted."""
    rng = np.random.default_rng(0)
    scores = np.column_stack([np.r_[rng.uniform(0.6, 1, 40), rng.uniform(0, 0.4, 160)] for _ in range(3)])
    y = np.column_stack([np.repeat([1, 0], [40, 160]) for _ in range(3)])
    y[:, 2], scores[:40, 2] = 0, rng.uniform(0, 0.4, 40)
    y[180:185, 2], scores[180:185, 2] = 1, [0.21, 0.2, 0.2, 0.2, 0.2]
    alone = choose_thresholds(scores, y, enough_positives=1)
    together = choose_thresholds(scores, y)
    assert decide(scores, alone.thresholds)[:, 2].sum() > 80
    assert decide(scores, together.thresholds)[:, 2].sum() < 10
    assert together.shrunken == (2,)
    assert together.thresholds[:2].tolist() == alone.thresholds[:2].tolist()


def test_the_threshold_lies_between_scores_even_between_neighboring_numbers():
    low = np.float32(0.5)
    high = np.nextafter(low, np.float32(1))
    scores = np.array([[high], [low]], np.float32)
    threshold = choose_thresholds(scores, [[1], [0]], min_positives=1).thresholds[0]
    assert low < threshold <= high
    assert decide(scores, [threshold]).ravel().tolist() == [1, 0]
    assert decide(scores.astype(np.float64), [threshold]).ravel().tolist() == [1, 0]
    close = np.array([[np.nextafter(0.5, 1)], [0.5]])
    assert decide(close, choose_thresholds(close, [[1], [0]], min_positives=1).thresholds).ravel().tolist() == [1, 0]


def test_half_precision_scores_are_widened():
    scores = torch.tensor([[0.75], [0.25]], dtype=torch.bfloat16)
    assert choose_thresholds(scores, torch.tensor([[1], [0]]), min_positives=1).thresholds.tolist() == [0.5]
    assert decide(scores, torch.tensor([0.5])).ravel().tolist() == [1, 0]


def test_a_floor_is_met_exactly_where_floats_are_not():
    scores, y = np.arange(10, 0, -1.0)[:, None], np.ones((10, 1), int)
    y[4] = 0
    assert decide(scores, choose_thresholds(scores, y, "precision:0.9").thresholds).sum() == 10  # 9 of 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[0.1]], [[1]], "f2"), "policy is 'f2'; it must be f1, "),
        (([[0.1]], [[1]], "fbeta"), "such as fbeta:2"),
        (([[0.1]], [[1]], "fbeta:0"), "such as fbeta:2"),
        (([[0.1]], [[1]], "fbeta:inf"), "such as fbeta:2"),
        (([[0.1]], [[1]], "precision:90"), "at most 1"),
        (([[0.1]], [[1]], "precision:much"), "at most 1"),
        (([[0.1]], [[1]], "f1:2"), "policy is 'f1:2'"),
        (([[0.1]], None, "f1"), "y is missing"),
        (([[0.1]], None, "match"), "needs the frequency of each class"),
        (([[0.1]], [[0]], "f1"), "no positive at all"),
        (([[0.1]], [[-1]], "match"), "unknown for every class"),
        (([[0.1, 0.2]], [[1]], "f1"), "has shape"),
        (([[np.nan]], [[1]], "f1"), "scores holds nan at row 0, class 0"),
        (([[np.inf]], [[1]], "f1"), "scores holds inf at row 0, class 0"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        choose_thresholds(*arguments)


def test_proportions_are_checked():
    with pytest.raises(ValueError, match="share from 0 to 1"):
        choose_thresholds([[0.1]], policy="match", proportions=[1.5])
    with pytest.raises(ValueError, match="one number per class"):
        choose_thresholds([[0.1]], policy="match", proportions=[0.5, 0.5])
    with pytest.raises(ValueError, match="proportions are given"):
        choose_thresholds([[0.1]], [[1]], "f1", proportions=[0.5])
    with pytest.raises(ValueError, match="min_positives is 0"):
        choose_thresholds([[0.1]], [[1]], min_positives=0)
    with pytest.raises(ValueError, match="thresholds have shape"):
        decide([[0.1]], [0.1, 0.2])
