"""Between a data set that is trained on and the ``split.csv`` of its run."""

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
    """Return which image is in which part, with the digests of all files, or of the pixels of arrays."""
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
    """Raise if a run that is to be resumed was started on other data; name the first few images that differ."""
    if not has_split(folder.path):
        return  # the checkpoint has a digest of the data, too
    if found := differences(read_split(folder.path), split_of(dataset)):
        raise TagspreadError(
            f"the run in {folder.path} is of other data: {'; '.join(found)}. Resume with the data it was started on, "
            "or start a new run in another folder."
        )


def recorded_dataset(
    run: Path, images: str | Path | None, *, size: int, device: torch.device, cache: Path | None, watcher: Watcher
) -> Dataset:
    """Return the data that a run was started on, from its ``split.csv``, before anything was held out or set apart.

    Args:
        run: the run's folder.
        images: where the folder of images is now, if it is no longer where training found it.
        size: height and width to bring images to.
        device: where batches are wanted.
        cache: folder for decoded images.
        watcher: who is shown the progress.
    """
    record = RunRecord.read(run)
    if not record.has_files:
        raise TagspreadError(f"{run} was started from Python with its own data; resume it there, with resume=True.")
    split, root = record.split, record.root(images)
    moved = Both("images=DIR", f"tagspread train DIR --resume {run}")
    if root is not None and not root.is_dir():
        raise TagspreadError(
            f"the folder of images, {root}, is no longer there; say where it is now: @moved.", moved=moved
        )
    files = record.files(np.arange(len(split)), images)
    store, broken = open_store(files, size, device, cache=cache, progress=watcher.decoding)
    if len(broken) == len(files):
        raise TagspreadError(
            f"none of the {len(files):,} images of {run} can be read (the first is {files[0]}: {broken[0].reason}); "
            "say where they are now: @moved.",
            moved=moved,
        )
    counts = ", ".join(f"{len(rows):,} {part.label}" for part in Part if len(rows := split.rows(part)))
    watcher.note(f"images and labels are those of {run / SPLIT}: {counts}")
    unreadable = [one.index for one in broken]  # those that could be read before are named when splits are compared
    return Dataset(
        store,
        split.y,
        split.classes,
        # of which training holds out, and sets apart, the same ones again
        labeled=np.setdiff1d(split.rows(Part.LABELED, Part.HELD_OUT, Part.APART), unreadable),
        unlabeled=np.setdiff1d(split.rows(Part.UNLABELED), unreadable),
        test=np.setdiff1d(split.rows(Part.TEST), unreadable),
        names=[str(file) for file in files],
        files=files,
        root=root,
    )
