"""Read Pascal VOC labels: ``JPEGImages/`` and ``ImageSets/Main/{class}_{split}.txt``.

Each line of such a file has an image name and 1 (present), -1 (absent) or 0 (present, but difficult). CAP's released
code counts only 1 as positive; the paper does not mention difficult objects.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tagspread.data.datasets.base import NamedDataset
from tagspread.data.datasets.published import CAP_PAPER, DICAP_PAPER, PublishedTable
from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import TagspreadError, check_choice


def read_voc(root: str | Path, split: str, difficult: str = "negative") -> LabelTable:
    """Read one split of a VOC devkit, file names sorted, classes in alphabetical order.

    Args:
        root: the folder that holds ``JPEGImages`` and ``ImageSets``, such as ``VOCdevkit/VOC2012``.
        split: ``train``, ``val``, ``trainval`` or ``test``.
        difficult: count difficult objects as ``"negative"`` (CAP's released code) or ``"unknown"``.
    """
    check_choice("difficult", difficult, ("negative", "unknown"))
    top = Path(root)
    files = sorted((top / "ImageSets" / "Main").glob(f"*_{split}.txt"))
    if not files:
        raise TagspreadError(
            f"{top} has no ImageSets/Main/*_{split}.txt; give the folder of one year, such as VOC2012, or another "
            "split."
        )
    value = {1: 1, 0: 0 if difficult == "negative" else -1, -1: 0}
    columns = [_read_column(file, value) for file in files]
    names = sorted(columns[0])
    if not names:
        raise TagspreadError(f"{files[0]} names no images; unpack the dataset again.")
    for file, column in zip(files, columns, strict=True):
        if sorted(column) != names:
            raise TagspreadError(f"{file} does not name the same images as {files[0]}; unpack the dataset again.")
    return LabelTable(
        tuple(top / "JPEGImages" / f"{name}.jpg" for name in names),
        tuple(file.name[: -len(f"_{split}.txt")] for file in files),
        np.array([[column[name] for column in columns] for name in names], dtype=np.int8),
    )


def _read_column(file: Path, value: dict[int, int]) -> dict[str, int]:
    """Read the file of one class: image names and their labels."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TagspreadError(f"{file} cannot be read as text ({error}); unpack the dataset again.") from None
    column: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in ("1", "0", "-1"):
            raise TagspreadError(f"{file} line {number} is {line!r}; it must be an image name and 1, 0 or -1.")
        name, label = words[0], value[int(words[1])]
        if Path(name).name != name:
            raise TagspreadError(f"{file} line {number} names {name!r}; it must be a plain file name in JPEGImages.")
        if column.setdefault(name, label) != label:
            raise TagspreadError(
                f"{file} line {number} contradicts an earlier line about {name!r}; unpack the dataset again."
            )
    return column


def read_train_and_val(root: Path) -> tuple[LabelTable, LabelTable]:
    """Return the training and test labels of the paper."""
    return read_voc(root, "train"), read_voc(root, "val")


PUBLISHED = (
    PublishedTable(
        CAP_PAPER,
        {
            "bce": (67.95, 75.35, 78.19, 79.38),
            "asl": (71.46, 78.00, 79.69, 80.77),
            "llr": (75.69, 80.96, 82.31, 83.55),
            "llct": (75.77, 81.04, 82.31, 83.50),
            "llcp": (75.79, 81.03, 82.36, 83.68),
            "plc": (74.49, 80.35, 82.35, 83.39),
            "top1": (75.77, 80.78, 82.65, 83.72),
            "topk": (75.07, 80.20, 81.99, 83.16),
            "iat": (73.24, 80.27, 82.39, 83.55),
            "adsh": (75.37, 80.34, 82.80, 83.93),
            "freematch": (75.11, 80.66, 82.63, 83.60),
            "drml": (61.77, 71.01, 72.98, 74.49),
            "cap": (76.16, 82.16, 83.48, 84.41),
        },
    ),
    PublishedTable(
        DICAP_PAPER,
        {
            "bce": (65.40, 75.48, None, None),
            "asl": (71.41, 77.81, None, None),
            "cap": (75.90, 81.83, None, None),
            "pclp": (77.25, 82.21, None, None),
            "bbam": (78.66, 83.45, None, None),
            "d2l": (79.26, 84.06, None, None),
            "dicap": (83.53, 87.92, None, None),
        },
    ),
)

VOC = NamedDataset(
    name="voc",
    title="VOC",
    contents="`ImageSets/Main/{class}_train.txt`, `{class}_val.txt` for testing, and `JPEGImages/{name}.jpg`",
    signs=("ImageSets/Main",),
    read=read_train_and_val,
    recipes={"paper": {"batch": 32, "schedule_epochs": 40}},  # a schedule for 40 epochs, of which 28 are run
    published=PUBLISHED,
)
