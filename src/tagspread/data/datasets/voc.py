"""Pascal VOC in its own layout: ``JPEGImages/`` and ``ImageSets/Main/{class}_{split}.txt``.

A line of such a file names a image and says 1 (present), -1 (absent) or 0 (present, but difficult to see). The paper
counts only 1 as positive.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import TagspreadError, check_choice


def read_voc(root: str | Path, split: str, difficult: str = "negative") -> LabelTable:
    """Read one split of a VOC devkit, file names sorted, classes in alphabetical order.

    Args:
        root: the folder that holds ``JPEGImages`` and ``ImageSets``, such as ``VOCdevkit/VOC2012``.
        split: ``train``, ``val``, ``trainval`` or ``test``.
        difficult: count difficult objects as ``"negative"`` (the paper) or ``"unknown"``.
    """
    check_choice("difficult", difficult, ("negative", "unknown"))
    top = Path(root)
    files = sorted((top / "ImageSets" / "Main").glob(f"*_{split}.txt"))
    if not files:
        raise TagspreadError(
            f"{top} has no ImageSets/Main/*_{split}.txt; give the folder of one year, or another split."
        )
    value = {1: 1, 0: 0 if difficult == "negative" else -1, -1: 0}
    columns = [_read_column(file, value) for file in files]
    names = sorted(columns[0])
    if not names:
        raise TagspreadError(f"{files[0]} names no image; unpack the data set again.")
    for file, column in zip(files, columns, strict=True):
        if sorted(column) != names:
            raise TagspreadError(f"{file} does not name the same images as {files[0]}; unpack the data set again.")
    return LabelTable(
        tuple(top / "JPEGImages" / f"{name}.jpg" for name in names),
        tuple(file.name[: -len(f"_{split}.txt")] for file in files),
        np.array([[column[name] for column in columns] for name in names], dtype=np.int8),
    )


def _read_column(file: Path, value: dict[int, int]) -> dict[str, int]:
    """Read one class's file: image names and what it says of them."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TagspreadError(f"{file} cannot be read as text ({error}); unpack the data set again.") from None
    column: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in ("1", "0", "-1"):
            raise TagspreadError(f"{file} line {number} is {line!r}; a image's name and 1, 0 or -1 are expected.")
        name, found = words[0], value[int(words[1])]
        if Path(name).name != name:
            raise TagspreadError(f"{file} line {number} names {name!r}; a plain name in JPEGImages is expected.")
        if column.setdefault(name, found) != found:
            raise TagspreadError(f"{file} line {number} contradicts an earlier line about {name!r}.")
    return column
