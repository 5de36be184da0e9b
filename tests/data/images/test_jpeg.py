"""JPEG files decoded by torchvision, compared with Pillow."""

import io
import random
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tagspread.data.images import decode as module
from tagspread.data.images import jpeg
from tagspread.data.images.decode import UnreadableImage, decode, decode_all
from tagspread.data.images.jpeg import Header, has_decoder, read_header

pytestmark = pytest.mark.skipif(not has_decoder(), reason="this torchvision decodes no JPEG files")
RNG = np.random.default_rng(0)


def photo(width, height):
    """Return an image with smooth areas, edges and the noise of a sensor."""
    coarse = Image.fromarray(RNG.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    y, x = np.mgrid[:height, :width]
    pixels[(x - width // 3) ** 2 + (y - height // 2) ** 2 < (height // 4) ** 2] //= 2
    return Image.fromarray(np.clip(pixels + RNG.normal(0, 4, (height, width, 1)), 0, 255).astype(np.uint8))


def encoded(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def turned(orientation):
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "a camera with a name", orientation
    return exif


@pytest.fixture
def by_both(tmp_path, monkeypatch):
    """Decode a file, given as bytes, by torchvision and by Pillow; return both results or both reasons."""
    path = tmp_path / "image.jpg"

    def decode_twice(content, size=48):
        path.write_bytes(content)
        results: list[Any] = []
        for fast in (True, False):
            try:
                results.append(module._decode(path, size, fast))
            except UnreadableImage as error:
                results.append(error.reason)
        return results

    return decode_twice


@pytest.fixture
def opened_by_pillow(monkeypatch):
    """Return a list that grows by one whenever Pillow opens a file."""
    opened, real = [], Image.open

    def counted(path):
        opened.append(path)
        return real(path)

    monkeypatch.setattr(Image, "open", counted)
    return opened


@pytest.mark.parametrize("size", [224, 72, 640])
def test_photos_differ_from_pillow_by_at_most_1(by_both, opened_by_pillow, size):
    contents = [
        encoded(photo(500, 375), quality=90),
        encoded(photo(375, 500), quality=75, subsampling=0, progressive=True),
        encoded(photo(333, 251), quality=60, subsampling=1, restart_marker_rows=1),
        encoded(photo(500, 375).convert("L"), quality=90),
    ]
    for content in contents:
        fast, slow = by_both(content, size)
        assert fast.shape == slow.shape == (3, size, size)
        assert fast.dtype == np.uint8
        assert fast.flags.c_contiguous
        difference = np.abs(fast.astype(int) - slow)
        assert difference.max() <= 1
        assert difference.mean() < 0.01
    assert len(opened_by_pillow) == len(contents)  # for the comparison only


def test_without_resizing_the_bytes_are_those_of_pillow(by_both, opened_by_pillow):
    for options in ({}, {"progressive": True}, {"exif": turned(6)}):
        fast, slow = by_both(encoded(photo(96, 96), quality=92, **options), 96)
        np.testing.assert_array_equal(fast, slow)
    assert len(opened_by_pillow) == 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["II", "MM"])
def test_orientation(by_both, opened_by_pillow, orientation, order):
    exif = turned(orientation)
    exif.endian = "<" if order == "II" else ">"
    content = encoded(photo(120, 80), exif=exif.tobytes())
    assert read_header(np.frombuffer(content, np.uint8)) == (120, 80, orientation)
    fast, slow = by_both(content, 40)
    assert np.abs(fast.astype(int) - slow).max() <= 1
    assert len(opened_by_pillow) == 1
    assert np.abs(slow.astype(int) - np.rot90(slow, 1, (1, 2))).max() > 50  # so a wrong turn would be noticed


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_unknown_orientations_are_left_to_pillow(by_both, orientation):
    fast, slow = by_both(encoded(photo(60, 40), exif=turned(orientation)))
    np.testing.assert_array_equal(fast, slow)


def test_what_is_not_plain_is_left_to_pillow(by_both, opened_by_pillow):
    image = photo(90, 60)
    xmp = b'<x:xmpmeta tiff:Orientation="6"/>'
    exif = b"Exif\0\0II*\0\x08\0\0\0"
    twice = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + struct.pack("<HHIHH", 0x0112, 3, 1, 3, 0)
    outside = struct.pack("<HHII", 0x010F, 2, 50, 4000) + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    contents = {
        "four channels": encoded(image.convert("CMYK")),
        "orientation in XMP": encoded(image, xmp=xmp),
        "EXIF without an order of bytes": encoded(image, exif=b"Exif\0\0nonsense" + bytes(20)),
        "EXIF that is cut": encoded(image, exif=exif + b"\x07\0"),
        "EXIF with two orientations": encoded(image, exif=exif + b"\x02\0" + twice + bytes(4)),
        "EXIF that refers to data outside": encoded(image, exif=exif + b"\x02\0" + outside + bytes(4)),
        "decoded at a fraction of its size": encoded(photo(800, 600)),
        "PNG": b"\x89PNG",
    }
    image.save(buffer := io.BytesIO(), "PNG")
    contents["PNG"] = buffer.getvalue()
    for name, content in contents.items():
        opened_by_pillow.clear()
        fast, slow = by_both(content)
        np.testing.assert_array_equal(fast, slow, err_msg=name)
        assert len(opened_by_pillow) == 2, name


def test_both_orientations_agree_if_exif_comes_with_xmp(by_both, opened_by_pillow):
    fast, slow = by_both(encoded(photo(90, 60), exif=turned(8), xmp=b'<x:xmpmeta tiff:Orientation="6"/>'))
    assert np.abs(fast.astype(int) - slow).max() <= 1
    assert len(opened_by_pillow) == 1


def test_damaged_files_give_the_same_results_and_print_nothing(by_both, capfd):
    """Files are cut, overwritten and shortened at random; reasons and images are those of Pillow."""
    chance = random.Random(0)
    files = [
        encoded(photo(97, 61), quality=85),
        encoded(photo(97, 61), quality=85, progressive=True, exif=turned(6)),
        encoded(photo(97, 61), quality=85, restart_marker_rows=1, exif=turned(3)),
    ]
    refused = decoded = 0
    with module.SILENCE:
        for trial in range(240):
            content = bytearray(chance.choice(files))
            at = chance.randrange(2, len(content))
            if trial % 3 == 0:
                del content[at:]
            elif trial % 3 == 1:
                content[at] = chance.randrange(256)
            else:
                del content[at : at + chance.randrange(1, 60)]
            fast, slow = by_both(bytes(content))
            if isinstance(slow, str):
                assert fast == slow
                refused += 1
            else:
                assert not isinstance(fast, str), fast
                assert np.abs(fast.astype(int) - slow).max() <= 1
                decoded += 1
    assert min(refused, decoded) > 40
    assert capfd.readouterr() == ("", "")


def test_libjpeg_prints_again_afterwards(capfd):
    """The reference: outside of the block, it prints a warning about the same file."""
    content = encoded(photo(97, 61), quality=85)
    ends_early = content[: 2 * len(content) // 3] + content[-2:]
    array = np.frombuffer(ends_early, np.uint8).copy()
    header = Header(97, 61, 1)
    with module.SILENCE:
        jpeg.decode_jpeg(array, header, 32)
    assert capfd.readouterr().err == ""
    jpeg.decode_jpeg(array, header, 32)
    assert "Corrupt JPEG data" in capfd.readouterr().err


def test_pixels_are_reserved_and_many_are_left_to_pillow(tmp_path, monkeypatch, opened_by_pillow):
    held, budget = [], module.PixelBudget(10**6)

    def watched(*given):
        held.append(budget.held)
        return jpeg.decode_jpeg(*given)

    monkeypatch.setattr(module, "BUDGET", budget)
    monkeypatch.setattr(module, "decode_jpeg", watched)
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(photo(120, 90)))
    decode(path, 48)
    assert (held, budget.held) == ([120 * 90], 0)
    monkeypatch.setattr(module, "MOST_PIXELS", 120 * 90 - 1)
    decode(path, 48)
    monkeypatch.setattr(module, "MOST_PIXELS", 10**6)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)
    with pytest.raises(UnreadableImage, match="exceeds limit"):
        decode(path, 48)
    assert len(held) == 1
    assert len(opened_by_pillow) == 2


def test_many_files_in_threads(tmp_path, opened_by_pillow):
    paths = [tmp_path / f"{k}.jpg" for k in range(24)]
    for path in paths:
        path.write_bytes(encoded(photo(100, 75)))
    (tmp_path / "5.jpg").write_bytes(paths[5].read_bytes()[:-200])
    fast, slow = (np.zeros((24, 3, 32, 32), np.uint8) for _ in range(2))
    broken = decode_all(paths, 32, fast, workers=4)
    assert opened_by_pillow == [paths[5]]  # for the reason
    assert decode_all(paths, 32, slow, workers=4, fast=False) == broken
    assert [failure.index for failure in broken] == [5]
    assert np.abs(fast.astype(int) - slow).max() <= 1
    np.testing.assert_array_equal(fast[7], decode(paths[7], 32))


def test_without_torchvisions_decoder_pillow_decodes_all(tmp_path, monkeypatch):
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(photo(500, 375), quality=90))
    assert module.decoder() == "torchvision"
    monkeypatch.setattr(module, "has_decoder", lambda: False)
    assert module.decoder() == "Pillow"
    np.testing.assert_array_equal(decode(path, 224), module._decode(path, 224, fast=False))
