"""Heads fitted in the space of the rows are those fitted on all features."""

import numpy as np
import pytest
import torch
from scipy import sparse

import tagspread as ts
from tagspread.linear import row_space
from tagspread.linear.heads import DenseRows, Part, SparseRows, scores
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.row_space import RowSpace

HEAD = LogisticHead(tolerance=1e-7)


def rows_of(count, width, views=1, rank=None, seed=0):
    rng = np.random.default_rng(seed)
    rank = rank or width
    x = rng.normal(size=(views, count, rank)) @ rng.normal(size=(rank, width)) / rank**0.5
    return DenseRows(torch.from_numpy(x.astype(np.float32)))


@pytest.mark.parametrize(("views", "rank"), [(1, None), (2, None), (1, 3)])
def test_same_head(views, rank):
    labeled, unlabeled = rows_of(12, 80, views, rank), rows_of(7, 80, views, rank, seed=1)
    y = torch.from_numpy(np.random.default_rng(2).integers(-1, 2, (19, 3)).astype(np.int8))
    space = RowSpace.of(labeled, unlabeled)
    assert space is not None
    assert space.basis.shape == (80, 19 * views)

    def fit(first, second):
        parts = [Part(first, y[:12]), Part(second, y[12:], share=0.3)]
        return HEAD.fit(parts, HEAD.start(first.width, 3, torch.device("cpu")), 0.05)

    full = fit(labeled, unlabeled)
    found = space.expand(fit(space.reduce(labeled), space.reduce(unlabeled)))
    for one, other in zip(found[0], full[0], strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=0)
    new = rows_of(50, 80, seed=3)
    torch.testing.assert_close(scores(new, found), scores(new, full), atol=2e-3, rtol=0)


def test_only_few_dense_rows_are_reduced():
    assert RowSpace.of(rows_of(30, 80), rows_of(11, 80)) is None
    assert RowSpace.of(SparseRows(sparse.csr_array(np.eye(4, 80, dtype=np.float32)))) is None
    assert RowSpace.of(rows_of(0, 80)) is None


def test_the_estimator_chooses_and_learns_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    y = (rng.random((60, 4)) < 0.4).astype(int)
    x = rng.normal(size=(60, 200)) + y @ rng.normal(size=(4, 200))
    truth, y[30:] = y.copy(), -1
    reduced = ts.TagSpreadClassifier().fit(x, y)
    monkeypatch.setattr(row_space, "LARGEST_SHARE", 0.0)
    full = ts.TagSpreadClassifier().fit(x, y)
    assert reduced.settings_ == full.settings_
    np.testing.assert_allclose(reduced.coef_, full.coef_, atol=1e-3)
    assert reduced.score(x[30:], truth[30:]) == pytest.approx(full.score(x[30:], truth[30:]), abs=1e-4)
    for trial, other in zip(reduced.trials_, full.trials_, strict=True):
        assert trial["mAP"] == pytest.approx(other["mAP"], abs=0.01)
