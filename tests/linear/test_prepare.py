"""Feature scaling: dense, sparse and TF-IDF matrices."""

import numpy as np
import pytest
import torch
from scipy import sparse

from tagspread.linear.heads import SparseRows
from tagspread.linear.prepare import Scaling


def test_how_sparse_features_are_scaled():
    rng = np.random.default_rng(0)
    x = rng.random((50, 4)) * (rng.random((50, 4)) < 0.5) * [1, 10, 1e-3, 1]
    x[:, 3] = 1000 + rng.random(50)  # far from 0 compared with its spread
    before = sparse.csr_array(x)
    rows = Scaling.of([before], standardize=True).rows([(before, np.arange(50))], torch.device("cpu"))
    assert (before.toarray() == x).all()
    assert isinstance(rows, SparseRows)
    scaled = rows.matrix.toarray()
    spread = scaled.std(0)
    np.testing.assert_allclose(spread[:3], spread[0], rtol=1e-5)
    assert scaled[:, 3].mean() == pytest.approx(10 * spread[0], rel=1e-3)
    assert np.sqrt((scaled**2).sum(1).mean()) == pytest.approx(10, rel=1e-5)
    words = sparse.csr_array(x / np.linalg.norm(x, axis=1, keepdims=True))  # as TF-IDF makes them
    for given in (words, sparse.vstack([words, sparse.csr_array((3, 4))], format="csr")):  # empty texts have no length
        assert len(set(Scaling.of([given], standardize=True).scale)) == 1
    nothing = Scaling.of([sparse.csr_array((3, 2))], standardize=True)
    assert nothing.scale.tolist() == [1, 1]
