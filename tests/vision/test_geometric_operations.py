import math

import numpy as np
import pytest
import torch
from PIL import Image

from tagspread.vision import operations

SIZES = [(1, 1), (8, 8), (17, 23), (32, 32), (40, 31), (65, 96)]
GRAY = {1: 128, 3: (128, 128, 128)}


def noise(height, width, count, channels=3):
    return np.random.default_rng(height * width).integers(0, 256, (count, channels, height, width), dtype=np.uint8)


def smooth(height, width, count, channels=3):
    """Return smooth waves, like the shading of a photograph."""
    rng = np.random.default_rng(height + width)
    y, x = np.mgrid[:height, :width] / 32
    a, b, c = rng.uniform(-6, 6, (3, count, channels, 1, 1))
    return np.round(127.5 + 127.5 * np.sin(a * x + b * y + c)).astype(np.uint8)


def pillow(pixels, change):
    """Apply ``change`` to one image (C x H x W) as a Pillow image."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2))
    result = np.asarray(change(image))
    return result[None] if result.ndim == 2 else np.moveaxis(result, 2, 0)


def affine(matrix, resample):
    def change(image):
        gray = GRAY[len(image.getbands())]
        return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=gray)

    return change


def rotate(angle):
    return lambda image: image.rotate(angle, fillcolor=GRAY[len(image.getbands())])


def on_each(images, changes):
    return np.stack([pillow(pixels, change) for pixels, change in zip(images, changes, strict=True)])


def stack(matrices):
    return torch.from_numpy(np.stack(matrices))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("make", [noise, smooth])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_rotation_equals_pillow(height, width, make, channels):
    angles = [*np.linspace(0, 30, 10)[1:], -12.3, 44.9, 77.7, 123.4, 359.0]
    images = make(height, width, len(angles), channels)
    found = operations.nearest(torch.from_numpy(images), stack([operations.rotation(a, height, width) for a in angles]))
    np.testing.assert_array_equal(found.numpy(), on_each(images, map(rotate, angles)))


@pytest.mark.parametrize(("height", "width"), [*SIZES, (224, 224)])
def test_translation_equals_pillow(height, width):
    shares = [s * k for s in (-1, 1) for k in np.linspace(0, 150 / 331, 10)] + [0.5, -0.5, 1.2, -1.2]
    moves = [(s * width, 0.0) for s in shares] + [(0.0, s * height) for s in shares] + [(0.5, 0.0), (-0.5, 0.0)]
    images = noise(height, width, len(moves), 1)
    found = operations.nearest(torch.from_numpy(images), stack([operations.translation(*move) for move in moves]))
    nearest = Image.Resampling.NEAREST
    expected = on_each(images, [affine((1, 0, dx, 0, 1, dy), nearest) for dx, dy in moves])
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("make", [noise, smooth])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_shear_equals_pillow(height, width, make, channels):
    amounts = [s * k for s in (-1, 1) for k in np.linspace(0, 0.3, 10)] + [0.5, -1.0, 1.7]
    cases = [(amount, horizontal) for amount in amounts for horizontal in (True, False)]
    images = make(height, width, len(cases), channels)
    # in float64: rounding the amount to float32 would change some pixels
    amount = torch.tensor([case[0] for case in cases], dtype=torch.float64)
    horizontal = torch.tensor([case[1] for case in cases])
    found = operations.shear(torch.from_numpy(images), amount, horizontal)
    bicubic = Image.Resampling.BICUBIC
    changes = [affine((1, v, 0, 0, 1, 0) if flat else (1, 0, 0, v, 1, 0), bicubic) for v, flat in cases]
    np.testing.assert_array_equal(found.numpy(), on_each(images, changes))


def random_matrices(rng, count, height, width):
    made = []
    for _ in range(count):
        angle, dx, dy = rng.uniform(-30, 30), rng.uniform(-0.5, 0.5) * width, rng.uniform(-0.5, 0.5) * height
        made.append(operations.rotation(angle, height, width) if rng.random() < 0.5 else operations.translation(dx, dy))
    return stack(made)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_two_at_once_equal_one_after_the_other(height, width):
    rng, count = np.random.default_rng(4), 40
    images = torch.from_numpy(noise(height, width, count))
    inner, outer = (random_matrices(rng, count, height, width) for _ in range(2))
    amount, horizontal = torch.from_numpy(rng.uniform(-0.3, 0.3, count)), torch.from_numpy(rng.random(count) < 0.5)
    one_by_one = operations.nearest(operations.nearest(images, inner), outer)
    assert torch.equal(operations.nearest(images, inner, outer), one_by_one)
    one_by_one = operations.nearest(operations.shear(images, amount, horizontal), outer)
    assert torch.equal(operations.shear(images, amount, horizontal, outer), one_by_one)


def test_wide_images_need_more_than_32_bits():
    pixels = noise(2, 40_000, 1, 1)
    matrix = stack([operations.translation(30_000.0, 0.0)])
    found = operations.nearest(torch.from_numpy(pixels), matrix).numpy()
    np.testing.assert_array_equal(found[..., :10_000], pixels[..., 30_000:])
    assert (found[..., 10_000:] == operations.FILL).all()


def test_layouts_and_input_left_alone():
    images = torch.from_numpy(noise(12, 14, 4)).contiguous(memory_format=torch.channels_last)
    before, matrix = images.clone(), stack([operations.rotation(20, 12, 14)] * 4)
    amount, horizontal = torch.full((4,), 0.2, dtype=torch.float64), torch.tensor([True, False, True, False])
    plain = images.contiguous()
    assert torch.equal(operations.nearest(images, matrix), operations.nearest(plain, matrix))
    assert torch.equal(operations.shear(images, amount, horizontal), operations.shear(plain, amount, horizontal))
    assert torch.equal(images, before)


def test_nothing_and_a_quarter_turn():
    assert operations.rotation(0, 5, 7).tolist()[:2] == [operations.ONE, 0]
    assert operations.translation(0, 0).tolist() == [operations.ONE, 0, 0, 0, operations.ONE, 0]
    quarter = operations.rotation(math.degrees(math.pi / 2), 4, 4)
    pixels = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    assert torch.equal(operations.nearest(pixels, stack([quarter])), pixels.rot90(1, (2, 3)))
