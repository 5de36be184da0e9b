"""Speed of ``tagspread embed`` and ``--mode head`` relative to the bare network, measured in one run.

    python benchmarks/embed.py IMAGES [--backbone tf_efficientnet_lite0] [--weights FILE] [--count 512]

``bare`` computes the features of one batch in memory repeatedly, with the same batch size. The measurements alternate,
and the best rate of each is kept, because other programs may use the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tagspread.data.images.find import find_images
from tagspread.data.images.store import open_store
from tagspread.predict.embedding import embed_images
from tagspread.train.features import embed
from tagspread.vision.backbones import build_network
from tagspread.vision.sizes import default_image_size


def rate(work: Callable[[], object], images: int) -> float:
    """Return images per second."""
    began = time.perf_counter()
    work()
    return images / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path)
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", default="pretrained")
    parser.add_argument("--size", type=int, help="image size; by default that of the network")
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    files = find_images(arguments.images)[: arguments.count]
    size = arguments.size or default_image_size(arguments.backbone)
    store, _ = open_store(files, size, device)
    network = build_network(arguments.backbone, 1, weights=arguments.weights).to(device).eval()
    batch = store.modality.suitable_batch(device)
    images, rows = store.batch(np.arange(min(batch, len(files)))), np.arange(len(files))

    @torch.inference_mode()
    def bare() -> None:
        for _ in range(len(files) // len(images)):
            network.features(images)

    options: dict[str, Any] = {"backbone": arguments.backbone, "weights": arguments.weights, "image_size": size}
    rates: dict[str, list[float]] = {"bare": [], "from memory": [], "from files": []}
    for _ in range(arguments.rounds):
        rates["bare"].append(rate(bare, len(files) // len(images) * len(images)))
        rates["from memory"].append(rate(lambda: embed(network, store, rows, device), len(files)))
        rates["from files"].append(rate(lambda: embed_images(files, mirror=False, **options), len(files)))
    best = {name: max(values) for name, values in rates.items()}
    print(f"{arguments.backbone} at {size} pixels, {len(files)} images")
    for name, value in best.items():
        print(f"{name:>12}: {value:8.1f} images/s, {100 * value / best['bare']:5.1f} % of bare")


if __name__ == "__main__":
    main()
