"""Images: damaged files of every format that is read, decoded alone and among others."""

from __future__ import annotations

import io
import random
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, features

from tests.faults.campaigns.harness import Case, Flaw, Result, command, contents
from tests.faults.campaigns.mutate import damaged
from tests.faults.campaigns.world import World

GOOD = 2  # images beside the damaged one


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def all_formats() -> dict[str, bytes]:
    """Return one small image of each format and mode that is read, by file name."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 4), np.uint8)
    rgba = Image.fromarray(pixels)
    rgb, gray = rgba.convert("RGB"), rgba.convert("L")
    wide = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    real = Image.fromarray(pixels[..., 0].astype(np.float32) / 255)
    exif = Image.Exif()
    exif[0x0112] = 6
    found = {
        "plain.jpg": _saved(rgb, "JPEG"),
        "progressive.jpg": _saved(rgb, "JPEG", progressive=True),
        "gray.jpeg": _saved(gray, "JPEG"),
        "cmyk.jpg": _saved(rgb.convert("CMYK"), "JPEG"),
        "turned.jpg": _saved(rgb, "JPEG", exif=exif.tobytes()),
        "plain.png": _saved(rgb, "PNG"),
        "clear.png": _saved(rgba, "PNG"),
        "wide.png": _saved(wide, "PNG"),
        "palette.png": _saved(rgb.quantize(16), "PNG", transparency=3),
        "bit.png": _saved(gray.convert("1"), "PNG"),
        "moving.png": _saved(rgb, "PNG", save_all=True, append_images=[rgb.rotate(90)]),
        "plain.gif": _saved(rgb.quantize(16), "GIF"),
        "moving.gif": _saved(rgb, "GIF", save_all=True, append_images=[rgb.rotate(90)]),
        "plain.webp": _saved(rgb, "WEBP"),
        "lossless.webp": _saved(rgba, "WEBP", lossless=True),
        "plain.bmp": _saved(rgb, "BMP"),
        "palette.bmp": _saved(rgb.quantize(16), "BMP"),
        "plain.ppm": _saved(rgb, "PPM"),
        "gray.pgm": _saved(gray, "PPM"),
        "plain.tif": _saved(rgb, "TIFF"),
        "real.tiff": _saved(real, "TIFF"),
        **{
            f"{kind}.tif": _saved(rgb, "TIFF", compression=kind)
            for kind in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
        },
        "group4.tif": _saved(gray.convert("1"), "TIFF", compression="group4"),
    }
    if features.check("avif"):
        found["plain.avif"] = _saved(rgb, "AVIF")
    return found


class Images:
    """``predict`` and ``check`` on a folder with a damaged image; every image is in the table, read or not."""

    name = "images"
    count = 1300
    quick = 20
    trains = False

    def __init__(self, world: World, number: int) -> None:
        del number
        self._world = world

    @cached_property
    def _formats(self) -> dict[str, bytes]:
        return all_formats()

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        name = rng.choice(sorted(self._formats))
        data, words = damaged(self._formats[name], rng)
        if rng.random() < 0.1:  # the bytes of one format under the name of another
            name = rng.choice(sorted(self._formats))
        images = folder / "images"
        images.mkdir()
        (images / name).write_bytes(data)
        for i in range(GOOD):
            (images / f"p{i:02}.png").write_bytes((self._world.images / f"p{i:02}.png").read_bytes())
        labels = folder / "labels.csv"
        labels.write_text(f"image,tags\np00.png,a\n{name},b\n")
        before, out = contents(images), folder / "tags.csv"
        job, codes = command("check", images, "--labels", labels), [1, 2]
        if rng.random() < 0.5:
            job, codes = command("predict", self._world.run, images, "-o", out, "--device", "cpu"), [2]

        def check(result: Result) -> Flaw | None:
            if contents(images) != before:
                return Flaw("lost", "an image was changed")
            if result.code == 0 and out.exists() and len(out.read_text().splitlines()) != GOOD + 2:
                return Flaw("lost", "an image is not in the table")
            return None

        return Case(f"{name}: {words}", job, check, codes=tuple(codes))
