"""Targets of sharded scores against those of one process: bit for bit, whatever the shards."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tagspread.core import sharded_ranking
from tagspread.core.ranking import targets_by_rank, thresholds_by_rank
from tagspread.core.sharded_ranking import Shard, cat_targets_of_shard, targets_of_shard, thresholds_of_shard
from tagspread.core.thresholds import cat_targets
from tagspread.errors import TagspreadError


def on_shards(parts, total, work):
    """Call ``work(shard number, Shard)`` for all parts at once, in threads that sum at a barrier."""
    barrier, sent = threading.Barrier(len(parts)), []
    given_by: list[Any] = [None] * len(parts)
    results: list[Any] = [None] * len(parts)
    errors = []

    def run(number):
        def sum_over_shards(counts):
            given_by[number] = counts
            barrier.wait()
            together = torch.stack(given_by).sum(0)
            barrier.wait()
            if number == 0:
                sent.append(counts.numel())
            return together

        try:
            results[number] = work(number, Shard(torch.from_numpy(parts[number]), total, sum_over_shards))
        except TagspreadError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        assert len(errors) == len(parts)  # every shard is told
        raise errors[0]
    return results, sent


@st.composite
def problems(draw):
    rows, classes = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    kind = draw(st.sampled_from([np.float32, np.float64, np.float16]))
    values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-30, -1e-30, np.inf, -np.inf])
    if draw(st.booleans()):
        values = st.floats(allow_nan=False, width=16)
    scores = draw(arrays.arrays(kind, (rows, classes), elements=values.map(kind)))
    n_pos = [draw(st.integers(0, rows)) for _ in range(classes)]
    n_neg = [draw(st.integers(0, rows - n)) for n in n_pos]
    owner = draw(arrays.arrays(np.int64, rows, elements=st.integers(0, draw(st.integers(0, 4)))))
    parts = [np.random.default_rng(rows).permutation(np.flatnonzero(owner == k)) for k in range(owner.max() + 1)]
    return torch.from_numpy(scores), n_pos, n_neg, parts


@given(problems())
def test_shards_together_give_what_one_process_gives(problem):
    scores, n_pos, n_neg, parts = problem
    expected = targets_by_rank(scores, n_pos, n_neg)
    results, _ = on_shards(parts, len(scores), lambda k, shard: targets_of_shard(scores[parts[k]], shard, n_pos, n_neg))
    for rows, targets in zip(parts, results, strict=True):
        assert torch.equal(targets, expected[rows])
    borders, _ = on_shards(
        parts, len(scores), lambda k, shard: thresholds_of_shard(scores[parts[k]], shard, n_pos, n_neg)
    )
    for found in borders:
        for tau, wanted in zip(found, thresholds_by_rank(scores, n_pos, n_neg), strict=True):
            assert torch.equal(tau, wanted)


def test_many_rows_in_strips_with_the_arguments_of_cat_targets(monkeypatch):
    monkeypatch.setattr(sharded_ranking, "STRIP", 1000)
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20_001, 5)).round(2).astype(np.float32)  # many ties
    how: dict[str, Any] = {
        "positives": [3, 0, 10, 22, 1],
        "labeled": 22,
        "keep_pos": 0.7,
        "keep_neg": [1, 0.9, 0.8, 1, 1],
    }
    owner = rng.integers(0, 3, len(scores))
    parts = [np.flatnonzero(owner == k) for k in range(3)]
    results, sent = on_shards(parts, len(scores), lambda k, shard: cat_targets_of_shard(scores[parts[k]], shard, **how))
    expected = cat_targets(scores, **how)
    for rows, targets in zip(parts, results, strict=True):
        assert isinstance(targets, np.ndarray)
        np.testing.assert_array_equal(targets, expected[rows])
    # three digits of scores and two of row numbers, for two sides of five classes
    assert sum(sent) <= 5 + 5 * 2 * 5 * 2**11


def test_traffic_does_not_depend_on_rows_or_shards():
    rng = np.random.default_rng(1)
    traffic = set()
    for rows, shards in ((100, 1), (5000, 2), (40_000, 4)):
        scores = torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32))
        parts, n_pos = np.array_split(np.arange(rows), shards), [rows // 3] * 3

        def work(k, shard, scores=scores, parts=parts, n_pos=n_pos):
            return targets_of_shard(scores[parts[k]], shard, n_pos, [9] * 3)

        traffic.add(tuple(on_shards(parts, rows, work)[1]))
    assert traffic == {(5, 2 * 3 * 2**11, 2 * 3 * 2**11, 2 * 3 * 2**10)}


@pytest.mark.parametrize(
    "rows",
    [
        [np.arange(3), np.arange(3, 5)],
        [np.arange(3), np.array([2, 7, 3])],
        [np.arange(3), np.array([2, 4, 5])],  # as many rows as there are, but row 2 twice and row 3 nowhere
    ],
)
def test_shards_that_do_not_fit_together_are_refused_everywhere(rows):
    with pytest.raises(TagspreadError, match="give each row from 0 to total - 1 to exactly one shard"):
        on_shards(rows, 6, lambda k, shard: targets_of_shard(torch.zeros(len(rows[k]), 1), shard, [1], [1]))


@given(problems(), st.data())
def test_nan_is_refused_on_all_shards_with_the_words_of_one_process(problem, data):
    scores, n_pos, n_neg, parts = problem
    scores[data.draw(st.integers(0, len(scores) - 1)), data.draw(st.integers(0, scores.shape[1] - 1))] = torch.nan
    with pytest.raises(TagspreadError) as one_process:
        targets_by_rank(scores, n_pos, n_neg)
    with pytest.raises(TagspreadError) as shards:
        on_shards(parts, len(scores), lambda k, shard: targets_of_shard(scores[parts[k]], shard, n_pos, n_neg))
    assert str(shards.value) == str(one_process.value)


@given(problems(), st.data())
def test_options_of_cat_targets(problem, data):
    """Counts, priors (NaN where unknown) and intervals per class give the targets of one process."""
    scores, _, _, parts = problem
    classes = scores.shape[1]
    labeled = data.draw(st.integers(1, 20))
    share = st.floats(0, 1).map(lambda value: round(value, 3))
    lists = {
        name: data.draw(st.lists(values, min_size=classes, max_size=classes))
        for name, values in {
            "positives": st.integers(0, labeled),
            "keep_pos": share,
            "keep_neg": share,
            "priors": st.one_of(st.just(float("nan")), share),
        }.items()
    }
    expected = cat_targets(scores, labeled=labeled, **lists)
    results, _ = on_shards(
        parts, len(scores), lambda k, shard: cat_targets_of_shard(scores[parts[k]], shard, labeled=labeled, **lists)
    )
    for rows, targets in zip(parts, results, strict=True):
        assert torch.equal(targets, expected[rows])


def test_a_shard_without_rows_takes_part():
    scores, parts = torch.tensor([[0.9], [0.2], [0.7]]), [np.arange(3), np.arange(0)]
    results, _ = on_shards(
        parts, 3, lambda k, shard: cat_targets_of_shard(scores[parts[k]], shard, positives=[1], labeled=3)
    )
    assert results[0].ravel().tolist() == [1, 0, 0]
    assert results[1].shape == (0, 1)
