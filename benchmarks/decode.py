"""Decoding of JPEG photos by torchvision and by Pillow: speed, differences, and mAP (``docs/benchmarks.md``).

    python benchmarks/decode.py IMAGES                              rates, measured in turn
    python benchmarks/decode.py VOCdevkit/VOC2012 --map 1500        mAP of a linear head on features of both

The images are first saved as photos of 500 x 375 pixels in a temporary folder: enlarged, with noise, JPEG quality 90.
``--as-they-are`` decodes the files themselves. The head is fitted on as many images of VOC's training set as given, and
evaluated on as many of its validation set; the network is the pretrained ``tf_efficientnet_lite0``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import tagspread as ts
from tagspread.data.datasets import find_dataset
from tagspread.data.images.decode import available_cores, decode_all, decoder
from tagspread.data.images.find import find_images
from tagspread.data.images.store import TensorStore
from tagspread.train.features import embed
from tagspread.vision.backbones import build_network

WIDTH, HEIGHT, QUALITY, NOISE = 500, 375, 90, 4
RIDGE = 0.3


def save_photos(files: Sequence[Path], folder: Path) -> list[Path]:
    """Save the images at the size of usual photos; one in four is upright."""
    rng, photos = np.random.default_rng(0), []
    for number, file in enumerate(files):
        size = (WIDTH, HEIGHT) if number % 4 else (HEIGHT, WIDTH)
        with Image.open(file) as opened:
            pixels = np.asarray(opened.convert("RGB").resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
        pixels += np.rint(rng.normal(0, NOISE, (size[1], size[0], 1))).astype(np.int16)
        photos.append(folder / f"{number}.jpg")
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(photos[-1], quality=QUALITY)
    return photos


def measure(files: Sequence[Path], size: int, workers: int, repeats: int) -> None:
    """Print the rates of both, and the ratios of time on the clock and of CPU time."""
    decoded = {fast: np.empty((len(files), 3, size, size), np.uint8) for fast in (True, False)}
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(repeats + 1):
        for fast, out in decoded.items():
            wall, cpu = time.perf_counter(), time.process_time()
            broken = decode_all(files, size, out, workers, fast=fast)
            seconds[fast].append((time.perf_counter() - wall, time.process_time() - cpu))
            if broken:
                raise SystemExit(f"{broken[0].path}: {broken[0].reason}")
    length = statistics.mean(file.stat().st_size for file in files)
    print(f"{len(files):,} files of {length / 1000:.0f} kB on average to {size} px, {workers} threads, {decoder()}")
    for fast, name in ((True, "torchvision"), (False, "Pillow")):
        wall, cpu = (statistics.median(column) for column in zip(*seconds[fast][1:], strict=True))
        print(f"{name:12} {len(files) / wall:8,.0f} images/s, {1000 * cpu / len(files):.2f} ms of CPU time each")
    pairs = list(zip(seconds[True][1:], seconds[False][1:], strict=True))
    walls, cpus = ([slow[k] / quick[k] for quick, slow in pairs] for k in (0, 1))
    print(
        f"Pillow takes {statistics.median(walls):.2f} times as long, {statistics.median(cpus):.2f} times the CPU time"
    )
    difference = np.abs(decoded[True].astype(np.int16) - decoded[False])
    print(f"largest difference {difference.max()} of 255; {100 * (difference > 0).mean():.2f} % of the bytes differ")


def compare_map(voc: Path, count: int, size: int, workers: int) -> None:
    """Print the mAP of a head on features of images that were decoded by torchvision, and by Pillow."""
    parts = find_dataset("voc").load(voc, 0)
    paths = [*parts.train.paths[:count], *parts.test.paths[:count]]
    y = np.concatenate([parts.train.y[:count], parts.test.y[:count]])
    with tempfile.TemporaryDirectory() as folder:
        photos = save_photos([Path(path) for path in paths], Path(folder))
        network = build_network("tf_efficientnet_lite0", len(parts.train.classes))
        for fast, name in ((True, "torchvision"), (False, "Pillow")):
            images = np.empty((len(photos), 3, size, size), np.uint8)
            decode_all(photos, size, images, workers, fast=fast)
            device = torch.device("cpu")
            features = embed(network, TensorStore(images, device), np.arange(len(photos)), device).numpy()
            head = ts.TagSpreadClassifier("bce", ridge=RIDGE, folds=2).fit(features[:count], y[:count])
            print(f"{name:12} mAP {100 * head.score(features[count:], y[count:]):.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--as-they-are", action="store_true")
    parser.add_argument("--map", type=int, metavar="IMAGES", help="compare mAP on VOC instead of rates")
    options = parser.parse_args()
    if options.map is not None:
        compare_map(options.images, options.map, options.size, options.workers)
        return
    files = find_images(options.images)[: options.count]
    if options.as_they_are:
        measure(files, options.size, options.workers, options.repeats)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(save_photos(files, Path(folder)), options.size, options.workers, options.repeats)


if __name__ == "__main__":
    main()
