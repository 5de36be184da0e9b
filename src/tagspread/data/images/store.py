"""Where the images live: on the device if they fit, else in memory, else on disk.

The training loop asks a store for rows and gets them on its device; it need not know where they come from.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tagspread.aliases import Progress
from tagspread.core.arrays import as_tensor
from tagspread.data.images.cache import ImageCache
from tagspread.data.images.decode import AnyPath, Broken, Images, check_size, decode_all, shifted
from tagspread.data.images.memory import usable_memory
from tagspread.data.modality import ImageModality, Modality, modality_of
from tagspread.errors import Blank, TagspreadError

T = TypeVar("T")
R = TypeVar("R")

BYTES_AT_ONCE = 2**28  # on the way to a GPU, so that memory need not hold everything as well


class Store(Protocol):
    """What the training loop needs of its data."""

    modality: Modality  # whether these are images or feature vectors
    shape: tuple[int, ...]  # of one item, such as (3, 224, 224)
    device: torch.device  # where batches come to lie
    placement: str  # "device", "pinned" (in memory, copied to a GPU in the background), "memory" or "disk"

    def __len__(self) -> int: ...

    def batch(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return these items, in this order, on the device. Rows are indices on the host; they may repeat."""
        ...

    def describe(self) -> str:
        """Say in a sentence how much lies where."""
        ...


class TensorStore:
    """Items in memory: images (N x C x H x W bytes) or feature vectors (N x d floats).

    They are put on the device if they take at most half its free memory. Otherwise they stay where they are,
    and each batch passes through a small page-locked ("pinned") buffer, from where a GPU fetches it by itself
    while the program goes on.

    Args:
        items: one row per item; the data type is kept.
        device: where batches are wanted.
        budget: bytes the items may take on the device, if less than what is free.

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
        """Return these items, in this order, on the device."""
        index = torch.from_numpy(_check_rows(rows, len(self)))
        if self.items.device.type != "cpu":
            return self.items.index_select(0, _to(index, self.items.device))
        chosen = _staging((len(index), *self.shape), self.items.dtype, self.device)
        torch.index_select(self.items, 0, index, out=chosen)
        return _to(chosen, self.device)

    def describe(self) -> str:
        """Say in a sentence how much lies where."""
        return _describe(self, self.items.nbytes)


class DiskStore:
    """Images read from disk, batch by batch; combine it with :func:`prefetch`.

    Args:
        images: slots x C x H x W bytes, usually the memory map :attr:`ImageCache.images`.
        slots: for each row its slot, or -1 for a row of zeros.
        device: where batches are wanted.
    """

    placement = "disk"

    def __init__(self, images: Images, slots: npt.NDArray[np.int64], device: torch.device | str) -> None:
        self.images = images
        self.slots = np.asarray(slots, dtype=np.int64)
        if self.slots.size and not (self.slots.min() >= -1 and self.slots.max() < len(images)):
            raise TagspreadError(
                f"slots go from {self.slots.min()} to {self.slots.max()}, but there are {len(images)} images; "
                "give the slots that came with them."
            )
        self.device = torch.device(device)
        self.shape = tuple(images.shape[1:])
        self.modality: Modality = ImageModality(self.shape)

    def __len__(self) -> int:
        return len(self.slots)

    def batch(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return these items, in this order, on the device."""
        checked = _check_rows(rows, len(self))
        chosen = _staging((len(checked), *self.shape), torch.uint8, self.device)
        self.read(checked, chosen.numpy())
        return _to(chosen, self.device)

    def read(self, rows: npt.NDArray[np.int64], out: Images) -> None:
        """Copy items into ``out``, reading the file from front to back whatever the order of the rows."""
        slots = self.slots[rows]
        for at in np.argsort(slots, kind="stable"):
            out[at] = self.images[slots[at]] if slots[at] >= 0 else 0

    def describe(self) -> str:
        """Say in a sentence how much lies where."""
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
    """Decode images, each once, and keep them as near to the device as they fit.

    The store has one row for every path, so that row numbers stay those of the caller's table. Rows of
    broken images hold zeros; the caller must leave them out.

    Args:
        paths: the files.
        size: height and width to bring them to.
        device: where batches are wanted.
        cache: folder in which decoded images are kept for later runs; needed if they do not fit in memory.
        budget: bytes the store may take on the device, and in memory, if less than what is free.
        progress: called with (done, total) while decoding.
        workers: how many threads decode; by default one per available core.

    Raises:
        TagspreadError: before any work, if the images fit nowhere and there is no cache folder.
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
            broken += [one._replace(index=one.index + at) for one in failed]
        if on_device:
            part.copy_(host)
    return TensorStore(items, device, budget=budget), broken


def prefetch(make: Callable[[T], R], items: Iterable[T], ahead: int = 1) -> Iterator[R]:
    """Yield ``make(item)`` for each item, in order, while a thread already makes the next ``ahead`` ones.

    An exception comes out where its result would have. The thread ends with the iterator: when it is
    exhausted, closed or dropped.

    >>> list(prefetch(str.upper, ["a", "b", "c"]))
    ['A', 'B', 'C']
    """
    if ahead < 1:
        raise TagspreadError(f"ahead is {ahead}; make at least 1 item ahead.")
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
    except Exception as error:  # the items before it are still to come out first
        failed: Future[R] = Future()
        failed.set_exception(error)
        yield failed


def _check_rows(rows: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    checked = np.ascontiguousarray(rows, dtype=np.int64)
    if checked.ndim != 1 or (checked.size and not (checked.min() >= 0 and checked.max() < count)):
        raise TagspreadError(f"rows are {rows!r}; give a list of indices from 0 to {count - 1}.")
    return checked


def _staging(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # only from pinned memory can a GPU copy in the background; torch keeps such buffers for later batches,
    # and hands none out again before its copy is done
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
        f"{_amount(usable)} are to be had in memory. Give a folder with @cache, or a smaller @image_size.",
        **{"cache": Blank("DIR"), "image_size": ...},
    )
