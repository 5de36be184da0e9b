"""What the layout in memory and the number of images at a time do to a network on a processor.

    python benchmarks/cpu.py [--backbones resnet50 tf_efficientnet_lite2] [--rounds 4]

Scoring and training are measured with channels first and last, scoring with 32 images at a time and with as many as
``suitable_batch`` says. Settings take turns, the best of each is kept. Weights are random: rates do not depend on them.
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
    """A network without the part that would bring images into its own layout."""

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
    print("| network | channels | score 32 at a time | as many as suit | train 32 |\n|---|---|---|---|---|")
    for name in arguments.backbones:
        side = default_image_size(name)
        images = torch.randint(0, 256, (IMAGES, 3, side, side), dtype=torch.uint8)
        few = ImageModality(images.shape[1:]).suitable_batch(torch.device("cpu"))
        networks = {said: Fixed(build_network(name, 20, weights="none"), layout) for said, layout in LAYOUTS.items()}
        rates = dict.fromkeys(((said, work) for said in LAYOUTS for work in ("many", "few", "train")), 0.0)
        for _ in range(arguments.rounds):
            for (said, work), best in rates.items():
                began = time.perf_counter()
                if work == "train":
                    train(networks[said], images)
                else:
                    score(networks[said], images, IMAGES if work == "many" else few)
                rates[said, work] = max(best, IMAGES / (time.perf_counter() - began))
        scoring, training = rates["first", "many"], rates["first", "train"]
        for said in LAYOUTS:
            many, some, trained = (rates[said, work] for work in ("many", "few", "train"))
            ratios = f"{many / scoring:.2f}x | {some / scoring:.2f}x ({few}) | {trained / training:.2f}x"
            print(f"| {name}, {side} px | {said} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
