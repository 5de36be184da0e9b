"""Read MS-COCO labels from ``annotations/instances_{train,val}{2014,2017}.json``, with a folder of images.

A class is present if any instance of it is annotated, crowds included. CAP's released code leaves out images without
annotations; the paper does not mention them.
"""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tagspread.aliases import JsonObject
from tagspread.data.datasets.base import NamedDataset
from tagspread.data.datasets.published import CAP_PAPER, DICAP_PAPER, PublishedTable
from tagspread.data.images.paths import PathsWriter
from tagspread.data.tables.image_names import NameRule
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.notes import Source
from tagspread.errors import TagspreadError


class _Instance(NamedTuple):
    image: Any
    category: Any


class _Image(NamedTuple):
    id: Any
    name: Any


def read_coco(annotations: str | Path, images: str | Path, *, keep_empty: bool = False) -> LabelTable:
    """Read one COCO annotation file: images sorted by id as text, classes sorted by id as numbers.

    Args:
        annotations: the annotation file, such as ``annotations/instances_train2014.json``.
        images: the folder with the images, such as ``train2014``.
        keep_empty: keep images without annotations, with all classes absent.
    """
    file = Path(annotations)
    index = _load(file)
    categories = sorted(index["categories"], key=lambda category: _checked_id(file, "categories", category))
    column = {category["id"]: k for k, category in enumerate(categories)}
    classes = [category.get("name") for category in categories]
    names = _names(file, index["images"])
    order = sorted(names, key=str)  # as text (10 before 9), the row order of the paper's split
    row = {image: k for k, image in enumerate(order)}
    y = np.zeros((len(order), len(classes)), np.int8)
    annotated = np.zeros(len(order), bool)
    for number, instance in enumerate(index["annotations"]):
        if not isinstance(instance, _Instance):
            raise _error(file, "annotations", number, instance, "no image_id or no category_id")
        image_row, class_column = row.get(instance.image), column.get(instance.category)
        if image_row is None or class_column is None:
            kind, unlisted = ("image", instance.image) if image_row is None else ("category", instance.category)
            raise TagspreadError(
                f"{file}: annotations, entry {number}, names the {kind} {unlisted!r}, which the file does not list; "
                "download it again."
            )
        y[image_row, class_column], annotated[image_row] = 1, True
    kept = np.arange(len(order)) if keep_empty else np.flatnonzero(annotated)
    if not len(kept):
        raise TagspreadError(f"{file} has no annotated images; give the instances file of a train or val split.")
    writer, rule = PathsWriter(), NameRule(Path(images), Source(str(file), "image"), allow_outside=False)
    for k in kept.tolist():
        writer.add(rule(names[order[k]], order[k]))
    return LabelTable(writer.paths(Path(images)), tuple(classes), y[kept], unlisted=0)


# numbers in brackets, up to the next key or the end of the entry
OUTLINE = re.compile(r'"segmentation"\s*:\s*\[[^"{}]*\]')


def _slim(entry: JsonObject) -> Any:
    """Reduce an entry to the needed fields while parsing, so that memory never holds the full dictionaries of all."""
    image, category = entry.get("image_id"), entry.get("category_id")
    if image.__class__ in (int, str) and category.__class__ is int:
        return _Instance(image, category)
    if entry.get("file_name").__class__ is str and entry.get("id").__class__ in (int, str):
        return _Image(entry["id"], entry["file_name"])
    return entry


def _load(file: Path) -> JsonObject:
    collecting = gc.isenabled()
    gc.disable()  # no cycles can arise, and searching for them among many new tuples is slow
    try:
        text = file.read_text(encoding="utf-8-sig")
        # outlines are most of the file and are not needed
        index: Any = json.loads(OUTLINE.sub('"segmentation":0', text), object_hook=_slim)
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {file}; give a file such as instances_train2014.json.") from None
    except OSError as error:
        raise TagspreadError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise TagspreadError(f"{file} is not valid JSON ({error}); is the download complete?") from None
    finally:
        if collecting:
            gc.enable()
    lists: JsonObject = index if isinstance(index, dict) else {}
    for key in ("images", "annotations", "categories"):
        if not isinstance(lists.get(key), list):
            raise TagspreadError(f"{file} has no list {key!r}; give a file such as instances_train2014.json.")
    return lists


def _names(file: Path, images: list[Any]) -> dict[Any, str]:
    names: dict[Any, str] = {}
    for number, image in enumerate(images):
        if not isinstance(image, _Image):
            raise _error(file, "images", number, image, "no id or no file_name")
        if names.setdefault(image.id, image.name) != image.name:
            raise TagspreadError(
                f"{file} gives the id {image.id!r} to {names[image.id]} and to {image.name}; download it again."
            )
    return names


def _checked_id(file: Path, key: str, entry: Any) -> int:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), int) or not isinstance(entry.get("name"), str):
        raise _error(file, key, None, entry, "no integer id or no name")
    return int(entry["id"])


def _error(file: Path, key: str, number: int | None, entry: Any, flaw: str) -> TagspreadError:
    identity = f"id {entry['id']!r}" if isinstance(entry, dict) and "id" in entry else repr(entry)[:80]
    place = "" if number is None else f" entry {number},"
    return TagspreadError(
        f"{file}: {key},{place} {identity} has {flaw}; give a file such as instances_train2014.json, not captions."
    )


def read_2014(root: Path) -> tuple[LabelTable, LabelTable]:
    """Return the training and test labels of the paper."""
    train, val = (
        read_coco(root / "annotations" / f"instances_{part}.json", root / part) for part in ("train2014", "val2014")
    )
    return train, val


PUBLISHED = (
    PublishedTable(
        CAP_PAPER,
        {
            "bce": (58.90, 63.75, 65.91, 67.33),
            "asl": (59.12, 63.82, 66.10, 67.51),
            "llr": (59.31, 64.25, 66.61, 68.01),
            "llct": (59.33, 64.23, 66.69, 68.11),
            "llcp": (59.27, 64.19, 66.68, 68.12),
            "plc": (59.85, 65.03, 67.62, 69.14),
            "top1": (57.62, 62.84, 65.50, 66.96),
            "topk": (58.25, 63.52, 66.11, 67.49),
            "iat": (60.34, 65.54, 67.88, 69.25),
            "adsh": (60.75, 65.37, 67.70, 69.01),
            "freematch": (59.94, 64.46, 66.79, 68.04),
            "drml": (53.60, 57.06, 58.53, 59.24),
            "cap": (62.43, 67.36, 69.11, 70.41),
        },
    ),
    PublishedTable(
        DICAP_PAPER,
        {
            "bce": (57.09, 62.34, None, None),
            "asl": (57.87, 62.95, None, None),
            "cap": (62.88, 67.18, None, None),
            "pclp": (64.43, 69.02, None, None),
            "bbam": (63.54, 67.41, None, None),
            "d2l": (69.30, 73.06, None, None),
            "dicap": (70.07, 73.55, None, None),
        },
    ),
)

COCO = NamedDataset(
    name="coco",
    title="COCO",
    contents="`annotations/instances_train2014.json`, `instances_val2014.json` for testing, and the images in "
    "`train2014/` and `val2014/`",
    signs=("annotations/instances_train2014.json",),
    read=read_2014,
    recipes={"paper": {"batch": 64, "schedule_epochs": 40}},  # a schedule for 40 epochs, of which 28 are run
    published=PUBLISHED,
)
