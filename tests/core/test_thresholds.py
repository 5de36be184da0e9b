import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tagspread as ts
from tagspread.core import ranking

from . import reference

RNG = np.random.default_rng(0)


@st.composite
def problems(draw):
    """Draw scores with ties, infinities and signed zeros; counts from an empty to a full class; totals per class."""
    rows, classes = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    few = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.5, 1.0, np.inf])
    elements = draw(st.sampled_from([few, st.floats(-2, 2, width=16), st.just(0.25)]))
    scores = draw(hnp.arrays(dtype, (rows, classes), elements=elements))
    layout = draw(st.sampled_from(["plain", "columns", "reversed", "strided"]))
    if layout == "columns":
        scores = np.asfortranarray(scores)
    elif layout == "reversed":
        scores = scores[::-1, ::-1]
    elif layout == "strided":
        scores = np.repeat(scores, 2, axis=0)[::2]
    labeled = draw(st.lists(st.integers(0, 40), min_size=classes, max_size=classes).filter(any))
    positives = [draw(st.integers(0, total)) for total in labeled]
    keep = st.one_of(st.sampled_from([0.0, 0.7, 0.998, 1.0]), st.floats(0, 1))
    return scores, positives, labeled, draw(keep), draw(keep)


@settings(max_examples=400, deadline=None)
@given(problems())
def test_equals_brute_force_in_numpy_and_torch(dataset):
    scores, positives, labeled, keep_pos, keep_neg = dataset
    before = scores.copy()
    expected = reference.cat_targets(scores, positives, labeled, keep_pos, keep_neg)
    found = ts.cat_targets(scores, positives, labeled, keep_pos, keep_neg)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scores, before)  # the arguments are not changed in place
    tensor = torch.from_numpy(scores.copy())
    again = ts.cat_targets(tensor, torch.tensor(positives), torch.tensor(labeled), keep_pos, keep_neg)
    assert isinstance(again, torch.Tensor)
    np.testing.assert_array_equal(again.numpy(), expected)
    # what a GPU runs, here on the CPU
    rows, classes = scores.shape
    quotas = ts.quotas(positives, labeled, rows, classes, keep_pos, keep_neg)
    np.testing.assert_array_equal(ranking._targets_by_sorting(tensor, *quotas).numpy(), expected)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_thresholds_are_the_scores_of_the_last_rows_chosen(dataset):
    scores, positives, labeled, keep_pos, keep_neg = dataset
    targets = reference.cat_targets(scores, positives, labeled, keep_pos, keep_neg)
    tau_pos, tau_neg = ts.cat_thresholds(scores, positives, labeled, keep_pos, keep_neg)
    for k in range(scores.shape[1]):
        chosen, rejected = scores[targets[:, k] == 1, k], scores[targets[:, k] == 0, k]
        assert tau_pos[k] == (chosen.min() if chosen.size else np.inf)
        assert tau_neg[k] == (rejected.max() if rejected.size else -np.inf)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_in_threads_equal_a_full_sort(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    scores = RNG.normal(size=(5000, 37)).astype(np.float32).round(2)  # plenty of ties
    positives, labeled = RNG.integers(0, 101, 37), 100
    order = np.argsort(-scores, axis=0, kind="stable")
    expected = np.full(scores.shape, -1)
    for k in range(37):
        expected[order[: positives[k] * 5000 // 100, k], k] = 1
        expected[order[5000 - (100 - positives[k]) * 5000 // 100 :, k], k] = 0
    np.testing.assert_array_equal(ts.cat_targets(scores, positives, labeled), expected)


def test_quota_met_and_at_most_one_entry_left_over():
    scores = RNG.permutation(1000 * 8).reshape(1000, 8).astype(np.float32)
    positives = RNG.integers(1, 37, 8)
    targets = ts.cat_targets(scores, positives, 37)
    np.testing.assert_array_equal((targets == 1).sum(0), positives * 1000 // 37)
    assert ((targets == -1).sum(0) <= 1).all()


@pytest.mark.parametrize("scores", [np.zeros((7, 3)), RNG.normal(size=(7, 3))])
def test_degenerate_classes(scores):
    targets = ts.cat_targets(scores, [0, 10, 5], 10)
    assert (targets[:, 0] == 0).all()  # no labeled positive: no pseudo-positive
    assert (targets[:, 1] == 1).all()  # always positive
    assert (targets[:, 2] == 1).sum() == 3  # constant scores: the quota, not everything
    assert (ts.cat_targets(scores, [0, 10, 5], 10, keep_pos=0, keep_neg=0) == -1).all()


def test_ties_go_to_the_lower_row():
    assert ts.cat_targets(np.zeros((4, 1)), [1], 2).ravel().tolist() == [1, 1, 0, 0]
    assert ts.cat_targets(np.zeros((4, 1)), [1], 2, 0.5, 0.5).ravel().tolist() == [1, -1, -1, 0]


def test_half_precision_ties_do_not_inflate_the_quota():
    logits = np.linspace(5, 20, 10_000)[:, None]
    probabilities = torch.from_numpy(logits).sigmoid().half()  # nearly all are exactly 1.0
    assert int((ts.cat_targets(probabilities, [1], 5) == 1).sum()) == 2000
    bfloat = torch.tensor([[0.1], [0.4], [0.2]], dtype=torch.bfloat16)
    assert ts.cat_targets(bfloat, [1], 3).ravel().tolist() == [0, 1, 0]


def test_quotas_are_exact_where_floats_are_not():
    assert int(3 / 22 * 418) == 56  # as the released code computes it
    assert ts.quotas([3], 22, 418, 1)[0] == [57]
    assert ts.quotas([10], 10, 10, 1, keep_pos=0.7)[0] == [7]
    assert ts.quotas([10], 10, 10, 1, keep_pos=torch.tensor(0.7))[0] == [7]  # float32 0.7 is below 0.7
    assert ts.quotas([10], 10, 10, 1, keep_pos=np.float32(0.7))[0] == [7]
    assert ts.quotas([2**40], 2**40, 2**40, 1) == ([2**40], [0])  # no overflow


def test_keep_may_differ_per_class():
    assert ts.quotas([5, 5], 10, 100, 2, keep_pos=[1.0, 0.5], keep_neg=[0.2, 1.0]) == ([50, 25], [10, 50])


def test_class_without_any_known_label_is_ignored():
    assert ts.quotas([0, 1], [0, 2], 10, 2) == ([0, 5], [0, 5])


def test_priors_replace_counts_class_by_class():
    assert ts.quotas(None, None, 100, 2, priors=[0.12, 0.5]) == ([12, 50], [88, 50])
    assert ts.quotas([1, 1], 4, 100, 2, priors=[np.nan, 0.5]) == ([25, 50], [75, 50])


def test_class_counts():
    y = np.array([[1, 0, -1], [1, 1, -1]])
    positives, known = ts.class_counts(y)
    assert positives.tolist() == [2, 1, 0]
    assert known.tolist() == [2, 2, 0]
    assert isinstance(ts.class_counts(torch.from_numpy(y))[0], torch.Tensor)
    assert ts.class_counts(y.astype(bool))[0].tolist() == [2, 1, 2]
    assert ts.class_counts(y.astype(np.float32))[1].tolist() == [2, 2, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@settings(max_examples=50, deadline=None)
@given(problems())
def test_gpu_equals_cpu(dataset):
    scores, *rest = dataset
    on_gpu = torch.from_numpy(scores.copy()).cuda()
    expected = ts.cat_targets(scores, *rest)
    np.testing.assert_array_equal(ts.cat_targets(on_gpu, *rest).cpu().numpy(), expected)
    for ours, theirs in zip(ts.cat_thresholds(on_gpu, *rest), ts.cat_thresholds(scores, *rest), strict=True):
        np.testing.assert_array_equal(ours.cpu().numpy(), theirs)


GOOD = np.linspace(0, 1, 8).reshape(4, 2)
HOLE = np.array([[0.1, 0.2], [0.3, np.nan]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ts.cat_targets(HOLE, [1, 1], 2), "scores holds NaN at row 1, class 1"),
        (lambda: ts.cat_thresholds(HOLE, [1, 1], 2), "scores holds NaN at row 1, class 1"),
        (lambda: ranking._targets_by_sorting(torch.from_numpy(HOLE), [1, 1], [1, 1]), "NaN at row 1, class 1"),
        (lambda: ts.cat_targets(GOOD.ravel(), [1, 1], 2), r"scores has shape \(8,\)"),
        (lambda: ts.cat_targets(GOOD[:0], [1, 1], 2), "scores has no rows"),
        (lambda: ts.cat_targets(GOOD[:, :0], [], 2), "scores has no classes"),
        (lambda: ts.cat_targets([["a", "b"]], [1, 1], 2), "scores holds .* entries; give numbers"),
        (lambda: ts.cat_targets(GOOD, [1], 2), r"positives has shape \(1,\) but there are 2 classes"),
        (lambda: ts.cat_targets(GOOD, [1, 3], 2), "positives is 3 for class 1 but labeled is 2"),
        (lambda: ts.cat_targets(GOOD, [1, -3], 2), "positives is -3 for class 1"),
        (lambda: ts.cat_targets(GOOD, [1, 0.5], 2), "positives is 0.5 for class 1.*priors"),
        (lambda: ts.cat_targets(GOOD, [0, 0], 0), "labeled is 0 for every class"),
        (lambda: ts.cat_targets(GOOD, [1, 1], [2, np.inf]), "labeled is inf for class 1"),
        (lambda: ts.cat_targets(GOOD, [1, 1], 2, keep_pos=-0.1), "keep_pos is -0.1 for class 0.*0 to 1"),
        (lambda: ts.cat_targets(GOOD, [1, 1], 2, keep_neg=1.5), "keep_neg is 1.5 for class 0.*0 to 1"),
        (lambda: ts.cat_targets(GOOD, [1, 1], 2, keep_neg=np.nan), "keep_neg is nan"),
        (lambda: ts.cat_targets(GOOD, priors=[0.2, 1.2]), "priors is 1.2 for class 1"),
        (lambda: ts.cat_targets(GOOD, priors=[0.2, np.nan]), "class 1 has no prior"),
        (lambda: ts.cat_targets(GOOD), "class 0 has no prior"),
        (lambda: ts.class_counts([[1, 2]]), "y holds 2 at row 0, class 1.*-1"),
        (lambda: ts.class_counts(np.array([[1, 0], [0.5, 0]])), "y holds 0.5 at row 1, class 0"),
        (lambda: ts.class_counts(np.array([[1, np.nan]])), "y holds nan at row 0, class 1"),
        (lambda: ts.class_counts([[257, 0]]), "y holds 257 at row 0"),
        (lambda: ts.class_counts([1, 0]), r"y has shape \(2,\)"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
