"""How much of the bare network's rate `tagspread embed` and `--mode head` reach, measured in one run.

    python benchmarks/embed.py IMAGES [--backbone tf_efficientnet_lite0] [--weights FILE] [--count 512]

Bare is the network's features of one batch that is already there, again and again, at the same batch size. Rounds
alternate, and the best of each is taken, as other programs may use the machine.
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
    parser.add_argument("--size", type=int, help="side of the images; what suits the network if not given")
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    files = find_images(arguments.images)[: arguments.count]
    size = arguments.size or default_image_size(arguments.backbone)
    store, _ = open_store(files, size, device)
    network = build_network(arguments.backbone, 1, weights=arguments.weights).to(device).eval()
    batch = store.modality.suitable_batch(device)
    some, rows = store.batch(np.arange(min(batch, len(files)))), np.arange(len(files))

    @torch.inference_mode()
    def bare() -> None:
        for _ in range(len(files) // len(some)):
            network.features(some)

    how: dict[str, Any] = {"backbone": arguments.backbone, "weights": arguments.weights, "image_size": size}
    found: dict[str, list[float]] = {"bare": [], "from memory": [], "from files": []}
    for _ in range(arguments.rounds):
        found["bare"].append(rate(bare, len(files) // len(some) * len(some)))
        found["from memory"].append(rate(lambda: embed(network, store, rows, device), len(files)))
        found["from files"].append(rate(lambda: embed_images(files, mirror=False, **how), len(files)))
    best = {name: max(values) for name, values in found.items()}
    print(f"{arguments.backbone} at {size} pixels, {len(files)} images")
    for name, value in best.items():
        print(f"{name:>12}: {value:8.1f} images/s, {100 * value / best['bare']:5.1f} % of bare")


if __name__ == "__main__":
    main()
