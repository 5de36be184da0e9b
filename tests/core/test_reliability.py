"""Score reliability, compared with loops over entries and numpy's interpolation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tagspread.core.reliability import interpolate, share_of_positives
from tagspread.errors import TagspreadError


@st.composite
def judged(draw):
    """Draw logits with ties and saturated values, and their labels."""
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 4)))
    elements = draw(
        st.sampled_from(
            [st.floats(-6, 6, width=32), st.sampled_from([-200.0, -1.0, 0.0, 3.0, 200.0]), st.just(0.5)],
        )
    )
    logits = draw(hnp.arrays(np.float32, shape, elements=elements))
    y = draw(hnp.arrays(np.int8, shape, elements=st.sampled_from([-1, 0, 1])))
    y[0, 0] = draw(st.integers(0, 1))  # something is known
    return torch.from_numpy(logits), torch.from_numpy(y)


def counted(logits, y, bins):
    """Count entry by entry; an empty bin takes its nearest neighbor, the left one first."""
    positives, known = [0] * bins, [0] * bins
    for score, label in zip(logits.sigmoid().flatten().numpy(), y.flatten().tolist(), strict=True):
        if label >= 0:
            place = min(bins - 1, int(score * np.float32(bins)))
            known[place] += 1
            positives[place] += label
    shares = []
    for b in range(bins):
        distance = 0
        while True:
            near = [c for c in (b - distance, b + distance) if 0 <= c < bins and known[c]]
            if near:
                shares.append(positives[near[0]] / known[near[0]])
                break
            distance += 1
    return shares


@settings(max_examples=150, deadline=None)
@given(judged(), st.sampled_from([1, 2, 3, 7, 20]))
def test_shares_equal_a_loop_over_entries(entries, bins):
    logits, y = entries
    found = share_of_positives(logits, y, bins)
    np.testing.assert_allclose(found.numpy(), counted(logits, y, bins), rtol=1e-6)


def test_counts_beyond_what_a_float_can_count():
    """16,777,216 + 1 is 16,777,216 in single precision."""
    y = torch.zeros(17_000_000, 1, dtype=torch.int8)
    y[::2] = 1
    found = share_of_positives(torch.zeros(1, 1).expand(len(y), 1), y, 2)
    assert found.tolist() == [0.5, 0.5]


shares_of_bins = hnp.arrays(np.float32, st.integers(1, 20), elements=st.floats(0, 1, width=32))


@settings(max_examples=150, deadline=None)
@given(shares_of_bins, hnp.arrays(np.float32, (3, 4), elements=st.floats(0, 1, width=32)))
def test_interpolation_equals_numpy_s(shares, scores):
    found = interpolate(torch.from_numpy(scores), torch.from_numpy(shares)).numpy()
    left_borders = np.arange(len(shares)) / len(shares)
    np.testing.assert_allclose(found, np.interp(scores, left_borders, shares), atol=2e-6)  # level in the last bin
    assert found.min() >= 0
    assert found.max() <= 1


@settings(max_examples=50, deadline=None)
@given(shares_of_bins)
def test_no_jump_at_any_border(shares):
    bins = len(shares)
    borders = torch.arange(bins + 1, dtype=torch.float64) / bins
    at, before, after = (
        interpolate((borders + e).clamp(0, 1), torch.from_numpy(shares).double()) for e in (0, -1e-9, 1e-9)
    )
    np.testing.assert_allclose(before, at, atol=1e-7)
    np.testing.assert_allclose(after, at, atol=1e-7)
    np.testing.assert_allclose(at, [*shares, shares[-1]], atol=1e-7)  # the border's own bin, the last one for 1


def test_a_hand_made_example():
    """Four bins: 1 of 2 right, nothing, nothing, 3 of 4."""
    scores = torch.tensor([0.1, 0.2, 0.8, 0.8, 0.9, 1.0]).logit()[:, None]
    shares = share_of_positives(scores, torch.tensor([0, 1, 1, 1, 0, 1])[:, None], 4)
    assert shares.tolist() == [0.5, 0.5, 0.75, 0.75]
    found = interpolate(torch.tensor([0.0, 0.25, 0.375, 0.5, 0.75, 1.0]), shares)
    assert found.tolist() == [0.5, 0.5, 0.625, 0.75, 0.75, 0.75]


@pytest.mark.parametrize("y", [torch.full((3, 2), -1), torch.zeros(0, 2)])
def test_nothing_known_is_an_error(y):
    with pytest.raises(TagspreadError, match="no known label to measure correctness on; label more items"):
        share_of_positives(torch.zeros(y.shape), y, 5)
