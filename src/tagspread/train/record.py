"""Convert a training dataset to the ``split.csv`` of its run and back: resume a run on the same images and labels."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch

from tagspread.data.images.store import Store, open_store
from tagspread.errors import Both, TagspreadError
from tagspread.progress import Watcher
from tagspread.run.fingerprints import Digests, digest_files, digest_items
from tagspread.run.folder import RunFolder
from tagspread.run.record import RunRecord
from tagspread.run.split import FILE as SPLIT
from tagspread.run.split import Part, Split, differences, has_split, read_split
from tagspread.train.dataset import Dataset

_DIGESTS: WeakKeyDictionary[Store, Digests] = WeakKeyDictionary()  # many runs of a benchmark share one store


def split_of(dataset: Dataset) -> Split:
    """Return the split of a dataset: the part and digest of each image (of its file, or of its pixels in an array)."""
    parts = np.full(len(dataset.store), Part.OMITTED, np.int8)
    for part in (Part.LABELED, Part.UNLABELED, Part.HELD_OUT, Part.TEST, Part.APART):  # apart is also unlabeled
        parts[getattr(dataset, part.label)] = part
    digests = _DIGESTS.get(dataset.store)
    if digests is None:
        digests = digest_files(dataset.files) if len(dataset.files) else digest_items(dataset.store)
        _DIGESTS[dataset.store] = digests
    y = np.where((parts == Part.UNLABELED)[:, None], np.int8(-1), dataset.y)
    return Split(dataset.recorded_names(), parts, digests, dataset.classes, y)


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
    run: Path, images: str | Path | None, *, size: int, device: torch.device, cache: Path | None, watcher: Watcher
) -> Dataset:
    """Load the data that a run was started on from its ``split.csv``, before anything was held out or set apart.

    Args:
        run: the run folder.
        images: the folder of images, if it was moved.
        size: height and width to resize images to.
        device: device to return batches on.
        cache: folder for decoded images.
        watcher: shows the progress.
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
    store, broken = open_store(files, size, device, cache=cache, progress=watcher.decoding)
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
