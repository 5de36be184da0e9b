"""Load a dataset: from a folder of images and label tables, from arrays, or from the ``split.csv`` of a run.

A dataset is converted to a split when its run starts, and back when the run is resumed on the same images and labels.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from tagspread.core.arrays import as_labels
from tagspread.data.images.decode import Broken
from tagspread.data.images.find import list_folder
from tagspread.data.images.paths import real_path
from tagspread.data.images.store import Store, TensorStore
from tagspread.data.split import hold_out
from tagspread.data.tables.label_table import LabelTable, foreign_in_words
from tagspread.data.tables.read import read_table
from tagspread.errors import Both, TagspreadError
from tagspread.progress import Watcher
from tagspread.run.folder import RunFolder
from tagspread.run.record import RunRecord
from tagspread.run.split import FILE as SPLIT
from tagspread.run.split import (
    NONE,
    Digests,
    Part,
    Split,
    differences,
    digest_files,
    digest_items,
    has_split,
    read_split,
)
from tagspread.train.dataset import Dataset
from tagspread.train.distributed import Processes
from tagspread.train.plan import Counts, PlanFor
from tagspread.train.sharded_store import ShardedStore, open_shared_store, part_of, share_store

TRAIN, TEST = 0, 1
_DIGESTS: WeakKeyDictionary[Store, Digests] = WeakKeyDictionary()  # many runs of a benchmark share one store


def dataset_from_folder(
    folder: Path,
    labels: Path,
    test_labels: Path | None,
    *,
    size: int,
    device: torch.device,
    cache: Path | None,
    watcher: Watcher,
    processes: Processes,
    table_options: dict[str, Any],
    amend: Callable[[LabelTable, Sequence[Path]], LabelTable] | None = None,
    planner: PlanFor | None = None,
) -> tuple[Dataset, dict[str, Any]]:
    """Load a dataset from a folder of images and label tables; images that no table names are the unlabeled set.

    Args:
        folder: the folder of images.
        labels: label table of the training images.
        test_labels: label table of the test images.
        size: height and width to resize images to.
        device: device to return batches on.
        cache: folder for decoded images.
        watcher: shows the progress.
        processes: the processes that train together; each holds a part of the images.
        table_options: options for reading the tables.
        amend: changes the training labels, given the table and the test images; such as adding reviewers' answers.
        planner: chooses the image size and the number of unlabeled images before any image is decoded.

    Returns:
        The dataset, and the options to read tables of the same kind with: the given ones, and what was found.
    """
    train = read_table(labels, folder, **table_options)
    table_options = train.found_options | table_options
    test = None if test_labels is None else read_table(test_labels, folder, **table_options)
    for note in (*train.notes, *(() if test is None else test.notes)):
        watcher.note(f"{note.level}: {note}")
    if amend is not None:
        train = amend(train, () if test is None else test.paths)
    paths, y = list(train.paths), train.y
    if test is not None:
        if (foreign := foreign_in_words(test, train.classes, str(test_labels))) is not None:
            watcher.note(f"warning: {foreign}")
        trained = {real_path(path) for path in paths}
        if both := [path for path in test.paths if real_path(path) in trained]:
            raise TagspreadError(
                f"{labels} and {test_labels} both name {min(both)}; an image that is trained on cannot be used for "
                "testing. Remove it from one of them."
            )
        paths, y = paths + list(test.paths), np.concatenate([y, test.aligned(train.classes, str(test_labels))])
    named, listing = {real_path(path) for path in paths}, list_folder(folder)
    unlabeled = [path for path in listing.images if real_path(path) not in named]
    for left_out in listing.notes():
        watcher.note(f"note: {left_out}")
    y = np.concatenate([y, np.full((len(unlabeled), len(train.classes)), -1, np.int8)])
    part = np.full(len(y), TRAIN)
    part[len(train) : len(paths)] = TEST
    files = [*paths, *unlabeled]
    if planner is not None:
        size, rows = _follow_plan(planner, y, part, files, watcher)
        files, y, part = [files[row] for row in rows], y[rows], part[rows]
    _check_same_files(processes, files, y, folder)
    store, broken = open_shared_store(files, size, device, processes, cache=cache, progress=watcher.begin("decoding"))
    if len({b.index for b in broken if b.index < len(train)}) == len(train):
        raise TagspreadError(
            f"none of the {len(train):,} images that {labels} names can be read (the first is {broken[0].path}: "
            f"{broken[0].reason}); give the folder that its paths are relative to, now {folder}."
        )
    return _make_dataset(store, y, train.classes, part, files, broken, watcher, root=folder), table_options


def dataset_from_arrays(
    images: Any,
    labels: Any,
    test_images: Any,
    test_labels: Any,
    *,
    classes: Sequence[str] | None,
    size: int,
    device: torch.device,
    cache: Path | None,
    watcher: Watcher,
    processes: Processes,
    planner: PlanFor | None = None,
) -> Dataset:
    """Load a dataset from image files or an array, and a label matrix; rows that are all -1 are the unlabeled set."""
    if (test_images is None) != (test_labels is None):
        raise TagspreadError("test_images and test_labels belong together; give both or neither.")
    if classes is None and (columns := getattr(labels, "columns", None)) is not None:
        classes = [str(name) for name in columns]
        if list(getattr(test_labels, "columns", columns)) != list(columns):
            raise TagspreadError(
                "test_labels have other columns than labels, or in another order; give both the same columns."
            )
    images, test_images = (
        list(value) if isinstance(value, Iterator) else value  # Path.glob returns an iterator
        for value in (images, test_images)
    )
    y = _matrix("labels", labels, "images", images)
    part = np.full(len(y), TRAIN)
    if test_images is not None:
        test_y = _matrix("test_labels", test_labels, "test_images", test_images)
        if test_y.shape[1] != y.shape[1]:
            raise TagspreadError(
                f"test_labels have {test_y.shape[1]} classes but labels {y.shape[1]}; give both the same classes."
            )
        y, part = np.concatenate([y, test_y]), np.concatenate([part, np.full(len(test_y), TEST)])
    names = tuple(f"class {k}" for k in range(y.shape[1])) if classes is None else tuple(classes)
    are_names = all(isinstance(name, str) and name for name in names)
    if isinstance(classes, str) or not are_names or len(set(names)) != len(names):
        raise TagspreadError(f"classes is {classes!r}; give a list of different names, one per column of labels.")
    if isinstance(images, np.ndarray) and images.dtype.kind not in "OUS":
        pixels = _channels_first("images", images)
        if test_images is not None:
            test_pixels = _channels_first("test_images", test_images)
            if test_pixels.shape[1:] != pixels.shape[1:]:
                raise TagspreadError(
                    f"test_images have shape {test_pixels.shape[1:]} but images {pixels.shape[1:]}; give both the same "
                    "size."
                )
            pixels = np.concatenate([pixels, test_pixels])
            _note_overlap(pixels, y, part, watcher)
        if planner is not None:
            _, rows = _follow_plan(planner, y, part, (), watcher, pixels.shape[-1])
            pixels, y, part = pixels[rows], y[rows], part[rows]
        _check_same_files(processes, (), y)
        store: Store = TensorStore(pixels[part_of(processes)], device)
        return _make_dataset(share_store(store, len(pixels), processes), y, names, part, (), [], watcher)
    if not all(isinstance(path, str | Path) for path in images):
        raise TagspreadError("images is neither a folder nor a list of files nor an array; give one of them.")
    paths = [Path(path).absolute() for path in (*images, *(() if test_images is None else test_images))]
    _check_overlap(paths, y, part)
    if planner is not None:
        size, rows = _follow_plan(planner, y, part, paths, watcher)
        paths, y, part = [paths[row] for row in rows], y[rows], part[rows]
    _check_same_files(processes, paths, y)
    store, broken = open_shared_store(paths, size, device, processes, cache=cache, progress=watcher.begin("decoding"))
    return _make_dataset(store, y, names, part, paths, broken, watcher)


def _follow_plan(
    planner: PlanFor, y: np.ndarray, part: np.ndarray, files: Sequence[Path], watcher: Watcher, size: int | None = None
) -> tuple[int, np.ndarray]:
    """Make and print the plan; return the image size and the rows to use: all, or some of the unlabeled ones."""
    watcher.begin("planning")
    has_label = (y >= 0).any(1)
    unlabeled = np.flatnonzero(~has_label & (part == TRAIN))
    labeled, test = (int((has_label & (part == number)).sum()) for number in (TRAIN, TEST))
    plan = planner(Counts(labeled, len(unlabeled), test, y.shape[1]), files, size)
    watcher.note(plan.in_words())
    drawn = np.random.default_rng(plan.config.seed).permutation(unlabeled)[plan.unlabeled :]
    return plan.config.image_size, np.setdiff1d(np.arange(len(y)), drawn)


def _check_overlap(paths: Sequence[Path], y: np.ndarray, part: np.ndarray) -> None:
    """Raise for a file that is in both training and test set with labels, or has contradicting labels."""
    first_row: dict[str, int] = {}
    for row in np.flatnonzero((y >= 0).any(1)).tolist():
        first = first_row.setdefault(real_path(paths[row]), row)
        if part[first] != part[row]:
            raise TagspreadError(
                f"{paths[row]} is in images, with labels, and in test_images; an image that is trained on cannot be "
                "used for testing. Remove it from one of them."
            )
        if ((y[first] >= 0) & (y[row] >= 0) & (y[first] != y[row])).any():
            raise TagspreadError(f"{paths[row]} is given twice, with labels that contradict each other; correct one.")


def _note_overlap(images: np.ndarray, y: np.ndarray, part: np.ndarray, watcher: Watcher) -> None:
    """Print a note if test images are among the labeled images; arrays may hold equal images on purpose."""
    has_label = (y >= 0).any(1)
    train_digests, test_digests = (
        [hashlib.sha256(images[row].tobytes()).digest() for row in np.flatnonzero(has_label & (part == number))]
        for number in (TRAIN, TEST)
    )
    trained = set(train_digests)
    if both := sum(digest in trained for digest in test_digests):
        watcher.note(
            f"note: {both:,} of {len(test_digests):,} test_images are also among the labeled images, so the test "
            "metrics are optimistic"
        )


def reuse_test(dataset: Dataset, run: Path, watcher: Watcher) -> Dataset | None:
    """Move the labeled images that were test images of an earlier run, by content, to the test set.

    All other labeled images are trained on, so the test set stays fixed while labels and images are added.

    Returns:
        The dataset; None if no labeled image was a test image of the run.
    """
    earlier = read_split(run)
    tested = earlier.digests[earlier.rows(Part.TEST)]
    tested = np.unique(tested[tested != NONE])
    digests = _digests(dataset)
    is_test = np.isin(digests[dataset.labeled], tested)
    if not is_test.any():
        return None
    if is_test.all():
        raise TagspreadError(f"all labeled images are test images of {run}; label other images to train on.")
    again = len(np.unique(digests[dataset.labeled[is_test]]))
    unlabeled = int(np.isin(digests[dataset.unlabeled], tested).sum())
    lost = len(tested) - again
    words = f"{again:,} of the {len(tested):,}" if lost else f"all {again:,}"
    why = f" ({unlabeled:,} of the others are unlabeled now)" if unlabeled else ""
    watcher.note(f"{words} test images of {run} are test images again{why}")
    return replace(dataset, labeled=dataset.labeled[~is_test], test=dataset.labeled[is_test])


def split_off_test(dataset: Dataset, share: float, seed: int, watcher: Watcher) -> Dataset:
    """Move a stratified share of the labeled rows to the test set."""
    if len(dataset.test):
        raise TagspreadError(f"test_share is {share} but there is a test set already; give one or the other.")
    kept, test, notes = hold_out(dataset.y[dataset.labeled], share, seed, classes=dataset.classes)
    watcher.note(f"{len(test):,} of {len(dataset.labeled):,} labeled images are set aside for testing")
    for note in notes:
        watcher.note(f"note: {note}")
    return replace(dataset, labeled=dataset.labeled[kept], test=dataset.labeled[test])


def _matrix(argument: str, labels: Any, other: str, images: Any) -> np.ndarray:
    if len(labels) != len(images):
        raise TagspreadError(
            f"{argument} have shape {np.shape(labels)} for {len(images)} {other}; give one row per image."
        )
    return as_labels(argument, labels).cpu().numpy()


def _channels_first(argument: str, images: Any) -> np.ndarray:
    array = np.asarray(images)
    if array.dtype != np.uint8:
        raise TagspreadError(f"{argument} hold {array.dtype}; give uint8 images, 0 to 255.")
    if array.ndim == 3:
        array = np.repeat(array[:, None], 3, axis=1)
    if array.ndim != 4 or 3 not in (array.shape[1], array.shape[3]):
        raise TagspreadError(f"{argument} have shape {array.shape}; give N x H x W x 3, N x 3 x H x W or N x H x W.")
    return array if array.shape[1] == 3 else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _make_dataset(
    store: Store,
    y: np.ndarray,
    classes: tuple[str, ...],
    part: np.ndarray,
    paths: Sequence[Path],
    broken: list[Broken],
    watcher: Watcher,
    root: Path | None = None,
) -> Dataset:
    """Split rows into labeled (at least one known label), unlabeled and test; omit and name broken images."""
    readable = np.ones(len(y), dtype=bool)
    readable[[image.index for image in broken]] = False
    for image in broken[:10]:
        watcher.note(f"left out: {image.path} ({image.reason})")
    if broken:
        watcher.note(f"{len(broken):,} of {len(y):,} images cannot be read and are left out")
    has_label, rows = (y >= 0).any(1), np.arange(len(y))
    return Dataset(
        store,
        y,
        classes,
        labeled=rows[readable & has_label & (part == TRAIN)],
        unlabeled=rows[readable & ~has_label & (part == TRAIN)],
        test=rows[readable & has_label & (part == TEST)],
        names=[str(path) for path in paths],
        files=paths,
        root=root,
    )


def split_of(dataset: Dataset) -> Split:
    """Return the split of a dataset: the part and digest of each image (of its file, or of its pixels in an array)."""
    parts = np.full(len(dataset.store), Part.OMITTED, np.int8)
    for part in (Part.LABELED, Part.UNLABELED, Part.HELD_OUT, Part.TEST, Part.APART):  # apart is also unlabeled
        parts[getattr(dataset, part.label)] = part
    y = np.where((parts == Part.UNLABELED)[:, None], np.int8(-1), dataset.y)
    return Split(dataset.recorded_names(), parts, _digests(dataset), dataset.classes, y)


def _digests(dataset: Dataset) -> Digests:
    """Return the digest of each image; computed once per store."""
    store, files = dataset.store, dataset.files
    digests = _DIGESTS.get(store)
    if digests is None:
        if isinstance(store, ShardedStore):
            own = digest_files(files[part_of(store.processes)]) if len(files) else digest_items(store.local)
            digests = _in_order(store, own)
        else:
            digests = digest_files(files) if len(files) else digest_items(store)
        _DIGESTS[store] = digests
    return digests


def _in_order(store: ShardedStore, own: Digests) -> Digests:
    """Return the digests of all images, of which each process has computed those of its own."""
    width = own.dtype.itemsize
    together = store.in_order(np.arange(len(store)), torch.from_numpy(own.view(np.uint8).reshape(-1, width).copy()))
    digests: Digests = together.numpy().view(own.dtype).reshape(-1)
    return digests


def _check_same_files(processes: Processes, files: Sequence[Path], y: np.ndarray, root: Path | None = None) -> None:
    """Raise unless all processes have found the same images and labels, so that their rows mean the same."""
    if processes.size == 1:
        return
    names = "\0".join(str(file) if root is None else os.path.relpath(file, root) for file in files)
    digest = hashlib.sha256(names.encode("utf-8", "surrogateescape") + np.ascontiguousarray(y).tobytes())
    facts = f"{len(y):,} images, {int((y >= 0).any(1).sum()):,} of them labeled (digest {digest.hexdigest()[:8]})"
    processes.check_same("images or labels", facts)


def check_same_data(folder: RunFolder, dataset: Dataset) -> None:
    """Raise if the run to resume was started on other data; the message names the first images that differ."""
    if not has_split(folder.path):
        return  # the fingerprint in the checkpoint is compared later
    if changes := differences(read_split(folder.path), split_of(dataset)):
        raise TagspreadError(
            f"the run in {folder.path} is of other data: {'; '.join(changes)}. Resume with the data that it was "
            "started on, or start a new run in another folder."
        )


def recorded_dataset(
    run: Path,
    images: str | Path | None,
    *,
    size: int,
    device: torch.device,
    cache: Path | None,
    watcher: Watcher,
    processes: Processes,
) -> Dataset:
    """Load the data that a run was started on from its ``split.csv``, before anything was held out or set apart.

    Args:
        run: the run folder.
        images: the folder of images, if it was moved.
        size: height and width to resize images to.
        device: device to return batches on.
        cache: folder for decoded images.
        watcher: shows the progress.
        processes: the processes that train together; each holds a part of the images.
    """
    record = RunRecord.read(run)
    if not record.has_files:
        raise TagspreadError(
            f"{run} was started from Python with arrays of images, which are not stored; resume it from Python with "
            "the same arrays and resume=True."
        )
    split, root = record.split, record.root(images)
    moved = Both("images=DIR", f"tagspread train DIR --resume {run}")
    if root is not None and not root.is_dir():
        raise TagspreadError(
            f"the folder of images, {root}, no longer exists; if it was moved, give the new one: @moved.", moved=moved
        )
    files = record.files(np.arange(len(split)), images)
    _check_same_files(processes, files, split.y, root)
    store, broken = open_shared_store(files, size, device, processes, cache=cache, progress=watcher.begin("decoding"))
    if len(broken) == len(files):
        raise TagspreadError(
            f"none of the {len(files):,} images of {run} can be read (the first is {files[0]}: {broken[0].reason}); "
            "if they were moved, give the new folder: @moved.",
            moved=moved,
        )
    counts = ", ".join(f"{len(rows):,} {part.label}" for part in Part if len(rows := split.rows(part)))
    watcher.note(f"images and labels as recorded in {run / SPLIT}: {counts}")
    unreadable = [image.index for image in broken]  # check_same_data names those that could be read before
    return Dataset(
        store,
        split.y,
        split.classes,
        # training holds out, and sets apart, the same rows again
        labeled=np.setdiff1d(split.rows(Part.LABELED, Part.HELD_OUT, Part.APART), unreadable),
        unlabeled=np.setdiff1d(split.rows(Part.UNLABELED), unreadable),
        test=np.setdiff1d(split.rows(Part.TEST), unreadable),
        names=[str(file) for file in files],
        files=files,
        root=root,
    )
