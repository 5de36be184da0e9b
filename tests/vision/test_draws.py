import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from tagspread.vision.augment import check_rows, uniform

ROWS = np.arange(20_000)


@pytest.mark.parametrize(("seed", "epoch", "stream"), [(0, 0, 0), (1, 0, 3), (12345, 199, 21), (-7, 3, 2**40)])
def test_uniform_over_consecutive_images(seed, epoch, stream):
    numbers = uniform(seed, epoch, ROWS, stream)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.mean() == pytest.approx(1 / 2, abs=0.01)
    assert numbers.var() == pytest.approx(1 / 12, abs=0.002)
    assert kstest(numbers, "uniform").pvalue > 1e-3
    for bits in (np.floor(numbers * 64), np.floor(numbers * 2**40) % 64):  # high and low bits alike
        assert chisquare(np.bincount(bits.astype(int), minlength=64)).pvalue > 1e-3


@pytest.mark.parametrize("step", [2, 64, 4096, 2**32])
def test_uniform_over_any_stride_of_images(step):
    assert kstest(uniform(0, 0, ROWS * step, 0), "uniform").pvalue > 1e-3


def test_uniform_over_epochs_and_streams_of_one_image():
    epochs = np.concatenate([uniform(0, epoch, [17], 1) for epoch in range(3000)])
    streams = np.concatenate([uniform(0, 4, [17], stream) for stream in range(3000)])
    seeds = np.concatenate([uniform(seed, 4, [17], 1) for seed in range(3000)])
    for numbers in (epochs, streams, seeds):
        assert kstest(numbers, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.06


def test_streams_epochs_and_seeds_are_independent():
    table = np.stack([uniform(seed, epoch, ROWS, stream) for seed, epoch, stream in np.ndindex(3, 3, 3)])
    correlation = np.corrcoef(table) - np.eye(27)
    assert np.abs(correlation).max() < 5 / np.sqrt(len(ROWS))
    # pairs of streams fill the square evenly; the absence of linear correlation would not be enough
    for k in range(1, 27):
        cells = (np.floor(table[0] * 8) * 8 + np.floor(table[k] * 8)).astype(int)
        assert chisquare(np.bincount(cells, minlength=64)).pvalue > 1e-4
    assert len(np.unique(table)) == table.size  # no two streams are shifted copies


def test_a_image_keeps_its_number_in_any_batch():
    rows = np.random.default_rng(0).permutation(1000)
    everything = uniform(3, 5, np.arange(1000), 2)
    np.testing.assert_array_equal(uniform(3, 5, rows, 2), everything[rows])
    np.testing.assert_array_equal(uniform(3, 5, rows[:7].astype(np.int32), 2), everything[rows[:7]])
    assert uniform(3, 5, [], 2).shape == (0,)
    assert uniform(2**70, -1, [2**62, 0], 2).shape == (2,)


@pytest.mark.parametrize("rows", [[[1]], [0.5], ["a"], 3])
def test_bad_rows(rows):
    with pytest.raises(ValueError, match="integer index of each image"):
        check_rows(rows)
