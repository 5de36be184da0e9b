import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from tagspread.errors import TagspreadError
from tagspread.vision import operations, randaugment
from tagspread.vision.augment import OPERATIONS, Views

MANY = np.arange(30_000)
ENHANCERS = {
    "Sharpness": ImageEnhance.Sharpness,
    "Contrast": ImageEnhance.Contrast,
    "Color": ImageEnhance.Color,
    "Brightness": ImageEnhance.Brightness,
}


def batch(count, height=24, width=24, channels=3, seed=0):
    """Return images that are half noise, half smooth waves."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    y, x = np.mgrid[:height, :width] / 24
    a, b, c = rng.uniform(-5, 5, (3, count, channels, 1, 1))
    images[::2] = np.round(127.5 + 90 * np.sin(a * x + b * y + c))[::2]
    return torch.from_numpy(images)


# ---- a slow, literal reference: one image at a time, with Pillow


def square(image, at, side, fill):
    (x, y), (width, height) = np.floor(np.array(at) * image.size).astype(int), image.size
    left, top = x - side // 2, y - side // 2
    image = image.copy()
    if side > 0:
        right, bottom = min(left + side, width) - 1, min(top + side, height) - 1  # Pillow includes both ends
        ImageDraw.Draw(image).rectangle((max(left, 0), max(top, 0), right, bottom), fill=fill)
    return image


def operate(image, name, value, at):
    width, height = image.size
    simple = {"Invert": ImageOps.invert, "AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize}
    if name in simple:
        return simple[name](image)
    if name in ENHANCERS:
        return ENHANCERS[name](image).enhance(value)
    if name == "Cutout":
        return square(image, at, int(value), (125, 122, 113))
    if name == "Posterize":
        return ImageOps.posterize(image, int(value))
    if name == "Solarize":
        return ImageOps.solarize(image, value)
    gray = (128, 128, 128)
    if name == "Rotate":
        return image.rotate(value, fillcolor=gray)
    matrix, resample = {
        "ShearX": ((1, value, 0, 0, 1, 0), Image.Resampling.BICUBIC),
        "ShearY": ((1, 0, 0, value, 1, 0), Image.Resampling.BICUBIC),
        "TranslateX": ((1, 0, value * width, 0, 1, 0), Image.Resampling.NEAREST),
        "TranslateY": ((1, 0, 0, 0, 1, value * height), Image.Resampling.NEAREST),
    }[name]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=gray)


def magnitude(name, level, sign):
    """The magnitudes, written out independently."""
    share = level / 9
    if name in ENHANCERS:
        return 1 + sign * 0.9 * share
    return {
        "Shear": sign * 0.3 * share,
        "Trans": sign * 150 / 331 * share,
        "Rotat": 30 * share,
        "Poste": [8, 8, 7, 7, 6, 6, 5, 5, 4, 4][level],
        "Solar": 256 * (1 - share),
        "Cutou": [0, 2, 4, 7, 9, 11, 13, 16, 18, 20][level],
    }.get(name[:5], 0)


def reference(views, images, rows, epoch, cutout=True):
    plan = views.plan(rows, epoch)
    chosen, results = plan.randaugment, []
    for k, pixels in enumerate(images.numpy()):
        image = Image.fromarray(np.moveaxis(pixels, 0, 2))
        if views.flip and plan.flip[k]:
            image = ImageOps.mirror(image)
        if cutout and views.cutout > 0:
            side = round(views.cutout * min(image.size))
            image = square(image, plan.cutout_at[k], side, tuple(map(int, plan.cutout_color[k])))
        for slot in range(2):
            if chosen.operation[k, slot] >= 0:
                name = OPERATIONS[chosen.operation[k, slot]]
                value = chosen.values()[k, slot]
                assert value == pytest.approx(magnitude(name, chosen.level[k, slot], chosen.sign[k, slot]), abs=1e-12)
                image = operate(image, name, value, chosen.at[k, slot])
        results.append(np.moveaxis(np.asarray(image), 2, 0))
    return np.stack(results)


@pytest.mark.parametrize(("height", "width", "count"), [(32, 32, 500), (24, 37, 300), (8, 8, 200), (224, 224, 24)])
def test_strong_views_equal_a_pillow_pipeline(height, width, count):
    images, rows = batch(count, height, width), np.arange(count) + 1000
    before = images.clone()
    for cutout in (True, False):
        found = Views(seed=3).strong(images, rows, epoch=1, cutout=cutout)
        np.testing.assert_array_equal(found.numpy(), reference(Views(seed=3), images, rows, 1, cutout))
    assert torch.equal(images, before)


@pytest.mark.parametrize("first", OPERATIONS)
def test_every_pair_of_operations_equals_pillow(first):
    pairs = [(OPERATIONS.index(first), second) for second in range(15) for _ in range(4)]
    rng, count = np.random.default_rng(2), len(pairs)
    chosen = randaugment.Choices(
        operation=np.array(pairs),
        level=rng.integers(1, 10, (count, 2)),
        sign=rng.choice([-1.0, 1.0], (count, 2)),
        at=rng.random((count, 2, 2)),
    )
    images = batch(count, 21, 30)
    found, values = randaugment.apply(images, chosen), chosen.values()
    for k, pixels in enumerate(images.numpy()):
        image = Image.fromarray(np.moveaxis(pixels, 0, 2))
        for slot in range(2):
            image = operate(image, OPERATIONS[pairs[k][slot]], values[k, slot], chosen.at[k, slot])
        np.testing.assert_array_equal(found[k].numpy(), np.moveaxis(np.asarray(image), 2, 0))


def test_two_geometric_operations_are_one_resampling(monkeypatch):
    calls, plain = [], operations.nearest

    def watched(images, inner, outer):
        calls.append(outer is not None)
        return plain(images, inner, outer)

    monkeypatch.setattr(operations, "nearest", watched)
    turn, one = OPERATIONS.index("Rotate"), np.ones((5, 2), np.int64)
    chosen = randaugment.Choices(one * turn, one * 3, one.astype(float), np.zeros((5, 2, 2)))
    randaugment.apply(batch(5), chosen)
    assert calls == [True]


# ---- random parameters


def test_distribution_of_the_draws():
    plan = Views().plan(MANY, epoch=0)
    chosen = plan.randaugment
    assert plan.flip.mean() == pytest.approx(0.5, abs=0.015)
    assert (chosen.operation == -1).all(1).mean() == pytest.approx(0.25, abs=0.015)
    assert (chosen.operation >= 0).mean(0) == pytest.approx([0.5, 0.5], abs=0.015)
    for slot in range(2):
        drawn = chosen.operation[:, slot]
        counts = np.bincount(drawn[drawn >= 0], minlength=15)
        assert counts / counts.sum() == pytest.approx(np.full(15, 1 / 15), abs=0.01)
        pairs = drawn * 9 + chosen.level[:, slot] - 1
        counts = np.bincount(pairs[drawn >= 0], minlength=135)
        assert counts / counts.sum() == pytest.approx(np.full(135, 1 / 135), abs=0.004)
    both = chosen.operation[(chosen.operation >= 0).all(1)]
    assert len(np.unique(both @ [15, 1])) == 225  # ordered pairs, the same operation twice among them
    assert set(np.unique(chosen.level)) == set(range(1, 10))
    assert chosen.sign.mean() == pytest.approx(0, abs=0.02)
    assert plan.cutout_at.mean(0) == pytest.approx([0.5, 0.5], abs=0.01)
    assert np.abs(np.corrcoef([plan.flip, *plan.cutout_at.T, *plan.cutout_color.T]) - np.eye(6)).max() < 0.03
    assert (plan.cutout_color.min(), plan.cutout_color.max()) == (0, 255)


def test_weak_views_are_flips_drawn_apart_from_the_strong_ones():
    images, rows = batch(2000, 8, 8), np.arange(2000)
    weak = Views().weak(images, rows, 0)
    flipped = (weak == images.flip(3)).flatten(1).all(1)
    assert (flipped | (weak == images).flatten(1).all(1)).all()
    assert flipped.float().mean().item() == pytest.approx(0.5, abs=0.05)
    agreement = (flipped.numpy() == Views().plan(rows, 0).flip).mean()
    assert agreement == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_a_image_keeps_its_view_in_any_batch(kind):
    images, rows = batch(60), np.arange(60)
    views = getattr(Views(seed=1), kind)
    everything = views(images, rows, 4)
    order = np.random.default_rng(0).permutation(60)
    assert torch.equal(views(images[order], rows[order], 4), everything[order])
    for k in (0, 17, 59):
        assert torch.equal(views(images[k : k + 1], [k], 4), everything[k : k + 1])
    assert torch.equal(views(images, rows, 4), everything)
    assert not torch.equal(views(images, rows, 5), everything)
    assert not torch.equal(getattr(Views(seed=2), kind)(images, rows, 4), everything)
    assert views(images[:0], [], 4).shape == (0, 3, 24, 24)


# ---- options


@pytest.mark.parametrize(("height", "width", "share"), [(32, 32, 0.5), (20, 31, 0.5), (9, 9, 0.3), (16, 16, 1.0)])
def test_cutout_is_one_square_of_one_color(height, width, share):
    views = Views(flip=False, cutout=share, operations=())
    images, rows = torch.zeros(300, 3, height, width, dtype=torch.uint8), np.arange(300)
    plan, found = views.plan(rows, 0), views.strong(images, rows, 0)
    side, whole = round(share * min(height, width)), 0
    for k in range(300):
        if not plan.cutout_color[k].all():
            continue  # a channel with fill 0 is invisible on black
        covered = found[k].amin(0) > 0
        down, across = int(covered.any(1).sum()), int(covered.any(0).sum())
        assert int(covered.sum()) == down * across  # a rectangle
        assert max(down, across) <= side
        assert min(down, across) >= side // 2  # at least the half that lies inside the image
        assert (found[k][:, covered].T.numpy() == plan.cutout_color[k]).all()
        whole += down == across == side
    assert whole > 0 or share == 1
    assert int(images.max()) == 0


def test_warm_up_leaves_out_the_square_alone():
    images, rows = batch(50), np.arange(50)
    without = Views().strong(images, rows, 0, cutout=False)
    assert torch.equal(without, Views(cutout=0).strong(images, rows, 0))
    assert not torch.equal(without, Views().strong(images, rows, 0))


def test_what_is_switched_off_is_not_made():
    images, rows = batch(6), np.arange(6)
    off = Views(flip=False, cutout=0, operations=())
    assert off.weak(images, rows, 0) is images
    assert off.strong(images, rows, 0) is images
    assert dataclasses.replace(off, cutout=0.5).strong(images, rows, 0, cutout=False) is images
    untouched = dataclasses.replace(off, operations=("Invert",)).strong(images, rows, 0)
    untouched[:] = 0
    assert int(images.max()) > 0


def test_a_subset_of_operations():
    views = Views(operations=("Rotate", "Invert"))
    drawn = views.plan(MANY, 0).randaugment.operation
    assert set(np.unique(drawn)) == {-1, OPERATIONS.index("Rotate"), OPERATIONS.index("Invert")}
    assert (drawn == OPERATIONS.index("Rotate")).mean() == pytest.approx(0.25, abs=0.01)


def test_gray_images():
    images, rows = batch(200, 16, 20, channels=1), np.arange(200)
    views = Views(cutout=0, operations=tuple(name for name in OPERATIONS if name != "Cutout"))
    gray, colors = (views.strong(p, rows, 0) for p in (images, images.expand(-1, 3, -1, -1)))
    assert torch.equal(gray.expand(-1, 3, -1, -1), colors)
    assert Views().strong(images, rows, 0).shape == images.shape


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Views(operations=("Rotat",)), "Did you mean 'Rotate'"),
        (lambda: Views(operations="Rotate"), "give a tuple of names"),  # type: ignore[arg-type]
        (lambda: Views(cutout=1.5), "cutout is 1.5; .* from 0"),
        (lambda: Views().weak(batch(2).float(), [0, 1], 0), "torch.float32 of shape .2, 3, 24, 24.; give a uint8"),
        (lambda: Views().strong(batch(2)[0], [0, 1], 0), "of shape .3, 24, 24.; give a uint8"),
        (lambda: Views().strong(batch(2).numpy(), [0, 1], 0), "ndarray.*; give a uint8 tensor"),
        (lambda: Views().strong(batch(2, channels=4), [0, 1], 0), "give 3 channels"),
        (lambda: Views().strong(batch(2)[..., :0], [0, 1], 0), "at least one pixel"),
        (lambda: Views().strong(batch(2), [0], 0), "rows has 1 entries for 2 images"),
        (lambda: Views().weak(batch(2), [0.5, 1], 0), "rows is an array of float64"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(TagspreadError, match=words):
        call()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_same_on_a_gpu_without_waiting_for_it():
    images, rows = batch(256, 40, 56), np.arange(256)
    on_device = images.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = Views().strong(on_device, rows, 0), Views().weak(on_device, rows, 0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found[0].cpu(), Views().strong(images, rows, 0))
    assert torch.equal(found[1].cpu(), Views().weak(images, rows, 0))
