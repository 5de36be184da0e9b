import numpy as np
import pytest
from sklearn.datasets import load_digits

from tagspread.data.datasets.digits import CLASSES, SHARES, digit_canvases

NOISE = 90  # lower values may be background


def glyphs_on(canvases):
    """Return, for each canvas, the numbers of the bundled glyphs that each of its nine cells may show."""
    bundled = np.round(load_digits().images.reshape(-1, 64) * 255 / 16 - 0.5 + 1e-9).astype(int)
    ink = bundled >= NOISE
    for canvas in canvases.images[:, 0].astype(int):
        cells = canvas.reshape(3, 8, 3, 8).transpose(0, 2, 1, 3).reshape(9, 64)
        shown = []
        for cell in cells[(cells >= NOISE).any(1)]:
            fits = (np.where(ink, bundled, 0) == np.where(cell >= NOISE, cell, 0)).all(1) & (cell >= bundled).all(1)
            shown.append(np.flatnonzero(fits))
        yield shown


@pytest.fixture(scope="module")
def drawn():
    return digit_canvases(400, 300, seed=3)


def test_shapes_and_types(drawn):
    for part, count in zip(drawn, (400, 300), strict=True):
        assert part.images.shape == (count, 3, 24, 24)
        assert part.images.dtype == np.uint8
        assert part.y.shape == (count, len(CLASSES))
        assert part.y.dtype == np.int8
        assert set(np.unique(part.y)) == {0, 1}
        np.testing.assert_array_equal(part.images[:, 0], part.images[:, 1])  # gray
        np.testing.assert_array_equal(part.images[:, 0], part.images[:, 2])
    assert "".join(CLASSES) == "0123456789"


def test_labels_match_the_canvas_and_handwriting_is_not_shared(drawn):
    digit = load_digits().target
    used: list[set[int]] = []
    for part in drawn:
        numbers = set()
        for row, shown in zip(part.y, glyphs_on(part), strict=True):
            assert all(len(candidates) == 1 for candidates in shown)
            found = [int(candidates[0]) for candidates in shown]
            assert sorted(digit[found]) == np.flatnonzero(row).tolist()
            numbers.update(found)
        used.append(numbers)
    train, test = used
    assert len(train) > 300
    assert len(test) > 250
    assert not train & test


def test_one_to_four_tags_and_unequal_frequencies():
    train, test = digit_canvases(4000, 0, seed=1)
    assert len(test.y) == 0
    assert set(train.y.sum(1)) == {1, 2, 3, 4}
    share = train.y.mean(0)
    assert (np.diff(share) < 0.02).all()  # decreasing, apart from chance
    assert share[0] > 0.4
    assert 0.01 < share[-1] < 0.06  # the rare class exists
    assert np.abs(share - SHARES).max() < 0.08


def test_deterministic_for_each_seed():
    first, again, other = (digit_canvases(30, 20, seed) for seed in (5, 5, 6))
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a.images, b.images)
        np.testing.assert_array_equal(a.y, b.y)
        assert not np.array_equal(a.images, c.images)
    longer, _ = digit_canvases(30, 50, 5)
    np.testing.assert_array_equal(longer.images, first[0].images)  # test canvases do not change training canvases
