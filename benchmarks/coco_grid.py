"""COCO on a machine that takes little data at a time: pack the images into parts, unpack them there, run the grid.

    python benchmarks/coco_grid.py pack COCO PARTS [--size 224] [--test 15000]
    python benchmarks/coco_grid.py unpack PARTS COCO
    python benchmarks/coco_grid.py run COCO OUT --frozen WEIGHTS --whole WEIGHTS [--minutes 25]

COCO is the folder that ``tagspread bench coco`` reads. ``pack`` writes ``part-00.bin``, ... of at most 60 MB: JPEG
files of ``--size`` pixels one after the other, in random order, and their names, lengths and labels in
``part-00.json``. ``unpack`` works with any number of parts: COCO is then a random part of the images. ``run`` calls
``tagspread bench`` for one table after the other until the time is used up; call it again with the same OUT to
continue. Finished cells are lines of ``OUT/results.jsonl``.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from tagspread.data.datasets.coco import read_coco

PART_BYTES = 60 * 10**6
SPLITS = {"train": "train2014", "test": "val2014"}
QUALITY = 75
# rules that label from scores alone, then the whole network by the paper's recipe; most important first
FROZEN = ("--preset", "default", "--backbone", "tf_efficientnet_lite2", "--set", "mode=head")
PAPER = ("--preset", "paper", "--backbone", "resnet50_v1", "--set", "evaluate_every=4")
GRID = (
    (*FROZEN, "--methods", "bce", "cap", "--p", "0.05", "--seeds", "1", "2", "3"),
    (*PAPER, "--methods", "asl", "cap", "--p", "0.05", "--seeds", "1"),
    (*FROZEN, "--methods", "bce", "cap", "--p", "0.1", "0.15", "0.2", "--seeds", "1", "2", "3"),
    (*PAPER, "--methods", "asl", "cap", "--p", "0.1", "--seeds", "1"),
    (*FROZEN, "--methods", "bce", "--p", "0.99", "--seeds", "1"),  # what all labels give
    (*FROZEN, "--set", "unlabeled_weight=1.0", "--methods", "bce", "plc", "top1", "topk", "iat", "adsh", "cap", "mat"),
)


def pack(coco: Path, parts: Path, size: int, test: int) -> None:
    """Write the parts; the first ones hold a random part of each split."""
    parts.mkdir(parents=True, exist_ok=True)
    rng, entries = np.random.default_rng(0), []
    classes: tuple[str, ...] = ()
    for split, name in SPLITS.items():
        table = read_coco(coco / "annotations" / f"instances_{name}.json", coco / name)
        classes = table.classes
        rows = rng.permutation(len(table))[: test if split == "test" else None]
        entries += [(split, Path(table.paths[row]), np.flatnonzero(table.y[row] == 1).tolist()) for row in rows]
    number, lines, data = 0, [], bytearray()
    for place, at in enumerate(rng.permutation(len(entries)), start=1):
        split, path, present = entries[at]
        with Image.open(path) as image:
            stream = io.BytesIO()
            image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=QUALITY)
        lines.append((split, path.name, stream.tell(), present))
        data += stream.getvalue()
        if len(data) + 10**5 > PART_BYTES or place == len(entries):
            (parts / f"part-{number:02}.bin").write_bytes(data)
            (parts / f"part-{number:02}.json").write_text(json.dumps({"classes": classes, "images": lines}))
            print(f"part {number}: {len(lines)} images, {len(data) / 1e6:.1f} MB", flush=True)
            number, lines, data = number + 1, [], bytearray()


def unpack(parts: Path, coco: Path) -> None:
    """Write the images of all parts that are there, and their annotations."""
    images: dict[str, list[object]] = {split: [] for split in SPLITS}
    annotations: dict[str, list[object]] = {split: [] for split in SPLITS}
    classes: list[str] = []
    for index in sorted(parts.glob("part-*.json")):
        part = json.loads(index.read_text())
        classes, data, at = part["classes"], index.with_suffix(".bin").read_bytes(), 0
        for split, name, length, present in part["images"]:
            path = coco / SPLITS[split] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_bytes(data[at : at + length])
            at += length
            number = int(Path(name).stem.split("_")[-1])
            images[split].append({"id": number, "file_name": name})
            annotations[split] += [{"image_id": number, "category_id": k + 1} for k in present]
        if at != len(data):
            raise SystemExit(f"{index} lists {at} bytes, but its images have {len(data)}; copy the part again.")
    (coco / "annotations").mkdir(parents=True, exist_ok=True)
    categories = [{"id": k + 1, "name": name} for k, name in enumerate(classes)]
    for split, name in SPLITS.items():
        content = {"images": images[split], "annotations": annotations[split], "categories": categories}
        (coco / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))
        print(f"{name}: {len(images[split])} images")


def run(coco: Path, out: Path, weights: dict[str, Path | None], minutes: float) -> None:
    """Run the tables of the grid within the time, most important first."""
    end = time.monotonic() + 60 * minutes
    for options in GRID:
        file, left = weights["frozen" if "mode=head" in options else "whole"], (end - time.monotonic()) / 60
        if file is not None and left > 0:
            command = ["bench", "coco", "--root", str(coco), "--out", str(out), "--weights", str(file)]
            subprocess.run(
                [sys.executable, "-m", "tagspread", *command, *options, "--budget", f"{left:.1f}"], check=False
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("pack", "unpack", "run"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--test", type=int, default=15_000, help="number of test images to pack")
    parser.add_argument("--frozen", type=Path, help="weights of tf_efficientnet_lite2")
    parser.add_argument("--whole", type=Path, help="weights of resnet50_v1")
    parser.add_argument("--minutes", type=float, default=25)
    arguments = parser.parse_args()
    if arguments.task == "pack":
        pack(arguments.source, arguments.target, arguments.size, arguments.test)
    elif arguments.task == "unpack":
        unpack(arguments.source, arguments.target)
    else:
        weights = {"frozen": arguments.frozen, "whole": arguments.whole}
        run(arguments.source, arguments.target, weights, arguments.minutes)


if __name__ == "__main__":
    main()
