import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagspread.data.split import hold_out, paper_split, stratified_split
from tagspread.errors import TagspreadError

VOC, COCO = 5717, 82081


@pytest.mark.parametrize(
    ("rows", "share", "count"),
    [
        (VOC, 0.05, 285),
        (VOC, 0.10, 571),
        (VOC, 0.15, 857),
        (VOC, 0.20, 1143),
        (COCO, 0.05, 4104),
        (COCO, 0.10, 8208),
        (COCO, 0.15, 12312),
        (COCO, 0.20, 16416),
    ],
)
def test_sizes_of_the_paper(rows, share, count):
    labeled, unlabeled = paper_split(rows, share)
    assert (len(labeled), len(unlabeled)) == (count, rows - count)
    np.testing.assert_array_equal(np.sort(np.concatenate([labeled, unlabeled])), np.arange(rows))
    again, _ = paper_split(rows, share)
    np.testing.assert_array_equal(again, labeled)


@pytest.mark.parametrize("seed", [1, 7])
def test_larger_shares_contain_smaller_ones(seed):
    parts = [paper_split(VOC, share, seed)[0] for share in (0.05, 0.10, 0.15, 0.20)]
    for small, large in itertools.pairwise(parts):
        np.testing.assert_array_equal(large[: len(small)], small)
    assert not np.array_equal(parts[0], paper_split(VOC, 0.05, seed + 1)[0])


def test_the_published_permutation():
    """NumPy promises that the legacy generator's stream never changes; the paper uses ``np.random.seed(1)``."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(1)  # noqa: NPY002
        expected = np.random.permutation(VOC)  # noqa: NPY002
    finally:
        np.random.set_state(state)  # noqa: NPY002
    np.testing.assert_array_equal(np.concatenate(paper_split(VOC, 0.05)), expected)


def test_the_global_generator_is_not_changed():
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    paper_split(50, 0.5)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, 10, float("nan")])
def test_bad_input(share):
    with pytest.raises(TagspreadError, match=f"share is {share}; give the labeled share"):
        paper_split(100, share)


@st.composite
def problems(draw):
    shape = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    y = rng.choice([1, 0, -1], size=shape, p=draw(st.sampled_from([(0.1, 0.8, 0.1), (0.4, 0.3, 0.3), (0.9, 0.1, 0.0)])))
    weights = draw(st.lists(st.integers(0, 10), min_size=1, max_size=4).filter(any))
    return y, [weight / sum(weights) for weight in weights], draw(st.integers(0, 3))


@given(problems())
def test_parts_are_disjoint_complete_and_of_the_right_size(dataset):
    y, shares, seed = dataset
    split = stratified_split(y, shares, seed)
    assert len(split.parts) == len(shares)
    np.testing.assert_array_equal(np.sort(np.concatenate(split.parts)), np.arange(len(y)))
    for rows, share in zip(split.parts, shares, strict=True):
        assert abs(len(rows) - share * len(y)) < 1 + 1e-9
        np.testing.assert_array_equal(rows, np.sort(rows))
        assert share > 0 or not len(rows)
    again = stratified_split(y, shares, seed)
    assert again.notes == split.notes
    assert all(np.array_equal(a, b) for a, b in zip(again.parts, split.parts, strict=True))


def gaps(y, parts):
    """Return each (class, part) without a positive, for classes with as many positives as parts, first part first."""
    filled = [rows for rows in parts if len(rows)]
    positives = (y == 1).sum(0)
    everywhere = sum(
        positives[k] >= len(filled) and not (y[rows, k] == 1).any() for k in range(y.shape[1]) for rows in filled
    )
    first = sum(0 < positives[k] < len(filled) and not (y[filled[0], k] == 1).any() for k in range(y.shape[1]))
    return int(everywhere + first)


@given(problems())
def test_notes_name_gaps_and_no_single_swap_closes_one(dataset):
    y, shares, seed = dataset
    split = stratified_split(y, shares, seed)
    parts = [rows for rows in split.parts if len(rows)]
    before = gaps(y, parts)
    for k in range(y.shape[1]):
        lacking = any(not (y[rows, k] == 1).any() for rows in parts)
        assert lacking == any(note.startswith(f"class {k} has") for note in split.notes)
    if before:
        part = np.full(len(y), -1)
        for p, rows in enumerate(parts):
            part[rows] = p
        for a, b in itertools.combinations(range(len(y)), 2):
            part[[a, b]] = part[[b, a]]
            assert gaps(y, [np.flatnonzero(part == p) for p in range(len(parts))]) >= before
            part[[a, b]] = part[[b, a]]


def test_as_few_gaps_as_by_brute_force():
    rng = np.random.default_rng(0)
    worse = 0
    for seed in range(250):
        y = (rng.random((rng.integers(2, 8), rng.integers(1, 5))) < rng.uniform(0.2, 0.8)).astype(int)
        split = stratified_split(y, rng.dirichlet(3 * np.ones(rng.integers(2, 4))).tolist(), seed)
        deal = np.repeat(np.arange(len(split.parts)), [len(rows) for rows in split.parts])
        every = (np.array(one) for one in set(itertools.permutations(deal.tolist())))
        best = min(gaps(y, [np.flatnonzero(one == p) for p in range(len(split.parts))]) for one in every)
        worse += gaps(y, split.parts) > best
    assert worse == 0


def test_rare_classes_are_in_every_part_and_rarer_ones_in_training():
    rng = np.random.default_rng(1)
    y = (rng.random((500, 12)) < 0.1).astype(int)
    y[:, :4] = 0
    for k, count in enumerate((1, 2, 3, 4)):
        y[rng.choice(500, count, replace=False), k] = 1
    split = stratified_split(y, [0.9, 0.05, 0.05], classes=list("abcdefghijkl"), names=["training", "val", "test"])
    counts = np.array([y[rows].sum(0) for rows in split.parts])
    assert (counts[:, 2:] > 0).all()
    assert counts[:, :2].tolist() == [[1, 1], [0, 1], [0, 0]]
    assert split.notes == (
        "a has 1 labeled image: it is in training only",
        "b has 2 labeled images: they are in training and val only",
    )


def test_notes_on_missing_classes():
    y = np.eye(6, dtype=int).repeat(2, axis=0)  # two rows of each class, but only two test rows
    split = stratified_split(y, [10 / 12, 2 / 12])
    assert len(split.notes) == 4
    assert all("has 2 labeled images, but none in test, where other tags need the rows" in n for n in split.notes)
    assert "class 1 has no labeled image, so it is in no part" in stratified_split([[1, -1]] * 3, [1]).notes
    assert stratified_split(y, [0.99, 0.005, 0.005]).notes[0] == "part 3 stays empty: 0.005 of 12 rows is less than one"


def deviation(y, parts, shares):
    return np.mean([np.abs((y[rows] == 1).sum(0) / (y == 1).sum(0) - s) for rows, s in zip(parts, shares, strict=True)])


@pytest.mark.parametrize("seed", range(3))
def test_closer_to_the_shares_than_chance(seed):
    rng = np.random.default_rng(seed)
    y = (rng.random((2000, 20)) < np.geomspace(0.005, 0.5, 20)).astype(int)
    shares = [0.7, 0.2, 0.1]
    by_chance = np.split(rng.permutation(2000), [1400, 1800])
    assert deviation(y, stratified_split(y, shares, seed).parts, shares) < 0.25 * deviation(y, by_chance, shares)


def test_seeds_differ_and_unknown_rows_are_distributed():
    y = np.full((1000, 3), -1)
    y[:100, 0] = 1
    (first, held), (other, _) = (stratified_split(y, [0.8, 0.2], seed).parts for seed in (0, 1))
    assert not np.array_equal(first, other)
    assert (held < 100).sum() == 20
    assert 380 < np.median(held[held >= 100]) < 720


def test_large_and_tiny():
    y = np.zeros((20000, 80), dtype=np.int8)
    y[np.random.default_rng(0).random(y.shape) < 0.03] = 1
    started = time.perf_counter()
    stratified_split(y, [0.9, 0.1])
    assert time.perf_counter() - started < 5  # usually a fifth of a second
    for shares in ([1], [0.5, 0.5], [0, 1]):
        assert sorted(map(len, stratified_split([[1]], shares).parts)) == [0] * (len(shares) - 1) + [1]
    assert stratified_split(np.empty((0, 2)), [0.5, 0.5]).parts[0].tolist() == []


def test_hold_out():
    y = np.eye(2, dtype=int).repeat([8, 1], axis=0)
    kept, held, notes = hold_out(y, 1 / 3, classes=["cat", "owl"])
    assert (len(kept), len(held)) == (6, 3)
    assert 8 in kept
    assert notes == ("owl has 1 labeled image: it is in training only",)
    with pytest.raises(TagspreadError, match="share is 1; give the share to hold out"):
        hold_out(y, 1)


@pytest.mark.parametrize(
    ("y", "shares", "more", "message"),
    [
        ([1, 0], [1], {}, r"y has shape \(2,\); give rows x classes"),
        ([[1, 2]], [1], {}, "y holds 2 in row 0, class 1"),
        ([[1, np.nan]], [1], {}, "y holds nan in row 0"),
        ([[1]], [0.5, 0.6], {}, r"shares are \[0.5, 0.6\]"),
        ([[1]], [1.5, -0.5], {}, "none below 0"),
        ([[1]], [np.nan], {}, "shares are"),
        ([[1]], [], {}, "shares are"),
        ([[1]], [1], {"classes": ["a", "b"]}, "classes has 2 names for 1"),
        ([[1]], [1], {"names": []}, "names has 0 names for 1"),
    ],
)
def test_bad_input_to_a_stratified_split(y, shares, more, message):
    with pytest.raises(TagspreadError, match=message):
        stratified_split(y, shares, **more)
