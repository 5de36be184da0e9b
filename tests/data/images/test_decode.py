import errno
import io
import os
import pickle
import struct
import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from tagspread.data.images import decode as module
from tagspread.data.images import formats
from tagspread.data.images.decode import Broken, UnreadableImage, decode, decode_all
from tagspread.data.images.find import find_images
from tagspread.errors import TagspreadError

RNG = np.random.default_rng(0)
# four colors, one per quarter: every rotation or reflection changes the image
QUARTERS = np.repeat(np.repeat(np.array([[[250, 10, 20], [30, 240, 40]], [[5, 15, 230], [200, 190, 0]]]), 4, 0), 4, 1)
QUARTERS = QUARTERS.astype(np.uint8)


def saved(path, image, **options):
    image.save(path, **options)
    return path


def rows_columns(path, size):
    """Return the pixels as height x width x 3."""
    found = decode(path, size)
    assert found.dtype == np.uint8
    assert found.shape == (3, size, size)
    assert found.flags.c_contiguous
    return found.transpose(1, 2, 0)


def test_rgb_of_the_same_size_is_unchanged(tmp_path):
    path = saved(tmp_path / "a b ü 猫.png", Image.fromarray(QUARTERS))
    np.testing.assert_array_equal(rows_columns(path, 8), QUARTERS)
    np.testing.assert_array_equal(rows_columns(str(path), 8), QUARTERS)


def test_resizing_ignores_the_aspect_ratio_and_is_antialiased(tmp_path):
    wide = np.zeros((16, 64, 3), np.uint8)
    wide[:, ::2] = 255  # stripes that plain interpolation would turn into black or white
    found = rows_columns(saved(tmp_path / "wide.png", Image.fromarray(wide)), 8)
    assert np.abs(found.astype(int) - 127).max() <= 8
    image = Image.fromarray(RNG.integers(0, 256, (50, 37, 3), dtype=np.uint8))
    expected = np.asarray(image.resize((20, 20), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(rows_columns(saved(tmp_path / "noise.png", image), 20), expected)


# where the first row and the first column of the stored pixels belong, as EXIF 2.3 defines it
TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90,
}


@pytest.mark.parametrize("strip", [2**20, 20])
@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["png", "tiff", "webp"])
def test_exif_orientation(tmp_path, monkeypatch, orientation, kind, strip):
    monkeypatch.setattr(module, "STRIP", strip)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "webp" else {}
    path = saved(tmp_path / f"turned.{kind}", Image.fromarray(QUARTERS), exif=exif, **options)
    np.testing.assert_array_equal(rows_columns(path, 8), TURNS[orientation](QUARTERS))


def test_jpeg_orientation_and_damaged_exif(tmp_path):
    large = Image.fromarray(QUARTERS.repeat(8, 0).repeat(8, 1))
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path / "turned.jpg", large, exif=exif, quality=95)
    turned = TURNS[6](QUARTERS).astype(int)
    assert np.abs(rows_columns(path, 8)[::7, ::7].astype(int) - turned[::7, ::7]).max() <= 6
    for damaged in (exif.tobytes()[:-9], b"Exif\0\0nonsense", b"Exif\0\0MM\0*" + b"\xff" * 20):
        path = saved(tmp_path / "damaged.jpg", large, exif=damaged, quality=95)
        assert decode(path, 8).shape == (3, 8, 8)


def test_gray_modes(tmp_path):
    gray = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    for name, image in {
        "gray": Image.fromarray(gray),
        "alpha": Image.merge("LA", [Image.fromarray(gray), Image.new("L", (8, 8), 255)]),
    }.items():
        found = rows_columns(saved(tmp_path / f"{name}.png", image), 8)
        np.testing.assert_array_equal(found, gray[..., None].repeat(3, 2))
    bits = gray > 100
    found = rows_columns(saved(tmp_path / "bits.png", Image.fromarray(bits)), 8)
    np.testing.assert_array_equal(found[..., 0], bits * np.uint8(255))


@pytest.mark.parametrize("kind", ["png", "tiff", "pgm"])
def test_16_bit_gray_is_scaled_not_clipped(tmp_path, kind):
    ramp = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    path = tmp_path / f"ramp.{kind}"
    if kind == "pgm":
        path.write_bytes(b"P5 8 8 65535\n" + ramp.astype(">u2").tobytes())
    else:
        Image.fromarray(ramp).save(path)
    found = rows_columns(path, 8)
    np.testing.assert_array_equal(found, np.rint(ramp / 257)[..., None].repeat(3, 2))
    assert found[0, 0, 0] == 0
    assert found[-1, -1, 0] == 255


def test_wide_integers_and_floats(tmp_path):
    wide = Image.fromarray(np.array([[0, 257], [65535, 514]], np.int32))
    assert decode(saved(tmp_path / "int.tiff", wide), 2)[0].tolist() == [[0, 1], [255, 2]]
    shares = Image.fromarray(np.array([[0, 0.2], [1, 0.4]], np.float32))
    assert decode(saved(tmp_path / "share.tiff", shares), 2)[1].tolist() == [[0, 51], [255, 102]]
    bytes_ = Image.fromarray(np.array([[0, 51.2], [255, 1.6]], np.float32))
    assert decode(saved(tmp_path / "bytes.tiff", bytes_), 2)[2].tolist() == [[0, 51], [255, 2]]
    for bad in (np.array([[70000]], np.int32), np.array([[-1]], np.int32), np.array([[np.nan]], np.float32)):
        with pytest.raises(UnreadableImage, match="gray values range from"):
            decode(saved(tmp_path / "bad.tiff", Image.fromarray(bad)), 1)


def test_palette_with_and_without_transparency(tmp_path):
    image = Image.fromarray(np.array([[0, 1], [2, 3]], np.uint8), "L").convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    colors = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]]
    plain = rows_columns(saved(tmp_path / "plain.png", image), 2)
    assert plain.reshape(4, 3).tolist() == colors
    one = rows_columns(saved(tmp_path / "one.png", image, transparency=1), 2)
    assert one.reshape(4, 3).tolist() == [colors[0], [255] * 3, *colors[2:]]
    several = rows_columns(saved(tmp_path / "several.png", image, transparency=bytes([0, 255, 0, 255])), 2)
    assert several.reshape(4, 3).tolist() == [[255] * 3, colors[1], [255] * 3, colors[3]]


def test_transparent_pixels_become_white(tmp_path):
    pixels = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]], [[0, 0, 0, 51], [200, 0, 100, 128]]], np.uint8)
    found = rows_columns(saved(tmp_path / "see-through.png", Image.fromarray(pixels)), 2)
    alpha = pixels[..., 3:] / 255
    np.testing.assert_allclose(found, pixels[..., :3] * alpha + 255 * (1 - alpha), atol=1)
    keyed = saved(tmp_path / "key.png", Image.fromarray(pixels[..., :3]), transparency=(0, 0, 0))
    assert rows_columns(keyed, 2)[1, 0].tolist() == [255] * 3
    gray = Image.merge("LA", [Image.new("L", (1, 1), 7), Image.new("L", (1, 1), 0)])
    assert decode(saved(tmp_path / "gray.png", gray), 1).ravel().tolist() == [255] * 3


@pytest.mark.parametrize(
    ("ink", "color"),
    [((0, 0, 0, 0), (255, 255, 255)), ((255, 0, 0, 0), (0, 255, 255)), ((0, 255, 0, 0), (255, 0, 255))],
)
def test_cmyk(tmp_path, ink, color):
    image = Image.new("CMYK", (16, 16), ink)
    assert decode(saved(tmp_path / "ink.tiff", image), 4)[:, 2, 2].tolist() == list(color)
    as_jpeg = decode(saved(tmp_path / "ink.jpg", image, quality=100), 4)[:, 2, 2]  # Adobe stores these inverted
    np.testing.assert_allclose(as_jpeg.astype(int), color, atol=3)


def test_ycbcr(tmp_path):
    image = Image.new("RGB", (16, 16), (200, 50, 100))
    for name in ("y.jpg", "y.tiff"):
        found = decode(saved(tmp_path / name, image.convert("YCbCr")), 4)[:, 2, 2]
        np.testing.assert_allclose(found.astype(int), (200, 50, 100), atol=3)


def test_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    for kind in ("gif", "png", "webp"):
        options = {"lossless": True} if kind == "webp" else {}
        path = saved(tmp_path / f"moving.{kind}", frames[0], save_all=True, append_images=frames[1:], **options)
        assert decode(path, 4)[:, 0, 0].tolist() == [255, 0, 0]


def test_large_jpeg_decoded_in_reduced_size_looks_the_same(tmp_path, monkeypatch):
    y, x = np.mgrid[:1200, :1600]
    waves = [127 + 100 * np.sin(x / a) * np.cos(y / b) for a, b in ((40, 60), (9, 31), (150, 7))]
    path = saved(tmp_path / "large.jpg", Image.fromarray(np.stack(waves, -1).astype(np.uint8)), quality=92)
    fast = decode(path, 64).astype(int)
    monkeypatch.setattr(module, "DRAFT_FACTOR", 1000)
    assert np.abs(fast - decode(path, 64)).max() <= 3


def encoded(kind):
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_truncated_files_raise(tmp_path, kind, share):
    whole = encoded(kind)
    path = tmp_path / "cut.jpg"
    path.write_bytes(whole)
    decode(path, 8)
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UnreadableImage) as caught:
        decode(path, 8)
    assert caught.value.path == path
    assert str(path) in str(caught.value)
    assert caught.value.reason in str(caught.value)


def test_files_that_are_not_images_raise(tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "drawing.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    os.mkfifo(tmp_path / "pipe.jpg")
    bomb = encoded("BMP")
    (tmp_path / "bomb.jpg").write_bytes(bomb[:18] + struct.pack("<ii", 50_000, 50_000) + bomb[26:])
    reasons = {
        "empty": "the file is empty",
        "text": "no image format",
        "folder": "a directory",
        "drawing": "a vector drawing",
        "pipe": "not a regular file",
        "bomb": "2500000000 pixels",
        "missing": "no such file",
        "null\0": "null",
    }
    for name, reason in reasons.items():
        with pytest.raises(UnreadableImage, match=reason):
            decode(tmp_path / f"{name}.jpg", 8)


def test_the_error_can_be_sent_between_processes():
    error = pickle.loads(pickle.dumps(UnreadableImage("a.jpg", "no good")))
    assert (error.reason, str(error)) == ("no good", str(UnreadableImage("a.jpg", "no good")))


def test_decoding_many_files_returns_broken_ones_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 4)
    paths, seen = [], []
    for k in range(11):
        path = tmp_path / f"{k}.png"
        Image.new("RGB", (5, 5), (k, 0, 0)).save(path)
        if k in {3, 4, 10}:
            path.write_bytes(path.read_bytes()[:-30])
        paths.append(path)
    out = np.full((11, 3, 4, 4), 99, np.uint8)
    broken = decode_all(paths, 4, out, workers=3, progress=lambda *counts: seen.append(counts))
    assert [(one.index, one.path) for one in broken] == [(k, paths[k]) for k in (3, 4, 10)]
    assert isinstance(broken[0], Broken)
    assert all(one.reason for one in broken)
    assert out[:, 0, 0, 0].tolist() == [0, 1, 2, 99, 99, 5, 6, 7, 8, 9, 99]
    assert seen == [(k + 1, 11) for k in range(11)]
    assert decode_all([], 4, np.empty((0, 3, 4, 4), np.uint8)) == []


def test_pillow_warnings_are_suppressed_and_filters_restored(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # 8 x 8 is then suspicious, but not refused
    path = saved(tmp_path / "many.png", Image.fromarray(QUARTERS))
    before = list(warnings.filters)
    with pytest.raises(Image.DecompressionBombWarning):
        Image.open(path)
    threads = [threading.Thread(target=decode, args=(path, 8)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert decode_all([path] * 50, 8, np.empty((50, 3, 8, 8), np.uint8), workers=4) == []
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before
    with warnings.catch_warnings(record=True) as caught:
        decode(path, 8)
    assert not caught


def test_an_interruption_leaves_no_thread(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(QUARTERS))

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_all([path] * 100, 8, np.empty((100, 3, 8, 8), np.uint8), progress=stop)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tagspread-decode")]


def test_wrong_arguments():
    with pytest.raises(TagspreadError, match="size is 0"):
        decode("a.png", 0)
    with pytest.raises(TagspreadError, match="out is uint8 of shape"):
        decode_all(["a.png"], 4, np.empty((2, 3, 4, 4), np.uint8))
    with pytest.raises(TagspreadError, match="workers is 0"):
        decode_all(["a.png"], 4, np.empty((1, 3, 4, 4), np.uint8), workers=0)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "P", "1", "I", "F", "I;16", "CMYK"])
def test_strips_of_a_large_image_give_the_same_bytes(monkeypatch, mode):
    """The reference converts and resizes the image as a whole."""
    values = RNG.integers(0, 256, (61, 47, 4), dtype=np.uint8)
    if mode in ("I", "F", "I;16"):
        kinds = {"I": np.int32, "F": np.float32, "I;16": np.uint16}
        image = Image.fromarray((values[..., 0] * (200 if mode != "F" else 1)).astype(kinds[mode]))
    else:
        image = Image.fromarray(values if mode in ("RGBA", "LA") else values[..., :3]).convert(mode)
    whole = module.from_pillow(image, 20, 30)
    monkeypatch.setattr(module, "STRIP", 150)
    np.testing.assert_array_equal(module.from_pillow(image, 20, 30), whole)


def test_strips_of_gray_values_out_of_range(monkeypatch):
    monkeypatch.setattr(module, "STRIP", 8)
    values = np.zeros((8, 8), np.float32)
    for bad in (np.nan, -1, 256):
        values[5, 3] = bad
        with pytest.raises(ValueError, match="its gray values range from"):
            module.from_pillow(Image.fromarray(values), 4, 4)
    values[5, 3] = 0.5
    assert module.from_pillow(Image.fromarray(values), 8, 8).max() == 128  # all strips have the range of the image


def test_threads_share_a_budget_of_pixels(tmp_path, monkeypatch):
    budget, most, real = module.PixelBudget(250), [], module.from_pillow

    def counting(*args):
        most.append(budget.held)
        return real(*args)

    monkeypatch.setattr(module, "BUDGET", budget)
    monkeypatch.setattr(module, "from_pillow", counting)
    paths = [saved(tmp_path / f"{k}.png", Image.fromarray(QUARTERS)) for k in range(20)]  # 64 pixels: three at a time
    large = [saved(tmp_path / f"large {k}.png", Image.fromarray(QUARTERS.repeat(4, 0))) for k in range(4)]  # 256 pixels
    order = [path for k in range(4) for path in (large[k], *paths[5 * k : 5 * k + 5])]
    out = np.zeros((24, 3, 8, 8), np.uint8)
    assert decode_all(order, 8, out, workers=8) == []
    assert len(most) == 24
    assert {held for held in most if held > 192} == {256}  # alone
    assert budget.held == 0
    (tmp_path / "cut.png").write_bytes(paths[0].read_bytes()[:-30])
    with pytest.raises(UnreadableImage):
        decode(tmp_path / "cut.png", 8)
    assert budget.held == 0


def test_a_progressive_jpeg_counts_in_full(tmp_path, monkeypatch):
    held = []
    budget = module.PixelBudget(10**6)
    monkeypatch.setattr(module, "BUDGET", budget)
    monkeypatch.setattr(module, "turn_of", lambda _: held.append(budget.held))
    image = Image.new("RGB", (640, 480))
    for progressive in (False, True):
        decode(saved(tmp_path / "a.jpg", image, progressive=progressive), 16)
    assert held == [160 * 120, 640 * 480]  # at most a quarter of the size is decoded, and four times the result


@pytest.mark.parametrize(
    ("brand", "words"),
    [(b"heic", "HEIC needs pillow-heif; run: pip install 'tagspread\\[heif\\]'"), (b"qt  ", "known")],
)
def test_a_missing_decoder_is_named(tmp_path, monkeypatch, brand, words):
    """Phones write HEIC files, some programs with the suffix of a JPEG."""
    monkeypatch.setattr(formats, "DECODABLE", formats.DECODABLE - formats.HEIF)
    (tmp_path / "a.jpg").write_bytes(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic")
    with pytest.raises(UnreadableImage, match=words):
        decode(tmp_path / "a.jpg", 8)


@pytest.mark.parametrize("kind", ["gif", "webp", "png"])
def test_animations_give_their_first_frame(tmp_path, kind):
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue", "green")]
    options = {"lossless": True} if kind == "webp" else {}
    path = saved(tmp_path / f"moving.{kind}", frames[0], save_all=True, append_images=frames[1:], **options)
    assert (decode(path, 8).transpose(1, 2, 0) == (255, 0, 0)).all()


@pytest.mark.skipif(not formats.HAS_HEIF, reason="needs pillow-heif: pip install 'tagspread[heif]'")
def test_heic(tmp_path):
    path = saved(tmp_path / "a.heic", Image.fromarray(QUARTERS.repeat(8, 0).repeat(8, 1)), quality=100)
    assert np.abs(rows_columns(path, 8)[::7, ::7].astype(int) - QUARTERS[::7, ::7]).max() < 5  # the corners
    assert find_images(tmp_path) == [path]


@pytest.mark.skipif(".avif" not in formats.DECODABLE, reason="needs a Pillow with AVIF")
def test_avif(tmp_path):
    path = saved(tmp_path / "a.avif", Image.fromarray(QUARTERS.repeat(8, 0).repeat(8, 1)), quality=100)
    assert np.abs(rows_columns(path, 8)[::7, ::7].astype(int) - QUARTERS[::7, ::7]).max() < 5  # the corners
    assert find_images(tmp_path) == [path]


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate"])
def test_libtiff_prints_nothing(tmp_path, capfd, compression):
    """Errors of libtiff name no file; they must not reach the screen beside the message that does."""
    file = tmp_path / "damaged.tif"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, compression=compression)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    file.write_bytes(data)
    with pytest.raises(UnreadableImage, match=r"damaged\.tif cannot be read as an image: its data are damaged"):
        decode(file, 32)
    assert capfd.readouterr() == ("", "")


def test_too_many_open_files_do_not_make_an_image_unreadable(tmp_path, monkeypatch):
    save_png = tmp_path / "a.png"
    Image.new("RGB", (9, 9)).save(save_png)

    def fail(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(OSError, match="Too many open files"):  # the command ends; no row says that the image is broken
        decode(save_png, 8)
