"""Store whose rows are divided among processes; each holds its part, and the others get from it what they ask for.

Process r of N holds the rows r, r + N, r + 2N, ... of the data set. Scoring runs where the rows are
(:meth:`ShardedStore.gathered`). Training batches are a function of seed and step, however many processes there are;
each process asks for its rows of a batch, and the owners send them (:meth:`ShardedStore.batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tagspread.aliases import Progress
from tagspread.data.images.decode import AnyPath, Broken
from tagspread.data.images.store import Store, open_store, prefetch, usable_memory
from tagspread.errors import TagspreadError
from tagspread.train.distributed import Processes

Rows = npt.NDArray[np.int64]


class ShardedStore:
    """The rows of all processes. Each method except ``len`` is called by all processes together.

    Args:
        local: the rows of this process.
        total: number of rows in all processes.
        processes: the processes.
    """

    placement = "shared"

    def __init__(self, local: Store, total: int, processes: Processes) -> None:
        self.local, self.processes, self._total = local, processes, total
        self.modality, self.shape, self.device = local.modality, local.shape, local.device

    def __len__(self) -> int:
        return self._total

    def batch(self, rows: Rows) -> Tensor:
        """Return the items of ``rows``, in this order, on the device; each process may ask for other rows."""
        (items,) = self.batches([rows])
        return items

    def batches(self, parts: Sequence[Rows]) -> Iterator[Tensor]:
        """Yield the items of each part; all processes ask for equally many parts."""
        size, rank = self.processes.size, self.processes.rank
        lengths = self.processes.gather(torch.tensor([len(part) for part in parts]))
        rows = self.processes.gather(torch.from_numpy(np.concatenate([np.empty(0, np.int64), *parts])))
        wanted = [torch.split(each, length.tolist()) for each, length in zip(rows, lengths, strict=True)]
        sent = [[part[i][part[i] % size == rank] // size for part in wanted] for i in range(len(parts))]
        own_rows = [torch.cat(each).numpy() for each in sent]
        read = self.local.batch
        loaded = prefetch(read, own_rows) if self.local.placement == "disk" else map(read, own_rows)
        for part, items, to_each in zip(parts, loaded, sent, strict=True):
            owners = part % size
            counts = np.bincount(owners, minlength=size).tolist()
            received = self.processes.exchange(items, [len(each) for each in to_each], counts)
            order = torch.from_numpy(np.argsort(np.argsort(owners, kind="stable"))).to(received.device)
            yield received[order]

    def gathered(self, rows: Rows, compute: Callable[[Store, Rows], Tensor], *, first_only: bool = False) -> Tensor:
        """Compute something about each row where it is, and return the results in the order of ``rows``.

        Args:
            rows: rows of the store, the same in all processes.
            compute: returns one row of results for each of some rows of a store.
            first_only: return no rows except in the first process.
        """
        own = rows[self.own(rows)] // self.processes.size
        # a process without any of the rows computes one that is not used, to know the shape of the results
        results = compute(self.local, own if len(own) else np.zeros(1, np.int64))[: len(own)]
        return self.in_order(rows, results, first_only=first_only)

    def in_order(self, rows: Rows, results: Tensor, *, first_only: bool = False) -> Tensor:
        """Return the results for ``rows``, of which each process has those of its own rows."""
        parts = self.processes.gather(results, first_only=first_only)
        if first_only and not self.processes.is_first:
            return results[:0]
        together = results.new_empty(len(rows), *results.shape[1:])
        for owner, part in enumerate(parts):
            is_its = torch.from_numpy(rows % self.processes.size == owner)
            together[is_its.to(together.device)] = part
        return together

    def own(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which of the rows this process holds."""
        held: npt.NDArray[np.bool_] = rows % self.processes.size == self.processes.rank
        return held

    def describe(self) -> str:
        """Describe the number of items, and the part of this process."""
        everything = f"{len(self):,} {self.modality.noun} in {self.processes.size} processes"
        return f"{everything}; in this one {self.local.describe()}"


def share_store(local: Store, total: int, processes: Processes) -> Store:
    """Return the store of all processes from the part of each; the store itself if there is one process."""
    return local if processes.size == 1 else ShardedStore(local, total, processes)


def part_of(processes: Processes) -> slice:
    """Return which of all rows this process holds."""
    return slice(processes.rank, None, processes.size)


def open_shared_store(
    paths: Sequence[AnyPath],
    size: int,
    device: torch.device,
    processes: Processes,
    *,
    cache: AnyPath | None = None,
    progress: Progress | None = None,
) -> tuple[Store, list[Broken]]:
    """Open the images as :func:`tagspread.data.images.store.open_store` does; each process decodes its part."""
    if processes.size == 1:
        return open_store(paths, size, device, cache=cache, progress=progress)
    if len(paths) < processes.size:
        raise TagspreadError(f"there are {len(paths)} images but {processes.size} processes; start fewer processes.")
    # the processes of a host share its memory; each GPU belongs to one process
    budget = usable_memory(device) // (processes.host_size if device.type == "cpu" else 1)
    local, broken = open_store(paths[part_of(processes)], size, device, cache=cache, budget=budget, progress=progress)
    own = [image._replace(index=image.index * processes.size + processes.rank) for image in broken]
    everyone = [image for each in processes.collect(own) for image in each]
    return ShardedStore(local, len(paths), processes), sorted(everyone, key=lambda image: image.index)
