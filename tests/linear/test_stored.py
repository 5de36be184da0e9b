"""Memory-mapped features give what features in memory give, and are never read as a whole."""

import numpy as np
import pytest
import torch

from tagspread import TagSpreadClassifier
from tagspread.core.sharded_ranking import find_borders
from tagspread.core.thresholds import cat_targets, cat_thresholds
from tagspread.errors import TagspreadError
from tagspread.linear import heads, stored
from tagspread.linear.heads import DenseRows, scores
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.rounds import Settings
from tagspread.linear.stored import Piece, StoredRows
from tagspread.methods import get_method


def problem(rows=3000, labeled=200, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)).astype(np.float16)
    y = (x[:, :3] + 0.3 * x[:, 3:] > 0.5).astype(np.int8)
    return x, y, labeled


def mapped(folder, x, name="x.npy"):
    np.save(folder / name, x)
    return np.load(folder / name, mmap_mode="r")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(heads, "NUMBERS_PER_BLOCK", 6 * 500)
    monkeypatch.setattr(stored, "NUMBERS_PER_BLOCK", 6 * 500)


@pytest.mark.parametrize("apart", [True, False])
def test_the_classifier_is_that_of_features_in_memory(apart, tmp_path):
    x, y, n = problem()
    model = TagSpreadClassifier(get_method("cap", keep_pos=0.8), ridge=0.3, unlabeled_weight=0.5, tol=0.0)
    if apart:
        expected = model.fit(x[:n].astype(np.float32), y[:n], x[n:].astype(np.float32))
        kept = expected.coef_, expected.intercept_, expected.thresholds_, expected.log_
        found = model.fit(x[:n].astype(np.float32), y[:n], mapped(tmp_path, x[n:]))
    else:
        some = np.where(np.arange(len(y))[:, None] % 15 == 0, y, -1)  # labeled rows among the others
        expected = model.fit(x.astype(np.float32), some)
        kept = expected.coef_, expected.intercept_, expected.thresholds_, expected.log_
        found = model.fit(mapped(tmp_path, x), some)
    assert len(kept[-1]) > 1
    for line, wanted_line in zip(found.log_, kept[-1], strict=True):
        assert line == pytest.approx(wanted_line, abs=1e-6)
    for value, wanted in zip((found.coef_, found.intercept_, found.thresholds_), kept[:3], strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert found.transduction_.shape == (0, 3)
    assert (found.predict(x[n:].astype(np.float32)) == y[n:]).mean() > 0.9


def test_thresholds_and_targets_are_those_of_all_scores(tmp_path):
    x, y, n = problem()
    x[100:200] = x[:100]  # ties
    first, second = mapped(tmp_path, x[:1000]), mapped(tmp_path, x[1000:], "b.npy")
    pieces = [Piece(first, np.arange(1000)), Piece(second, np.arange(2000))]
    rows = StoredRows(pieces, lambda block: torch.from_numpy(np.asarray(block, np.float32)), 6)
    layers = ((torch.randn(3, 6, generator=torch.Generator().manual_seed(1)), torch.zeros(3)),)
    everything = scores(DenseRows(torch.from_numpy(x.astype(np.float32))), layers)
    positives, labeled = y[:n].sum(0), n
    n_pos, n_neg = stored._quotas(get_method("cap"), torch.from_numpy(y[:n]), len(x), ("a", "b", "c"))  # type: ignore[arg-type]
    borders = find_borders(stored._passes(rows, layers), n_pos, n_neg)
    for tau, wanted in zip(borders.thresholds, cat_thresholds(everything, positives, labeled), strict=True):
        assert torch.equal(tau, wanted)
    labels = stored.StoredLabels(layers, borders, torch.full((3,), torch.nan))
    targets = torch.cat([labels.of(where, block)[0] for where, block in rows.blocks()])
    assert torch.equal(targets, cat_targets(everything, positives, labeled))


class Recorded:
    """A matrix that records how many rows are read at a time."""

    def __init__(self, matrix):
        self.matrix, self.shape, self.most = matrix, matrix.shape, 0

    def __getitem__(self, rows):
        values = self.matrix[rows]
        self.most = max(self.most, len(values))
        return values


def test_no_more_than_a_block_is_read_at_a_time():
    x, y, n = problem()
    matrix = Recorded(x[n:])
    rows = StoredRows([Piece(matrix, np.arange(len(x) - n))], lambda block: torch.from_numpy(block).float(), 6)
    start = ((torch.zeros(3, 6), torch.zeros(3)),)
    settings = Settings(get_method("cap"))
    labeled = DenseRows(torch.from_numpy(x[:n]).float())
    head = LogisticHead(max_iter=5)
    fitted = stored.spread_stored(labeled, torch.from_numpy(y[:n]), rows, settings, start, head=head, classes="abc")
    assert fitted.log
    assert matrix.most == 500


def test_rows_are_taken_from_all_pieces(tmp_path):
    x, _, _ = problem(rows=20)
    first, second = mapped(tmp_path, x[:5]), mapped(tmp_path, x[5:], "b.npy")
    pieces = [Piece(first, np.array([0, 2, 4])), Piece(second, np.arange(15))]
    rows = StoredRows(pieces, lambda block: torch.from_numpy(np.array(block)), 6)
    assert len(rows) == 18
    wanted = np.concatenate([x[[0, 2, 4]], x[5:]])
    assert (rows.take(torch.tensor([1, 2, 3, 17])).features[0].numpy() == wanted[[1, 2, 3, 17]]).all()
    assert rows.take(torch.tensor([], dtype=torch.int64)).features.shape == (1, 0, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": "mlp"}, "head is 'mlp', which reads the rows in random order"),
        ({"method": "topk"}, "TopK needs the scores of all rows in memory"),
    ],
)
def test_what_needs_all_rows_is_refused(change, message, tmp_path):
    x, y, n = problem(rows=300, labeled=50)
    with pytest.raises(TagspreadError, match=message):
        TagSpreadClassifier(**change).fit(x[:n].astype(np.float32), y[:n], mapped(tmp_path, x[n:]))


def test_wrong_memory_maps_are_refused(tmp_path):
    x, y, n = problem(rows=300, labeled=50)
    given = x[:n].astype(np.float32), y[:n]
    bad = x[n:].copy()
    bad[17, 3] = np.nan
    with pytest.raises(TagspreadError, match="X_unlabeled holds nan in row 17, feature 3"):
        TagSpreadClassifier().fit(*given, mapped(tmp_path, bad))
    with pytest.raises(TagspreadError, match="X_unlabeled has 5 features but X has 6"):
        TagSpreadClassifier().fit(*given, mapped(tmp_path, x[:, :5]))
    with pytest.raises(TagspreadError, match="memory map of int64 with shape"):
        TagSpreadClassifier().fit(mapped(tmp_path, np.zeros((9, 2), np.int64)), np.zeros((9, 1)))
