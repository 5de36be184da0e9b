"""Effect of memory layout (channels first or last) and batch size on scoring and training speed on a CPU.

    python benchmarks/cpu.py [--backbones resnet50 tf_efficientnet_lite2] [--rounds 4]

Scoring is measured with a batch of 32 and with the batch size of ``suitable_batch``, training with a batch of 32. The
settings are measured in turn, and the best rate of each is kept. Weights are random, because rates do not depend on
them.
"""

from __future__ import annotations

import argparse
import time

import torch

from tagspread.data.modality import ImageModality
from tagspread.vision.backbones import TagNet, build_network
from tagspread.vision.sizes import default_image_size

IMAGES = 32
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}


class Fixed(torch.nn.Module):
    """A network without the preparation step, which would change the memory layout of the images."""

    def __init__(self, network: TagNet, layout: torch.memory_format) -> None:
        super().__init__()
        self.backbone, self.head, self.layout = network.backbone, network.head, layout
        self.to(memory_format=layout)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        out: torch.Tensor = self.head(self.backbone(images.to(torch.float32, memory_format=self.layout)))
        return out


def score(network: Fixed, images: torch.Tensor, batch: int) -> None:
    with torch.inference_mode():
        for at in range(0, len(images), batch):
            network.eval()(images[at : at + batch])


def train(network: Fixed, images: torch.Tensor) -> None:
    network.train()(images).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["resnet50", "tf_efficientnet_lite2"])
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    print("| network | channels | score, batch 32 | score, suitable batch | train, batch 32 |\n|---|---|---|---|---|")
    for name in arguments.backbones:
        side = default_image_size(name)
        images = torch.randint(0, 256, (IMAGES, 3, side, side), dtype=torch.uint8)
        few = ImageModality(images.shape[1:]).suitable_batch(torch.device("cpu"))
        networks = {order: Fixed(build_network(name, 20, weights="none"), layout) for order, layout in LAYOUTS.items()}
        rates = dict.fromkeys(((order, work) for order in LAYOUTS for work in ("many", "few", "train")), 0.0)
        for _ in range(arguments.rounds):
            for (order, work), best in rates.items():
                began = time.perf_counter()
                if work == "train":
                    train(networks[order], images)
                else:
                    score(networks[order], images, IMAGES if work == "many" else few)
                rates[order, work] = max(best, IMAGES / (time.perf_counter() - began))
        scoring, training = rates["first", "many"], rates["first", "train"]
        for order in LAYOUTS:
            many, some, trained = (rates[order, work] for work in ("many", "few", "train"))
            ratios = f"{many / scoring:.2f}x | {some / scoring:.2f}x ({few}) | {trained / training:.2f}x"
            print(f"| {name}, {side} px | {order} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
