"""Check the image files of a dataset: missing, empty and unreadable files, duplicates and train-test leaks."""

from __future__ import annotations

import difflib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.aliases import Progress
from tagspread.data.check.report import LABELS, TEST, Finding, Place, finding_at
from tagspread.data.images.decode import Broken, decode_all, shifted
from tagspread.data.images.duplicates import SIDE, groups, lookalikes, same_bytes, thumbnails
from tagspread.data.images.find import FolderListing, list_folder
from tagspread.data.images.formats import undecodable_in_words
from tagspread.data.images.paths import RealPaths
from tagspread.data.tables.label_table import LabelTable

AT_ONCE = 2048  # images decoded before they are shrunk to thumbnails: 32 MB
EMPTY = "the file is empty"


@dataclass
class Inventory:
    """Every image of a dataset once: its path, the table rows that name it, its state and its thumbnail."""

    folder: Path
    paths: list[Path]
    tables: dict[str, LabelTable]
    rows: dict[str, list[int]]  # for each table, the index of the image of each row
    has_label: dict[str, np.ndarray]  # for each table, whether any label of each row is known
    unlabeled: set[int]
    missing: set[int]
    broken: dict[int, Broken]
    thumbs: np.ndarray
    listing: FolderListing

    @property
    def counts(self) -> dict[str, int]:
        """Image counts by use; rows without a known label or without a readable image do not count as labeled."""
        gone = self.missing | self.broken.keys()
        usable = {
            name: sum(image not in gone for image, tagged in zip(self.rows[name], has_label, strict=True) if tagged)
            for name, has_label in self.has_label.items()
        }
        return {
            "images": len(self.paths) - len(self.missing),
            "labeled": usable.get(LABELS, 0),
            "test": usable.get(TEST, 0),
            "unlabeled": len(self.unlabeled),
            "missing": len(self.missing),
            "unreadable": len(self.broken),
        }

    def show(self, path: Path) -> str:
        """Return a path as messages show it: relative to the folder if it is inside."""
        return str(path).removeprefix(os.path.join(self.folder, ""))  # noqa: PTH118  # fast, for many missing files

    def uses(self) -> dict[int, list[tuple[str, int]]]:
        """Return the rows (table, number from 0) that name each image."""
        uses: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for name, images in self.rows.items():
            for row, image in enumerate(images):
                uses[image].append((name, row))
        return uses


def take_inventory(
    folder: Path, labels: LabelTable | None, test: LabelTable | None, progress: Progress | None
) -> Inventory:
    """List the images that a table names and those in the folder, and decode each once."""
    tables = {name: table for name, table in ((LABELS, labels), (TEST, test)) if table is not None}
    number: dict[str, int] = {}  # by resolved path, because one image may have several names
    paths: list[Path] = []

    real_path = RealPaths()

    def enter(path: Path) -> int:
        index = number.setdefault(real_path(path), len(paths))
        if index == len(paths):
            paths.append(path)
        return index

    rows = {name: [enter(Path(path)) for path in table.paths] for name, table in tables.items()}
    named = len(paths)
    listing = list_folder(folder)
    in_folder = {enter(path) for path in listing.images}
    missing = {index for index in range(named) if index not in in_folder and not paths[index].exists()}
    thumbs, broken = _decode(paths, missing, progress)
    has_label = {name: table.labeled for name, table in tables.items()}
    unlabeled = set(range(named, len(paths)))
    if labels is not None:
        unlabeled |= {rows[LABELS][row] for row in np.flatnonzero(~has_label[LABELS]).tolist()}
    unlabeled -= missing | broken.keys()
    return Inventory(folder, paths, tables, rows, has_label, unlabeled, missing, broken, thumbs, listing)


def _decode(paths: list[Path], missing: set[int], progress: Progress | None) -> tuple[np.ndarray, dict[int, Broken]]:
    existing = [index for index in range(len(paths)) if index not in missing]
    thumbs = np.zeros((len(paths), 3, 8, 9), dtype=np.uint8)
    broken: dict[int, Broken] = {}
    for at in range(0, len(existing), AT_ONCE):
        chunk = existing[at : at + AT_ONCE]
        out = np.zeros((len(chunk), 3, SIDE, SIDE), dtype=np.uint8)
        report = shifted(progress, at, len(existing))
        # by Pillow, although it takes longer: importing torch would take more time than a small folder does
        failures = decode_all([paths[k] for k in chunk], SIDE, out, progress=report, fast=False)
        thumbs[chunk] = thumbnails(out)
        broken |= {chunk[failure.index]: failure for failure in failures}
    return thumbs, broken


def check_files(inventory: Inventory) -> Iterator[Finding]:
    """Yield the findings about missing, empty and unreadable files."""
    uses = inventory.uses()
    meant_files = _MeantFiles(inventory)
    missing = []
    for index in sorted(inventory.missing):
        name, row = uses[index][0]
        path = inventory.paths[index]
        missing.append(Place(inventory.show(path), row + 1, table=name, remark=meant_files.closest(path)))
    advice = "correct the names in the table or add the files."
    yield from finding_at("error", "missing_file", "Missing image files", advice, missing)
    for kind, what, empty in (("empty_file", "Empty files", True), ("unreadable", "Unreadable images", False)):
        for level, named, whose, advice in (
            ("error", True, "named in a table", "replace the files or remove their rows."),
            ("warning", False, "in the unlabeled set", "training leaves them out."),
        ):
            places = []
            for index, failure in inventory.broken.items():
                if (failure.reason == EMPTY) is empty and (index in uses) is named:
                    name, row = uses[index][0] if named else ("", -1)
                    remark = "" if empty else failure.reason
                    places.append(Place(inventory.show(failure.path), row + 1, table=name, remark=remark))
            yield from finding_at(level, kind, f"{what} {whose}", advice, places)


def check_listing(listing: FolderListing) -> Iterator[Finding]:
    """Yield the findings about files and folders that are left out before any image is decoded."""

    def shown(path: Path) -> str:
        return str(path.relative_to(listing.folder))

    folders = [Place(shown(folder.path), remark=folder.reason) for folder in listing.unreadable]
    advice = "the images in there are missing; make the folders readable."
    yield from finding_at("warning", "unreadable_folder", "Folders that cannot be read", advice, folders)
    files = [Place(shown(path)) for path in listing.undecodable]
    suffixes = undecodable_in_words(path.suffix.lower() for path in listing.undecodable)
    what = "Image files that cannot be decoded here"
    yield from finding_at("warning", "undecodable", what, f"training leaves them out ({suffixes}).", files)
    links = [Place(shown(path)) for path in listing.links]
    yield from finding_at("note", "linked_folder", "Links to folders", "they are not followed.", links)


class _MeantFiles:
    """Suggests a file for a wrong name: other case, another suffix, another folder, or a typo."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.by_key: dict[str, Path] = {}
        self.names: dict[str, Path] = {}
        for index in range(len(inventory.paths) if inventory.missing else 0):
            if index not in inventory.missing:
                path = inventory.paths[index]
                self.names[path.name] = path
                for key in self._keys(path):
                    self.by_key.setdefault(key, path)
        self.searches = 50  # a fuzzy search goes through all names, which is slow; 50 suggestions are enough

    def _keys(self, path: Path) -> tuple[str, ...]:
        whole = self.inventory.show(path).casefold()
        name = os.path.basename(whole)  # noqa: PTH119  # no Path objects, for many missing files
        return whole, os.path.splitext(whole)[0], name, os.path.splitext(name)[0]  # noqa: PTH122

    def closest(self, path: Path) -> str:
        meant = next((self.by_key[key] for key in self._keys(path) if key in self.by_key), None)
        if meant is None and self.searches > 0:
            self.searches -= 1
            close = difflib.get_close_matches(path.name, self.names, n=1, cutoff=0.85)
            meant = self.names[close[0]] if close else None
        return "" if meant is None else f"did you mean {self.inventory.show(meant)}?"


def check_copies(inventory: Inventory, near: int) -> tuple[list[Finding], dict[str, int]]:
    """Return the findings about duplicate images, and the number of copies."""
    readable = np.array(
        [k for k in range(len(inventory.paths)) if k not in inventory.missing and k not in inventory.broken], dtype=int
    )
    keys = [(inventory.paths[k].stat().st_size, inventory.thumbs[k].tobytes()) for k in readable.tolist()]
    exact = readable[same_bytes([inventory.paths[k] for k in readable.tolist()], keys)]
    similar = readable[lookalikes(inventory.thumbs[readable], near)]
    together = groups(np.concatenate([exact, similar]), len(inventory.paths))
    exact_group = {index: k for k, group in enumerate(groups(exact, len(inventory.paths))) for index in group.tolist()}
    in_groups = {index for group in together for index in group.tolist()}
    uses = inventory.uses()
    twice = [np.array([index]) for index, rows in uses.items() if len(rows) > 1 and index not in in_groups]
    places: dict[str, list[Place]] = defaultdict(list)
    for group in [*together, *twice]:
        _judge(inventory, group.tolist(), uses, exact_group, places)
    findings = [
        finding
        for kind, (level, what, advice) in COPIES.items()
        for finding in finding_at(level, kind, what, advice, places[kind])
    ]
    within_unlabeled = [sum(index in inventory.unlabeled for index in group.tolist()) for group in together]
    return findings, {
        "copies": sum(len(group) - 1 for group in together),
        "copies_in_unlabeled": sum(count - 1 for count in within_unlabeled if count > 1),
    }


COPIES = {
    "leak": (
        "error",
        "Test images that are also training images",
        "test results would be too good; remove one of the two.",
    ),
    "conflicting_labels": (
        "error",
        "Copies of one image with different labels",
        "correct the labels or keep one copy.",
    ),
    "listed_twice": ("warning", "Labeled images listed more than once", "each copy counts; keep one."),
    "labeled_in_unlabeled": (
        "warning",
        "Labeled images with a copy in the unlabeled set",
        "harmless if few; remove the copies if many.",
    ),
    "test_in_unlabeled": (
        "warning",
        "Test images with a copy in the unlabeled set",
        "the model also trains on them, without their labels.",
    ),
}


class _Mention(NamedTuple):
    """An image in a row of a table."""

    image: int
    table: str
    row: int


def _judge(
    inventory: Inventory, group: list[int], uses: dict[int, list[tuple[str, int]]], exact_group: dict[int, int],
    places: dict[str, list[Place]],
) -> None:  # fmt: skip
    """Add the findings about one group of copies to ``places``, at most one of each kind per row."""
    labeled = [
        _Mention(image, name, row)
        for image in group
        for name, row in uses.get(image, [])
        if inventory.has_label[name][row]
    ]
    trained = [mention for mention in labeled if mention.table == LABELS]
    tested = [mention for mention in labeled if mention.table == TEST]
    in_unlabeled = [image for image in group if image in inventory.unlabeled]

    def place(mention: _Mention, other: int, more: str = "") -> Place:
        relation = "looks like"
        if mention.image == other:
            relation = "is"
        elif exact_group.get(mention.image, -1) == exact_group.get(other, -2):
            relation = "same file as"
        remark = f"{relation} {inventory.show(inventory.paths[other])}{more}"
        file = inventory.show(inventory.paths[mention.image])
        return Place(file, mention.row + 1, table=mention.table, remark=remark)

    for mention in tested if trained else []:
        places["leak"].append(place(mention, trained[0].image, f" ({LABELS} row {trained[0].row + 1})"))
    for mentions, unlabeled_kind in ((trained, "labeled_in_unlabeled"), (tested, "test_in_unlabeled")):
        for mention in mentions[1:]:
            first = mentions[0]
            conflict = _conflict(inventory.tables[mention.table], first.row, mention.row)
            kind, tags = ("conflicting_labels", f": {conflict}") if conflict else ("listed_twice", "")
            places[kind].append(place(mention, first.image, f" (row {first.row + 1}){tags}"))
        if mentions and in_unlabeled:
            places[unlabeled_kind].append(place(mentions[0], in_unlabeled[0]))


def _conflict(table: LabelTable, a: int, b: int) -> str:
    """Return the tags that are 1 in one row and 0 in the other, as text."""
    both = (table.y[a] >= 0) & (table.y[b] >= 0) & (table.y[a] != table.y[b])
    return ", ".join(
        f"{table.classes[k]} ({table.y[b, k]} here, {table.y[a, k]} there)" for k in np.flatnonzero(both).tolist()
    )
