import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import average_precision_score, precision_score, recall_score

import tagspread as ts
from tagspread.core import metrics


def reference_ap(scores, y):
    """Compute AP class by class with scikit-learn, leaving out unknown entries."""
    found = []
    for k in range(scores.shape[1]):
        known = y[:, k] >= 0
        if (y[:, k] == 1).any():
            found.append(average_precision_score(y[known, k], scores[known, k]))
        else:
            found.append(np.nan)
    return np.array(found)


@st.composite
def problems(draw):
    shape = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    few = st.sampled_from([-3.0, -0.0, 0.0, 0.5, 1.0])
    elements = draw(st.sampled_from([few, st.floats(-2, 2, width=16)]))
    scores = draw(hnp.arrays(draw(st.sampled_from([np.float16, np.float32, np.float64])), shape, elements=elements))
    labels = draw(hnp.arrays(np.int8, shape, elements=st.sampled_from([-1, 0, 0, 1])))
    return scores, labels


@settings(max_examples=300, deadline=None)
@given(problems())
def test_ap_equals_scikit_learn(dataset):
    scores, y = dataset
    expected = reference_ap(scores, y)
    np.testing.assert_allclose(ts.average_precision(scores, y), expected, atol=1e-6)
    on_torch = ts.average_precision(torch.from_numpy(scores), torch.from_numpy(y))
    assert isinstance(on_torch, torch.Tensor)
    np.testing.assert_allclose(on_torch.numpy(), expected, atol=1e-6)


def test_map_on_larger_data_in_several_blocks(monkeypatch):
    rng = np.random.default_rng(3)
    scores, y = rng.normal(size=(900, 11)).astype(np.float32).round(1), rng.integers(-1, 2, (900, 11))
    y[:, 4] = 0
    monkeypatch.setattr(metrics, "CELLS_AT_ONCE", 2000)  # two classes at a time
    expected = reference_ap(scores, y)
    assert ts.mean_average_precision(scores, y) == pytest.approx(np.nanmean(expected), abs=1e-6)
    assert ts.mean_average_precision(scores, y, return_skipped=True)[1] == 1
    assert ts.mean_average_precision(scores, y, absent="zero") == pytest.approx(np.nansum(expected) / 11, abs=1e-6)
    assert ts.mean_average_precision(scores, y, "zero", return_skipped=True)[1] == 0


def test_infinite_scores_and_no_positive_at_all():
    scores = np.array([[np.inf], [np.inf], [-np.inf], [0.0]])
    assert ts.average_precision(scores, [[1], [0], [1], [-1]]).tolist() == pytest.approx([0.5 * 0.5 + 0.5 * 2 / 3])
    assert np.isnan(ts.mean_average_precision(scores, [[0]] * 4))


def test_interval_equals_a_literal_bootstrap():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, (60, 3))
    scores = (y + rng.normal(size=y.shape)).round(1)
    y[:5, 0] = -1
    low, high = ts.mean_average_precision_interval(scores, y, samples=40, seed=5, confidence=0.8)
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randint(60, (40, 60), generator=generator).numpy()
    values = [np.nanmean(reference_ap(scores[rows], y[rows])) for rows in drawn]
    estimate, tails = np.nanmean(reference_ap(scores, y)), np.quantile(values, [0.9, 0.1])
    assert (low, high) == pytest.approx(tuple(2 * estimate - tails), abs=1e-6)
    assert (low, high) == ts.mean_average_precision_interval(scores, y, samples=40, seed=5, confidence=0.8)
    assert (low, high) != ts.mean_average_precision_interval(scores, y, samples=40, seed=6, confidence=0.8)


@pytest.mark.parametrize(("rows", "classes", "share", "signal"), [(300, 4, 0.3, 1.0), (600, 10, 0.03, 0.5)])
def test_interval_covers_the_population_value(rows, classes, share, signal):
    rng = np.random.default_rng(0)
    y = rng.random((40_000, classes)) < share
    scores = signal * y + rng.normal(size=y.shape)
    truth = ts.mean_average_precision(scores, y)
    covered = 0
    for trial in range(100):
        drawn = rng.integers(0, len(y), rows)
        low, high = ts.mean_average_precision_interval(scores[drawn], y[drawn], samples=200, seed=trial)
        covered += low <= truth <= high
    assert covered >= 80  # nominal coverage is 90; percentile intervals cover 0 of 100 in the second case


@settings(max_examples=200, deadline=None)
@given(problems())
def test_report_equals_scikit_learn(dataset):
    scores, y = dataset
    y = np.abs(y)  # scikit-learn does not support unknown labels
    pred = (scores > 0).astype(int)
    report = ts.multilabel_report(pred, y)
    parity = ts.multilabel_report(pred, y, undefined="skip")
    assert report["OP"] == pytest.approx(precision_score(y.ravel(), pred.ravel(), zero_division=0.0))
    assert report["OR"] == pytest.approx(recall_score(y.ravel(), pred.ravel(), zero_division=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision = [precision_score(y[:, k], pred[:, k], zero_division=np.nan) for k in range(y.shape[1])]
        recall = [recall_score(y[:, k], pred[:, k], zero_division=np.nan) for k in range(y.shape[1])]
        assert parity["CP"] == pytest.approx(np.nan_to_num(np.nanmean(precision)))
        assert parity["CR"] == pytest.approx(np.nan_to_num(np.nanmean(recall)))
        missed = (pred.sum(0) == 0) & (y.sum(0) > 0)
        assert report["CP"] == pytest.approx(np.nan_to_num(np.nanmean(np.where(missed, 0, precision))))
    for p, r, f in (("OP", "OR", "OF1"), ("CP", "CR", "CF1")):
        total = report[p] + report[r]
        assert report[f] == pytest.approx(2 * report[p] * report[r] / total if total else 0.0)


def test_report_masks_unknown_entries_and_knows_empty_cases():
    assert ts.multilabel_report([[1], [1]], [[1], [-1]])["OP"] == 1.0
    assert set(ts.multilabel_report([[0]], [[0]]).values()) == {0.0}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ts.average_precision([[np.nan]], [[1]]), "scores holds NaN at row 0, class 0"),
        (lambda: ts.average_precision([[1.0]], [[1], [0]]), r"scores has shape \(1, 1\) but y has shape \(2, 1\)"),
        (lambda: ts.average_precision([[1.0]], [[3]]), "y holds 3 at row 0, class 0"),
        (lambda: ts.average_precision(np.zeros((0, 2)), np.zeros((0, 2))), "scores has no rows"),
        (lambda: ts.average_precision(np.zeros((2, 0)), np.zeros((2, 0))), "scores has no classes"),
        (lambda: ts.mean_average_precision([[1.0]], [[1]], absent="skp"), "absent is 'skp'.*Did you mean 'skip'"),
        (lambda: ts.mean_average_precision_interval([[1.0]], [[1]], samples=0), "samples is 0"),
        (lambda: ts.mean_average_precision_interval([[1.0]], [[1]], confidence=1.0), "confidence is 1.0"),
        (lambda: ts.multilabel_report([[0.4]], [[1]]), "pred holds 0.4"),
        (lambda: ts.multilabel_report([[-1]], [[1]]), "pred holds -1; a decision is 1 or 0"),
        (lambda: ts.multilabel_report([[1]], [[1]], undefined="no"), "undefined is 'no'"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
