import itertools

import numpy as np
import pytest

from tagspread.data.split import paper_split
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
    labelled, pile = paper_split(rows, share)
    assert (len(labelled), len(pile)) == (count, rows - count)
    np.testing.assert_array_equal(np.sort(np.concatenate([labelled, pile])), np.arange(rows))
    again, _ = paper_split(rows, share)
    np.testing.assert_array_equal(again, labelled)


@pytest.mark.parametrize("seed", [1, 7])
def test_larger_shares_contain_smaller_ones(seed):
    parts = [paper_split(VOC, share, seed)[0] for share in (0.05, 0.10, 0.15, 0.20)]
    for small, large in itertools.pairwise(parts):
        np.testing.assert_array_equal(large[: len(small)], small)
    assert not np.array_equal(parts[0], paper_split(VOC, 0.05, seed + 1)[0])


def test_the_published_permutation():
    """NumPy promises that the legacy generator's stream never changes; this one is np.random.seed(1)'s."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(1)  # noqa: NPY002
        expected = np.random.permutation(VOC)  # noqa: NPY002
    finally:
        np.random.set_state(state)  # noqa: NPY002
    np.testing.assert_array_equal(np.concatenate(paper_split(VOC, 0.05)), expected)


def test_leaves_the_global_generator_alone():
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    paper_split(50, 0.5)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, 10, float("nan")])
def test_bad_input(share):
    with pytest.raises(TagspreadError, match=f"share is {share}; give the labelled share"):
        paper_split(100, share)
