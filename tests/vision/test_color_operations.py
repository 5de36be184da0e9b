import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from tagspread.vision import operations

FACTORS = [0.1, 0.28, 0.37, 0.5, 0.73, 0.91, 1.0, 1.09, 1.18, 1.27, 1.54, 1.72, 1.9, 0.0, 3.3]


def images_of(channels):
    """Yield one batch per shape: noise, few levels, dark, bright, constant, extreme, smooth and tiny images."""
    rng = np.random.default_rng(channels)
    batches = []
    for height, width in ((24, 37), (32, 32), (3, 3), (1, 1), (2, 5), (1, 7)):
        shape = (channels, height, width)
        wave = 127.5 + 127.5 * np.sin(np.arange(height * width).reshape(height, width) / 40)
        made = [rng.integers(0, 256, shape) for _ in range(20)]
        made += [rng.choice(rng.integers(0, 256, levels), shape) for levels in (1, 2, 3, 5, 9) for _ in range(3)]
        made += [rng.integers(0, 40, shape), rng.integers(200, 256, shape), rng.choice([0, 255], shape)]
        made += [np.full(shape, level) for level in (0, 1, 127, 128, 254, 255)]
        made += [np.broadcast_to(wave, shape), rng.integers(100, 102, shape)]
        # nearly constant except for one pixel: equalize has no step, or just one
        for odd in (0, 255):
            made.append(np.full(shape, 90))
            made[-1][:, -1, -1] = odd
        batches.append(np.stack(made).astype(np.uint8))
    return batches


def image_of(image):
    return Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, 2))


def array_of(image):
    result = np.asarray(image)
    return result[None] if result.ndim == 2 else np.moveaxis(result, 2, 0)


def check(function, change, parameters, channels):
    """Compare the batched function with Pillow, with another parameter for every image."""
    for images in images_of(channels):
        given, count = torch.from_numpy(images), len(images)
        for start in range(len(parameters) or 1):
            values = [parameters[(start + k) % len(parameters)] for k in range(count)] if parameters else []
            found = function(given, torch.tensor(values, dtype=torch.float64)) if parameters else function(given)
            expected = np.stack(
                [array_of(change(image_of(p), *values[k : k + 1])) for k, p in enumerate(images)],
            )
            assert found.dtype == torch.uint8
            np.testing.assert_array_equal(found.numpy(), expected)
        np.testing.assert_array_equal(given.numpy(), images)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("function", "change", "parameters"),
    [
        (operations.invert, ImageOps.invert, []),
        (operations.autocontrast, ImageOps.autocontrast, []),
        (operations.equalize, ImageOps.equalize, []),
        (operations.solarize, ImageOps.solarize, np.linspace(256, 0, 10).tolist()),
        (operations.posterize, lambda image, bits: ImageOps.posterize(image, int(bits)), [1, 2, 3, 4, 5, 6, 7, 8]),
        (operations.brightness, lambda image, factor: ImageEnhance.Brightness(image).enhance(factor), FACTORS),
        (operations.contrast, lambda image, factor: ImageEnhance.Contrast(image).enhance(factor), FACTORS),
        (operations.color, lambda image, factor: ImageEnhance.Color(image).enhance(factor), FACTORS),
        (operations.sharpness, lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor), FACTORS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_equals_pillow(function, change, parameters, channels):
    check(function, change, parameters, channels)


def test_equalize_many_histograms():
    """Uneven histograms, in which the running sum can pass 255 steps."""
    rng = np.random.default_rng(5)
    images = np.empty((200, 3, 30, 30), np.uint8)
    for k in range(200):
        weights = rng.random(256) ** rng.uniform(0.5, 40)
        images[k] = rng.choice(256, (3, 30, 30), p=weights / weights.sum())
    found = operations.equalize(torch.from_numpy(images)).numpy()
    np.testing.assert_array_equal(found, np.stack([array_of(ImageOps.equalize(image_of(p))) for p in images]))
    found = operations.autocontrast(torch.from_numpy(images)).numpy()
    np.testing.assert_array_equal(found, np.stack([array_of(ImageOps.autocontrast(image_of(p))) for p in images]))


def test_autocontrast_of_every_range():
    ranges = [(low, high) for low in range(0, 256, 3) for high in range(low, 256, 5)]
    images = np.stack([np.linspace(*ends, 256).round() for ends in ranges]).astype(np.uint8).reshape(-1, 1, 16, 16)
    found = operations.autocontrast(torch.from_numpy(images)).numpy()
    np.testing.assert_array_equal(found, np.stack([array_of(ImageOps.autocontrast(image_of(p))) for p in images]))


def test_cut_square_by_hand():
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (60, 3, 9, 13), dtype=np.uint8)
    x, y, side = rng.integers(0, 13, 60), rng.integers(0, 9, 60), rng.integers(0, 20, 60)
    fill = rng.integers(0, 256, (60, 3), dtype=np.uint8)
    expected = images.copy()
    for k in range(60):
        left, top = x[k] - side[k] // 2, y[k] - side[k] // 2
        square = expected[k, :, max(top, 0) : max(top + side[k], 0), max(left, 0) : max(left + side[k], 0)]
        square[:] = fill[k][:, None, None]
    given = torch.from_numpy(images)
    found = operations.cut_square(given, *map(torch.from_numpy, (x, y, side, fill)))
    np.testing.assert_array_equal(found.numpy(), expected)
    assert found is not given
