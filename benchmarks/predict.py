"""Speed of ``Tagger.predict`` relative to the bare network, for arrays and for image files.

    python benchmarks/predict.py                            on this machine: the GPU if there is one, else the CPU
    python benchmarks/predict.py --images 64 --backbone resnet18

``bare`` runs the network alone on one batch on the device, repeatedly. ``array`` and ``files`` are ``Tagger.predict``
on an array in memory, and on JPEG files (500 x 375, as in Pascal VOC). Weights are random, because rates do not depend
on them. The measurements alternate, so that all run under the same conditions; the best rate of each is kept.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tagspread.core.calibration import Calibration
from tagspread.data.images.decode import decode_all
from tagspread.data.modality import ImageModality
from tagspread.predict.tagger import MAX_BATCH, Tagger
from tagspread.run.artifact import Artifact
from tagspread.train.preflight import choose_device
from tagspread.train.scoring import autocast
from tagspread.vision.backbones import build_network

FILES = 1024  # at most, because writing and decoding takes longer than scoring
CLASSES = tuple(f"tag {k}" for k in range(20))


def make_tagger(backbone: str, size: int, device: torch.device) -> Tagger:
    network = build_network(backbone, len(CLASSES), weights="none", normalize="imagenet").to(device).eval()
    calibration = Calibration.identity(len(CLASSES))
    thresholds = np.full(len(CLASSES), 0.5)
    return Tagger(Artifact(Path(), {}, CLASSES, thresholds, calibration, (3, size, size), Path()), network, device)


def write_photos(folder: Path, count: int) -> list[Path]:
    """Write images of smooth noise, which JPEG compresses about as well as photographs."""
    rng = np.random.default_rng(0)
    files = []
    for k in range(count):
        small = Image.fromarray(rng.integers(0, 256, (94, 125, 3), dtype=np.uint8))
        files.append(folder / f"{k:05}.jpg")
        small.resize((500, 375), Image.Resampling.BICUBIC).save(files[-1], quality=90)
    return files


@torch.inference_mode()
def bare(tagger: Tagger, batch: torch.Tensor, count: int) -> None:
    for _ in range(count // len(batch)):
        with autocast(tagger.device, "auto"):
            out = tagger.network(batch)
    out.float().cpu()


def rate(work: Callable[[], object], images: int) -> float:
    begun = time.perf_counter()
    work()
    return images / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, help="default: 8,192 on a GPU, 128 on a CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = choose_device(given.device)
    gpu = device.type == "cuda"
    batch_size = min(MAX_BATCH, ImageModality((3, given.size, given.size)).suitable_batch(device))
    count = -(-(given.images or (8192 if gpu else 128)) // batch_size) * batch_size
    tagger = make_tagger(given.backbone, given.size, device)
    shape = (count, 3, given.size, given.size)
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    batch = torch.from_numpy(array[:batch_size]).to(device)
    with tempfile.TemporaryDirectory() as folder:
        files = write_photos(Path(folder), min(count, FILES))
        decoded = np.empty((len(files), *shape[1:]), np.uint8)
        works: dict[str, tuple[int, Callable[[], object]]] = {
            "bare": (count, lambda: bare(tagger, batch, count)),
            "array": (count, lambda: tagger.predict(array)),
            "files": (len(files), lambda: tagger.predict(files)),
            "decoding alone": (len(files), lambda: decode_all(files, given.size, decoded)),
        }
        for _, work in works.values():
            work()
        best = dict.fromkeys(works, 0.0)
        for _ in range(given.rounds):
            for name, (images, work) in works.items():
                best[name] = max(best[name], rate(work, images))
    where = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    print(f"{given.backbone} at {given.size} px, {count:,} images, batches of {batch_size}, {where}")
    for name, value in best.items():
        print(f"{name:15} {value:9,.1f} images/s  {value / best['bare']:6.1%} of bare")


if __name__ == "__main__":
    main()
