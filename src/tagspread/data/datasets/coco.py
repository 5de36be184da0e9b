"""MS-COCO in its own format: ``annotations/instances_{train,val}{2014,2017}.json`` and a folder of images.

A class is present where any instance of it is annotated, crowds included. The paper leaves images without any
annotation out.
"""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tagspread.aliases import JsonObject
from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.paths import PathsWriter
from tagspread.data.tables.rows import NameRule, Source
from tagspread.errors import TagspreadError


class _Instance(NamedTuple):
    image: Any
    category: Any


class _Image(NamedTuple):
    id: Any
    name: Any


def read_coco(annotations: str | Path, images: str | Path, *, keep_empty: bool = False) -> LabelTable:
    """Read one COCO index: images in the order of their ids as text, classes in the order of their ids as numbers.

    Args:
        annotations: such as ``annotations/instances_train2014.json``.
        images: the folder with the images, such as ``train2014``.
        keep_empty: keep images without any annotation; all classes are absent there.
    """
    file = Path(annotations)
    index = _load(file)
    categories = sorted(index["categories"], key=lambda category: _whole(file, "categories", category))
    column = {category["id"]: k for k, category in enumerate(categories)}
    classes = [category.get("name") for category in categories]
    names = _names(file, index["images"])
    order = sorted(names, key=str)  # as text, 10 before 9, as the paper's split counts rows
    row = {image: k for k, image in enumerate(order)}
    y = np.zeros((len(order), len(classes)), np.int8)
    seen = np.zeros(len(order), bool)
    for number, instance in enumerate(index["annotations"]):
        if not isinstance(instance, _Instance):
            raise _error(file, "annotations", number, instance, "no image_id or no category_id")
        at, which = row.get(instance.image), column.get(instance.category)
        if at is None or which is None:
            kind, what = ("image", instance.image) if at is None else ("category", instance.category)
            raise TagspreadError(
                f"{file}: annotations, entry {number}, is about the {kind} {what!r}, which the file does not list; "
                "download it again."
            )
        y[at, which], seen[at] = 1, True
    kept = np.arange(len(order)) if keep_empty else np.flatnonzero(seen)
    if not len(kept):
        raise TagspreadError(f"{file} annotates no image at all; give the instances of a train or val split.")
    writer, rule = PathsWriter(), NameRule(Path(images), Source(str(file), "image"), allow_outside=False)
    for k in kept.tolist():
        writer.add(rule(names[order[k]], order[k]))
    return LabelTable(writer.paths(Path(images)), tuple(classes), y[kept], unlisted=0)


# numbers in brackets, up to the next key or the end of the entry
OUTLINE = re.compile(r'"segmentation"\s*:\s*\[[^"{}]*\]')


def _slim(entry: JsonObject) -> Any:
    """Keep of an entry what the table needs, at once, so that the dictionaries of all are never there together."""
    image, category = entry.get("image_id"), entry.get("category_id")
    if image.__class__ in (int, str) and category.__class__ is int:
        return _Instance(image, category)
    if entry.get("file_name").__class__ is str and entry.get("id").__class__ in (int, str):
        return _Image(entry["id"], entry["file_name"])
    return entry


def _load(file: Path) -> JsonObject:
    collecting = gc.isenabled()
    gc.disable()  # no cycles can arise here, and looking for them among so many new tuples takes time
    try:
        text = file.read_text(encoding="utf-8-sig")
        # outlines are most of the file, and nobody needs their numbers as objects
        index: Any = json.loads(OUTLINE.sub('"segmentation":0', text), object_hook=_slim)
    except FileNotFoundError:
        raise TagspreadError(f"there is no file {file}; give instances_train2014.json or the like.") from None
    except OSError as error:
        raise TagspreadError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise TagspreadError(f"{file} is not JSON ({error}); is the download complete?") from None
    finally:
        if collecting:
            gc.enable()
    lists: JsonObject = index if isinstance(index, dict) else {}
    for key in ("images", "annotations", "categories"):
        if not isinstance(lists.get(key), list):
            raise TagspreadError(f"{file} has no list {key!r}; give instances_train2014.json or the like.")
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


def _whole(file: Path, key: str, entry: Any) -> int:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), int) or not isinstance(entry.get("name"), str):
        raise _error(file, key, None, entry, "no whole number as id or no name")
    return int(entry["id"])


def _error(file: Path, key: str, number: int | None, entry: Any, found: str) -> TagspreadError:
    which = f"id {entry['id']!r}" if isinstance(entry, dict) and "id" in entry else repr(entry)[:80]
    place = "" if number is None else f" entry {number},"
    return TagspreadError(
        f"{file}: {key},{place} {which} has {found}; give instances_train2014.json or the like, not captions."
    )
