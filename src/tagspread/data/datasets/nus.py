r"""Read NUS-WIDE labels, as originally distributed or as the ``.npy`` lists in use since Cole et al. 2021.

Original: ``ImageList/TrainImagelist.txt`` with lines such as ``actor\0001_2124494179.jpg``, and one file of 0 and 1
per concept, ``Groundtruth/TrainTestLabels/Labels_{concept}_Train.txt``. Lists: ``formatted_train_images.npy`` and
``formatted_train_labels.npy``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tagspread.data.datasets.base import NamedDataset
from tagspread.data.datasets.published import CAP_PAPER, DICAP_PAPER, PublishedTable
from tagspread.data.images.paths import PathsWriter
from tagspread.data.tables.image_names import NameRule
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.notes import Source
from tagspread.errors import TagspreadError, check_choice

SPLITS = {"train": ("Train", "train"), "val": ("Test", "val"), "test": ("Test", "val")}


def read_nus(root: str | Path, split: str, images: str | Path | None = None) -> LabelTable:
    """Read one split, from the ``.npy`` lists if both forms exist. Concepts that are not 1 are absent.

    Args:
        root: the folder that holds ``ImageList`` and ``Groundtruth``, or the ``.npy`` files.
        split: ``train`` or ``test``; ``val`` means ``test``.
        images: the folder that listed names are relative to; by default ``root/Flickr`` if it exists, else ``root``.
    """
    check_choice("split", split, SPLITS)
    top = Path(root)
    first, second = SPLITS[split]
    folder = Path(images) if images is not None else top / "Flickr" if (top / "Flickr").is_dir() else top
    arrays = (top / f"formatted_{second}_images.npy", top / f"formatted_{second}_labels.npy")
    listed = top / "ImageList" / f"{first}Imagelist.txt"
    if any(file.is_file() for file in arrays):
        return _formatted(*arrays, folder, top)
    if listed.is_file():
        return _original(listed, folder, top, first)
    raise TagspreadError(
        f"{top} has neither ImageList/{first}Imagelist.txt nor {arrays[0].name}; give the folder with one of them."
    )


def _lines(file: Path) -> list[str]:
    """Return the lines of a file, stripped, without blank lines at its end."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {file}; unpack the dataset again.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TagspreadError(f"{file} cannot be read ({error}).") from None
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _concepts(top: Path) -> list[str] | None:
    for file in (top / "Concepts81.txt", top / "ConceptsList" / "Concepts81.txt"):
        if file.is_file():
            return _lines(file)
    return None


def _table(file: Path, names: Iterable[str], folder: Path, classes: Iterable[str], y: np.ndarray) -> LabelTable:
    writer, rule = PathsWriter(), NameRule(folder, Source(str(file), "line"), allow_outside=False)
    for number, name in enumerate(names, start=1):
        writer.add(rule(name.replace("\\", "/"), number))
    return LabelTable(writer.paths(folder), tuple(classes), y, unlisted=0)


def _original(listed: Path, folder: Path, top: Path, split: str) -> LabelTable:
    names, truth = _lines(listed), top / "Groundtruth" / "TrainTestLabels"
    concepts = _concepts(top)
    if concepts is None:
        ends = len(f"_{split}.txt")
        concepts = sorted(file.name[len("Labels_") : -ends] for file in truth.glob(f"Labels_*_{split}.txt"))
    if not concepts or not names:
        raise TagspreadError(f"{listed if concepts else truth} holds no entries for {split}; unpack the dataset again.")
    y = np.empty((len(names), len(concepts)), np.int8)
    for column, concept in enumerate(concepts):
        file = truth / f"Labels_{concept}_{split}.txt"
        values = _lines(file)
        if len(values) != len(names):
            raise TagspreadError(
                f"{file} has {len(values)} lines, but {listed} has {len(names)}; both need one line per image: unpack "
                "them again."
            )
        for number, value in enumerate(values):
            if value not in ("0", "1"):
                raise TagspreadError(f"{file} line {number + 1} is {value!r}; it must be 0 or 1.")
        y[:, column] = [int(value) for value in values]
    return _table(listed, names, folder, concepts, y)


def _array(file: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(file, allow_pickle=False)  # a pickle could run any code
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {file}; names and labels must be in the same folder.") from None
    except (OSError, ValueError, EOFError) as error:
        if "allow_pickle" in str(error):
            raise TagspreadError(
                f"{file} holds Python objects, which are not loaded because they could run any code; if you "
                "trust it, convert it to plain strings or numbers: np.save(new, np.load(old, "
                "allow_pickle=True).astype(str))."
            ) from None
        raise TagspreadError(f"{file} cannot be read ({error}).") from None
    return array


def _formatted(names_file: Path, labels_file: Path, folder: Path, top: Path) -> LabelTable:
    names, y = _array(names_file), _array(labels_file)
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise TagspreadError(f"{names_file} holds {names.dtype} of shape {names.shape}; it must be a list of names.")
    if y.ndim != 2 or len(y) != len(names):
        raise TagspreadError(
            f"{labels_file} has shape {y.shape}, {names_file} {len(names)} names; each name needs one row."
        )
    if y.dtype.kind not in "biuf" or len(wrong := np.argwhere((y != 0) & (y != 1))):
        wrong_value = (
            f"{y[tuple(wrong[0])]} in row {wrong[0][0]}, column {wrong[0][1]}" if y.dtype.kind in "biuf" else y.dtype
        )
        raise TagspreadError(f"{labels_file} holds {wrong_value}; labels must be 0 or 1.")
    concepts = _concepts(top) or [f"concept {k + 1}" for k in range(y.shape[1])]
    if len(concepts) != y.shape[1]:
        raise TagspreadError(
            f"Concepts81.txt has {len(concepts)} names, but {labels_file} has {y.shape[1]} columns; unpack them again."
        )
    return _table(names_file, names.astype(str).tolist(), folder, concepts, y)


def read_train_and_test(root: Path) -> tuple[LabelTable, LabelTable]:
    """Return the training and test labels of the paper."""
    return read_nus(root, "train"), read_nus(root, "test")


PUBLISHED = (
    PublishedTable(
        CAP_PAPER,
        {
            "asl": (42.87, 46.50, 48.42, 49.65),
            "llr": (40.20, 44.95, 47.32, 48.31),
            "plc": (43.55, 47.51, 49.75, 50.71),
            "top1": (40.99, 45.07, 47.43, 48.49),
            "topk": (40.89, 45.04, 47.22, 48.37),
            "iat": (42.58, 46.60, 48.76, 49.62),
            "adsh": (43.94, 47.28, 49.22, 49.93),
            "freematch": (43.12, 46.65, 48.74, 49.59),
            "drml": (30.61, 35.09, 37.91, 39.98),
            "cap": (44.82, 48.24, 49.90, 51.06),
        },
    ),
    PublishedTable(
        DICAP_PAPER,
        {
            "bce": (40.12, None, None, None),
            "asl": (42.04, None, None, None),
            "cap": (44.98, None, None, None),
            "pclp": (46.39, None, None, None),
            "bbam": (33.15, None, None, None),
            "d2l": (46.86, None, None, None),
            "dicap": (48.37, None, None, None),
        },
    ),
)

NUS = NamedDataset(
    name="nus",
    title="NUS",
    contents="the original lists: `ImageList/TrainImagelist.txt`, "
    "`Groundtruth/TrainTestLabels/Labels_{concept}_Train.txt`, and for testing `TestImagelist.txt`, `..._Test.txt`. "
    "Or arrays: `formatted_train_images.npy`, "
    "`formatted_train_labels.npy`, and for testing `formatted_val_...`. The images are in `Flickr/` if it exists, "
    "otherwise in `DIR` itself",
    signs=("ImageList/TrainImagelist.txt", "formatted_train_images.npy"),
    read=read_train_and_test,
    # a schedule for 40 epochs, of which 28 are run; the student starts from the EMA network of the warm-up
    recipes={"paper": {"batch": 64, "warm_start_from": "ema", "schedule_epochs": 40}},
    published=PUBLISHED,
)
