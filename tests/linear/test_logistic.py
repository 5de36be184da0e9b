"""Logistic regression on parts, compared with scikit-learn: dense and sparse, one view and two."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from tagspread.core.losses import bce_loss
from tagspread.linear import heads as rows_module
from tagspread.linear.heads import DenseRows, Part, SparseRows, scores
from tagspread.linear.logistic import LogisticHead, fit_logistic, gradient
from tagspread.linear.perceptron import PerceptronHead


def dataset(rows=60, width=4, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, width)).astype(np.float32)
    y = (x @ rng.normal(size=(width, classes)) + rng.normal(size=(rows, classes)) > 0).astype(np.int8)
    return x, y


def fit(parts, classes, width, ridge=0.05):
    head = LogisticHead(tolerance=1e-7)
    ((weight, bias),) = head.fit(parts, head.start(width, classes, torch.device("cpu")), ridge)
    return weight.numpy(), bias.numpy()


def test_importance_of_parts_and_entries_is_scikit_learns_sample_weight():
    x, y = dataset()
    importance = np.random.default_rng(1).uniform(0.1, 2.0, size=(30, 3)).astype(np.float32)
    parts = [
        Part(DenseRows(torch.from_numpy(x[:30])), torch.from_numpy(y[:30])),
        Part(DenseRows(torch.from_numpy(x[30:])), torch.from_numpy(y[30:]), torch.from_numpy(importance), share=0.3),
    ]
    weight, bias = fit(parts, 3, 4)
    for k in range(3):
        reference = LogisticRegression(C=1 / (0.05 * (30 + 0.3 * 30)), tol=1e-9, max_iter=1000)
        reference.fit(x, y[:, k], sample_weight=np.concatenate([np.ones(30), 0.3 * importance[:, k]]))
        np.testing.assert_allclose(weight[k], reference.coef_[0], atol=2e-3)
        np.testing.assert_allclose(bias[k], reference.intercept_[0], atol=2e-3)


def test_unknown_entries_are_left_out_of_their_class():
    x, y = dataset()
    y[::3, 0] = -1
    weight, _ = fit([Part(DenseRows(torch.from_numpy(x)), torch.from_numpy(y))], 3, 4)
    known = y[:, 0] >= 0
    # the mean is over all rows, with a known label or not
    reference = LogisticRegression(C=1 / (0.05 * 60), tol=1e-9, max_iter=1000).fit(x[known], y[known, 0])
    np.testing.assert_allclose(weight[0], reference.coef_[0], atol=2e-3)


def test_sparse_rows_give_what_dense_rows_give():
    x, y = dataset(rows=200, width=30)
    x[np.abs(x) < 1] = 0
    labels = torch.from_numpy(y)
    rows = (DenseRows(torch.from_numpy(x)), SparseRows(sparse.csr_array(x)))
    dense, thin = ([Part(kind, labels)] for kind in rows)
    anywhere = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 31)).astype(np.float32))
    torch.testing.assert_close(gradient(dense, anywhere, 0.1), gradient(thin, anywhere, 0.1), rtol=1e-5, atol=1e-6)
    # near the minimum, rounding dominates the gradient; how close a fit ends to it depends on the machine
    for of_dense, of_thin in zip(fit(dense, 3, 30), fit(thin, 3, 30), strict=True):
        np.testing.assert_allclose(of_dense, of_thin, atol=2e-3)
    some = torch.tensor([5, 7])
    assert (SparseRows(sparse.csr_array(x)).take(some).matrix.toarray() == x[[5, 7]]).all()


def test_views_are_rows_of_the_same_labels_and_their_scores_are_averaged():
    x, y = dataset(rows=80)
    views = torch.from_numpy(x.reshape(2, 40, 4))
    labels = torch.from_numpy(y[:40])
    weight, bias = fit([Part(DenseRows(views), labels)], 3, 4)
    flat, flat_bias = fit([Part(DenseRows(torch.from_numpy(x)), labels.repeat(2, 1))], 3, 4)
    np.testing.assert_allclose(weight, flat, atol=1e-4)
    found = scores(DenseRows(views), ((torch.from_numpy(weight), torch.from_numpy(bias)),))
    np.testing.assert_allclose(found, (views.numpy() @ weight.T + bias).mean(0), atol=1e-5)
    np.testing.assert_allclose(bias, flat_bias, atol=1e-4)


def test_slope_is_the_derivative_and_blocks_do_not_matter(monkeypatch):
    x, y = dataset()
    labels = torch.from_numpy(y).where(torch.from_numpy(y) >= 0, -1)
    labels[:10] = -1
    part = Part(DenseRows(torch.from_numpy(x)), labels, torch.rand(60, 3, generator=torch.Generator().manual_seed(0)))
    flat = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    slope = gradient([part], flat, 0.1)
    probe = flat.clone().requires_grad_()
    logits = torch.from_numpy(x) @ probe[:, :-1].T + probe[:, -1]
    expected = bce_loss(logits, labels, part.weight) / 60 + 0.05 * probe[:, :-1].square().sum()
    expected.backward()
    torch.testing.assert_close(slope, probe.grad)
    monkeypatch.setattr(rows_module, "NUMBERS_PER_BLOCK", 28)  # seven rows at a time
    torch.testing.assert_close(gradient([part], flat, 0.1), slope)
    some = torch.tensor([2, 0])
    torch.testing.assert_close(gradient([part], flat[some], 0.1, some), slope[some])


def test_classes_that_are_learned_at_different_speed():
    """Each class ends by itself: the weights are those of a fit of that class alone."""
    x, y = dataset(rows=90, width=12, classes=6)
    y[:, 1] = y[:, 1] & (np.arange(90) < 4)  # rare
    y[:80, 3] = -1  # mostly unknown
    y[:, 4] = -1  # unknown
    x *= np.logspace(-1, 1, 12, dtype=np.float32)  # slow to fit
    labels, rows = torch.from_numpy(y), DenseRows(torch.from_numpy(x))
    weight, bias = fit([Part(rows, labels)], 6, 12)
    for k in range(6):
        alone = fit([Part(rows, labels[:, k : k + 1])], 1, 12)
        np.testing.assert_allclose(weight[k], alone[0][0], atol=1e-4)
        np.testing.assert_allclose(bias[k], alone[1][0], atol=1e-4)
    flat = torch.cat([torch.from_numpy(weight), torch.from_numpy(bias)[:, None]], 1)
    assert gradient([Part(rows, labels)], flat, 0.05).abs().max() < 2e-6


def test_starting_at_the_answer_changes_nothing():
    x, y = dataset()
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    first = fit_logistic(x, y, torch.zeros(3, 5), 0.1)
    torch.testing.assert_close(fit_logistic(x, y, first, 0.1), first, atol=1e-3, rtol=0)


def test_hidden_layer_learns_what_no_line_can():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:] > 0).astype(np.int8)  # exclusive or
    part = Part(DenseRows(torch.from_numpy(x)), torch.from_numpy(y))
    head = PerceptronHead(hidden=16)
    found = scores(part.rows, head.fit([part], head.start(2, 1, torch.device("cpu")), 1e-4)).numpy()
    again = scores(part.rows, head.fit([part], head.start(2, 1, torch.device("cpu")), 1e-4)).numpy()
    assert ((found > 0) == y).mean() > 0.95
    assert (found == again).all()
    line = fit([part], 1, 2)
    assert ((x @ line[0].T + line[1] > 0) == y).mean() < 0.65


def test_slope_of_the_hidden_layer():
    x, y = dataset()
    part = Part(DenseRows(torch.from_numpy(x)), torch.from_numpy(y))
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((5, 4), (5,), (3, 5), (3,))]
    first, offset, last, bias = layers
    logits = (torch.from_numpy(x) @ first.T + offset).relu() @ last.T + bias
    loss = bce_loss(logits, torch.from_numpy(y)) / 60 + 0.05 * (first.square().sum() + last.square().sum())
    loss.backward()
    from tagspread.linear.perceptron import _slopes

    ((where, block),) = part.rows.blocks()
    for slope, layer in zip(_slopes([(part, where, block, 1)], layers, 0.1, 60.0), layers, strict=True):
        torch.testing.assert_close(slope, layer.grad)


@pytest.mark.parametrize("views", [1, 2])
def test_take(views):
    x = torch.arange(views * 6.0).reshape(views, 3, 2)
    assert (DenseRows(x).take(torch.tensor([2, 0])).features == x[:, [2, 0]]).all()
