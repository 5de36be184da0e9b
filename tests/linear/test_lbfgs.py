"""L-BFGS for many problems, compared with exact solutions."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from tagspread.linear.lbfgs import minimize


def test_quadratic_problems_of_any_condition():
    rng = np.random.default_rng(0)
    matrices, targets = [], torch.from_numpy(rng.normal(size=(5, 8)))
    for condition in (1, 10, 100, 1000, 1e4):
        turn, _ = np.linalg.qr(rng.normal(size=(8, 8)))
        matrices.append(turn @ np.diag(np.geomspace(1, condition, 8)) @ turn.T)
    hessians, calls = torch.from_numpy(np.stack(matrices)), []

    def gradient(points, problems):
        chosen = slice(None) if problems is None else problems
        calls.append(len(points))
        return torch.einsum("kij,kj->ki", hessians[chosen], points - targets[chosen])

    found = minimize(gradient, torch.zeros(5, 8, dtype=torch.float64), max_iter=500, tolerance=1e-8)
    torch.testing.assert_close(found, targets, atol=1e-6, rtol=0)
    assert calls[0] == 5
    assert calls[-1] < 5  # problems that are solved are left out
    assert len(calls) < 200


def test_curvature_that_changes_along_the_way():
    """Sums of log(cosh), which are flat far away: full steps overshoot. The reference is scipy."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(3, 6, 4)) * 5, rng.normal(size=(3, 6)) * 20

    def gradient(points, problems):
        rows = range(3) if problems is None else problems.tolist()
        return torch.stack([
            torch.from_numpy(a[k].T @ np.tanh(a[k] @ x.numpy() - b[k])) + 1e-3 * x
            for k, x in zip(rows, points, strict=True)
        ])  # fmt: skip

    found = minimize(gradient, torch.full((3, 4), 30.0, dtype=torch.float64), max_iter=300, tolerance=1e-7)
    for k in range(3):

        def loss(x, k=k):
            z = a[k] @ x - b[k]
            return np.logaddexp(z, -z).sum() + 5e-4 * x @ x

        reference = scipy_minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-8})
        assert loss(found[k].numpy()) <= reference.fun + 1e-6


def test_the_number_of_evaluations_is_limited():
    calls = []

    def gradient(points, _):
        calls.append(1)
        return points - 3 + 0.1 * (points - 3) ** 3

    minimize(gradient, torch.zeros(2, 3), max_iter=4, tolerance=0.0)
    assert len(calls) == 4


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_a_start_that_is_good_enough_is_returned(tolerance):
    start = torch.tensor([[1.0 + tolerance / 2], [1.0 - tolerance / 2]])
    assert minimize(lambda x, _: x - 1, start, max_iter=9, tolerance=tolerance).equal(start)
