import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images

from tagspread.export.resize import resize

BILINEAR = Image.Resampling.BILINEAR
side = st.integers(1, 60)


def ours(image, height, width):
    return resize(torch.tensor(image).permute(2, 0, 1)[None], height, width)[0].permute(1, 2, 0).numpy()


def rows_first(image, height, width):
    """Resize with Pillow in two steps, rows first, independent of Pillow's version."""
    return np.asarray(
        Image.fromarray(image).resize((width, image.shape[0]), BILINEAR).resize((width, height), BILINEAR)
    )


@settings(deadline=None)
@given(side, side, side, side, st.integers(0, 2**32 - 1))
def test_noise_as_pillow_does_to_the_bit(old_height, old_width, height, width, seed):
    image = np.random.default_rng(seed).integers(0, 256, (old_height, old_width, 3), np.uint8)
    assert np.array_equal(ours(image, height, width), rows_first(image, height, width))


@pytest.mark.parametrize("size", [24, 224, 300])
def test_photos_as_pillow_does_to_the_bit(size):
    for photo in load_sample_images().images:
        by_pillow = np.asarray(Image.fromarray(photo).resize((size, size), BILINEAR))
        assert np.array_equal(ours(photo, size, size), by_pillow)


@pytest.mark.parametrize("shape", [(1000, 60, 3), (60, 1000, 3), (500, 300, 3)])
def test_never_more_than_a_step_from_pillow(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    by_pillow = np.asarray(Image.fromarray(image).resize((40, 40), BILINEAR))
    assert np.abs(ours(image, 40, 40).astype(int) - by_pillow).max() <= 1


def test_the_same_size_is_left_alone():
    image = np.random.default_rng(0).integers(0, 256, (17, 23, 3), np.uint8)
    assert np.array_equal(ours(image, 17, 23), image)
