"""Image and feature stores: batches from GPU memory if the items fit there, else from main memory, else from disk.

The training loop asks a store for rows and gets a batch on its device, wherever the items are stored. The memory that
a store may use is limited by the GPU, by the machine, and by the control group of a container.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tagspread.aliases import Progress
from tagspread.core.arrays import as_tensor
from tagspread.data.images.cache import ImageCache
from tagspread.data.images.decode import AnyPath, Broken, Images, check_size, decode_all, shifted
from tagspread.data.modality import ImageModality, Modality, modality_of
from tagspread.errors import Blank, TagspreadError

GPU_SHARE = 0.5  # of free GPU memory; the model, its gradients and activations need the rest
RAM_SHARE = 0.6
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# control groups, version 2 and 1: file of the limit, file of the usage, key of the page cache that can be dropped
CGROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
T = TypeVar("T")
R = TypeVar("R")
BYTES_AT_ONCE = 2**28  # size of a chunk copied to a GPU, so that main memory need not hold all images


def usable_memory(device: torch.device, budget: int | None = None) -> int:
    """Return how many bytes a store may take on a device: a share of the free memory, at most ``budget``."""
    if device.type == "cuda":
        usable = int(torch.cuda.mem_get_info(device)[0] * GPU_SHARE)
    else:
        usable = int(min(_free_in_machine(), *_free_in_groups()) * RAM_SHARE)
    return usable if budget is None else min(usable, budget)


def _free_in_machine() -> int:
    try:
        fields = dict(line.split(":", 1) for line in (PROC / "meminfo").read_text(encoding="ascii").splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux: assume that all memory is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_in_groups() -> Iterator[float]:
    """Yield the free memory of each control group of the process (containers and cluster jobs)."""
    yield math.inf
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kind, group = line.split(":", 2)
        if kind in CGROUP_FILES:
            top = CGROUPS / kind
            own = top / group.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(top):
                    yield _free_in_group(folder, *CGROUP_FILES[kind])


def _free_in_group(folder: Path, limit: str, usage: str, droppable: str) -> float:
    try:
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        maximum, used = (int((folder / name).read_text()) for name in (limit, usage))
        return max(0, maximum - used + int(statistics[droppable]))
    except (OSError, ValueError, KeyError):  # no limit in this group
        return math.inf


class Store(Protocol):
    """Protocol of the data source of the training loop."""

    modality: Modality  # images or feature vectors
    shape: tuple[int, ...]  # of one item, such as (3, 224, 224)
    device: torch.device  # device of the batches
    placement: str  # "device", "pinned" (in memory, copied to a GPU in the background), "memory" or "disk"

    def __len__(self) -> int: ...

    def batch(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return the items of ``rows``, in this order, on the device. Rows are CPU indices and may repeat."""
        ...

    def describe(self) -> str:
        """Describe the number, size and placement of the items."""
        ...


class TensorStore:
    """Store of items in memory: images (N x C x H x W bytes) or feature vectors (N x d floats).

    The items are moved to the device if they take at most half its free memory. Otherwise they stay in main memory, and
    each batch is copied to a GPU asynchronously through a small page-locked ("pinned") buffer.

    Args:
        items: one row per item; the data type is kept.
        device: device of the batches.
        budget: most bytes that the items may take on the device, if less than what is free.

    >>> store = TensorStore(np.arange(6.0).reshape(3, 2), "cpu")
    >>> store.batch(np.array([2, 0, 2])).tolist()
    [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]
    >>> store.describe()
    '3 feature vectors, 48 bytes, in memory'
    """

    def __init__(
        self, items: Tensor | npt.NDArray[np.generic], device: torch.device | str, *, budget: int | None = None
    ) -> None:
        given = as_tensor("items", items)
        if given.ndim < 2:
            raise TagspreadError(f"items have shape {tuple(given.shape)}; give one row per item, such as N x d.")
        self.device = torch.device(device)
        if given.device.type == self.device.type or given.nbytes <= usable_memory(self.device, budget):
            given = given.to(self.device)
        self.items = given
        self.shape = tuple(given.shape[1:])
        self.modality = modality_of(self.shape)
        host = "pinned" if self.device.type == "cuda" else "memory"
        self.placement = host if given.device.type == "cpu" else "device"

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return the items of ``rows``, in this order, on the device."""
        index = torch.from_numpy(_check_rows(rows, len(self)))
        if self.items.device.type != "cpu":
            return self.items.index_select(0, _to(index, self.items.device))
        chosen = _staging((len(index), *self.shape), self.items.dtype, self.device)
        torch.index_select(self.items, 0, index, out=chosen)
        return _to(chosen, self.device)

    def describe(self) -> str:
        """Describe the number, size and placement of the items."""
        return _describe(self, self.items.nbytes)


class DiskStore:
    """Store that reads images from disk batch by batch; combine it with :func:`prefetch`.

    Args:
        images: slots x C x H x W bytes, usually the memory map :attr:`ImageCache.images`.
        slots: slot of each row, or -1 for a row of zeros.
        device: device of the batches.
    """

    placement = "disk"

    def __init__(self, images: Images, slots: npt.NDArray[np.int64], device: torch.device | str) -> None:
        self.images = images
        self.slots = np.asarray(slots, dtype=np.int64)
        if self.slots.size and not (self.slots.min() >= -1 and self.slots.max() < len(images)):
            raise TagspreadError(
                f"slots range from {self.slots.min()} to {self.slots.max()}, but there are {len(images)} images; "
                "give the slots that belong to these images."
            )
        self.device = torch.device(device)
        self.shape = tuple(images.shape[1:])
        self.modality: Modality = ImageModality(self.shape)

    def __len__(self) -> int:
        return len(self.slots)

    def batch(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return the items of ``rows``, in this order, on the device."""
        checked = _check_rows(rows, len(self))
        chosen = _staging((len(checked), *self.shape), torch.uint8, self.device)
        self.read(checked, chosen.numpy())
        return _to(chosen, self.device)

    def read(self, rows: npt.NDArray[np.int64], out: Images) -> None:
        """Copy items into ``out``; read the file from front to back for any order of rows."""
        slots = self.slots[rows]
        for at in np.argsort(slots, kind="stable"):
            out[at] = self.images[slots[at]] if slots[at] >= 0 else 0

    def describe(self) -> str:
        """Describe the number, size and placement of the items."""
        return _describe(self, len(self) * math.prod(self.shape))


def open_store(
    paths: Sequence[AnyPath],
    size: int,
    device: torch.device | str,
    *,
    cache: AnyPath | None = None,
    budget: int | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> tuple[Store, list[Broken]]:
    """Decode each image once and store all of them on the device, in memory or on disk, where they fit first.

    The store has one row for every path, so that row numbers are those of the caller's table. Rows of unreadable images
    hold zeros; the caller must leave them out.

    Args:
        paths: the files.
        size: height and width of the decoded images.
        device: device of the batches.
        cache: folder that keeps decoded images for later runs; required if they do not fit in memory.
        budget: most bytes that the store may take on the device, and in memory, if less than what is free.
        progress: called with (done, total) while decoding.
        workers: number of decoding threads; by default one per available core.

    Raises:
        TagspreadError: before decoding, if the images do not fit in memory and there is no cache folder.
    """
    check_size(size)
    device = torch.device(device)
    shape = (len(paths), 3, size, size)
    on_device = device.type != "cpu" and math.prod(shape) <= usable_memory(device, budget)
    fits = on_device or math.prod(shape) <= usable_memory(torch.device("cpu"), budget)
    if cache is None and not fits:
        raise _too_many(shape, device, budget)

    disk = None
    broken: list[Broken] = []
    if cache is not None:
        images = ImageCache(cache, size)
        slots, broken = images.add(paths, progress, workers)
        disk = DiskStore(images.images, slots, device)
        if not fits:
            return disk, broken

    items = torch.zeros(shape, dtype=torch.uint8, device=device if on_device else "cpu")
    step = max(1, BYTES_AT_ONCE // math.prod(shape[1:]))
    for at in range(0, len(paths), step):
        part = items[at : at + step]
        host = torch.zeros_like(part, device="cpu") if on_device else part
        if disk is not None:
            disk.read(np.arange(at, at + len(part)), host.numpy())
        else:
            report = shifted(progress, at, len(paths))
            failed = decode_all(paths[at : at + step], size, host.numpy(), workers, report)
            broken += [image._replace(index=image.index + at) for image in failed]
        if on_device:
            part.copy_(host)
    return TensorStore(items, device, budget=budget), broken


def prefetch(make: Callable[[T], R], items: Iterable[T], ahead: int = 1) -> Iterator[R]:
    """Yield ``make(item)`` for each item, in order, while a thread computes the next ``ahead`` results.

    An exception is raised in place of its result. The thread ends when the iterator is exhausted, closed or
    garbage-collected.

    >>> list(prefetch(str.upper, ["a", "b", "c"]))
    ['A', 'B', 'C']
    """
    if ahead < 1:
        raise TagspreadError(f"ahead is {ahead}; give at least 1.")
    pool = ThreadPoolExecutor(1, thread_name_prefix="tagspread-prefetch")
    pending: deque[Future[R]] = deque()
    try:
        for future in _submit_all(pool, make, items):
            pending.append(future)
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _submit_all(pool: ThreadPoolExecutor, make: Callable[[T], R], items: Iterable[T]) -> Iterator[Future[R]]:
    try:
        for item in items:
            yield pool.submit(make, item)
    except Exception as error:  # yield the results of earlier items first
        failed: Future[R] = Future()
        failed.set_exception(error)
        yield failed


def _check_rows(rows: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    checked = np.ascontiguousarray(rows, dtype=np.int64)
    if checked.ndim != 1 or (checked.size and not (checked.min() >= 0 and checked.max() < count)):
        raise TagspreadError(f"rows are {rows!r}; give a list of indices from 0 to {count - 1}.")
    return checked


def _staging(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # a GPU copies asynchronously from pinned memory only; torch reuses such buffers, but not before their copy is done
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def _to(batch: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return batch.to(device)
    return (batch if batch.is_pinned() else batch.pin_memory()).to(device, non_blocking=True)


def _describe(store: Store, nbytes: int) -> str:
    where = {
        "device": "on the GPU" if store.device.type == "cuda" else f"on the device {store.device.type}",
        "pinned": "in memory, copied to the GPU batch by batch",
        "memory": "in memory",
        "disk": "read from disk batch by batch",
    }[store.placement]
    return f"{len(store):,} {store.modality.noun}, {_amount(nbytes)}, {where}"


def _amount(nbytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if nbytes >= unit / 10:
            return f"{nbytes / unit:,.1f} {name}"
    return f"{int(nbytes):,} bytes"


def _too_many(shape: tuple[int, ...], device: torch.device, budget: int | None) -> TagspreadError:
    usable = max(usable_memory(torch.device("cpu"), budget), usable_memory(device, budget))
    return TagspreadError(
        f"{shape[0]:,} images of {shape[2]} x {shape[3]} pixels need {_amount(math.prod(shape))}, but "
        f"only {_amount(usable)} are available. Give a folder with @cache, or a smaller @image_size.",
        **{"cache": Blank("DIR"), "image_size": ...},
    )
