"""Time and peak memory of reading large label tables (CSV, COCO) and of listing a large image folder (Linux).

    python benchmarks/data.py            a CSV file of 1,000,000 lines, COCO's two indexes, a folder of 100,000 files
    python benchmarks/data.py --rows N   fewer lines

Each file is read in a separate process. The files are generated in a temporary folder: CSV files of about 40 bytes a
line, and COCO indexes with as many images as the real ones. The number of annotations and the length of their outlines
have about the order of magnitude of the real ones.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tagspread.data.datasets.coco import read_coco
from tagspread.data.images.find import find_images
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table

COCO = {"train": (82_783, 82_081, 604_907), "val": (40_504, 40_137, 291_875)}  # images, annotated images, annotations
CATEGORIES = [k for k in range(1, 91) if k not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]


def write_csv(file: Path, rows: int, classes: int) -> None:
    rng = random.Random(0)
    tags = [f"tag{k:02}" for k in range(classes)]
    with file.open("w") as opened:
        opened.write("image,tags\n")
        for k in range(rows):
            opened.write(f"{k // 1000:04}/photo_{k:08}.jpg,{'|'.join(rng.sample(tags, rng.randint(1, 4)))}\n")


def write_coco(file: Path, count: int, annotated: int, annotations: int) -> None:
    rng = random.Random(0)
    ids = rng.sample(range(1, 600_000), count)
    with file.open("w") as opened:
        images = [{"license": 1, "file_name": f"COCO_{k:012}.jpg", "height": 480, "width": 640, "id": k} for k in ids]
        categories = [{"supercategory": "thing", "id": k, "name": f"thing {k}"} for k in CATEGORIES]
        head = json.dumps({"info": {"year": 2014}, "images": images, "licenses": [], "categories": categories})
        opened.write(head[:-1] + ', "annotations": [')
        for k in range(annotations):
            outline = [round(rng.random() * 640, 2) for _ in range(56)]  # an estimate, about 590 bytes per annotation
            entry = {"segmentation": [outline], "area": 702.1, "iscrowd": 0, "bbox": [473.07, 395.93, 38.65, 28.67]}
            entry |= {"image_id": ids[k % annotated], "category_id": rng.choice(CATEGORIES), "id": k}
            opened.write((", " if k else "") + json.dumps(entry))
        opened.write("]}")


def memory(line: str) -> int:
    """Return an entry of the memory status of this process, in bytes."""
    status = Path("/proc/self/status").read_text().split(f"{line}:")[1]
    return int(status.split()[0]) * 1024


def measure(kind: str, file: str) -> None:
    """Read one file and print time and peak memory; run in a separate process."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak, so that imports do not count
    before, start = memory("VmRSS"), time.perf_counter()
    table = read_coco(file, "pixels") if kind == "coco" else read_table(file, "pixels")
    took = time.perf_counter() - start
    peak, size = memory("VmHWM") - before, Path(file).stat().st_size
    shape = f"{len(table):,} x {len(table.classes)}"
    print(
        f"{Path(file).name}: {size / 1e6:.0f} MB, {shape}: {took:.1f} s, peak memory {peak / 1e6:.0f} MB, "
        f"{peak / size:.2f} x the file size (label matrix alone {table.y.nbytes / size:.2f} x)"
    )


def walk(folder: Path, files: int) -> None:
    for k in range(files):
        if k % 1000 == 0:
            (folder / f"{k // 1000:03}").mkdir(parents=True)
        (folder / f"{k // 1000:03}" / f"{k:06}.jpg").touch()
    start = time.perf_counter()
    count = len(find_images(folder))
    print(f"find_images: {count:,} files in {time.perf_counter() - start:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--measure", nargs=2)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        work: list[tuple[str, Path]] = []
        for classes in (20, 80):
            work.append(("csv", top / f"tags of {classes}.csv"))
            write_csv(work[-1][1], options.rows, classes)
        y = read_table(work[0][1], "").y
        work.append(("csv", top / "wide.csv"))
        LabelTable(
            [Path(f"{k // 1000:04}/photo_{k:08}.jpg") for k in range(len(y))], tuple(map(str, range(20))), y
        ).write(work[-1][1])
        for split, counts in COCO.items():
            work.append(("coco", top / f"instances_{split}2014.json"))
            write_coco(work[-1][1], *counts)
        for kind, file in work:
            subprocess.run([sys.executable, __file__, "--measure", kind, str(file)], check=True)
        walk(top / "pixels", 100_000)


if __name__ == "__main__":
    main()
