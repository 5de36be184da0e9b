"""Memory limits: how many bytes images may take on a GPU, in the machine or in its container."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch

GPU_SHARE = 0.5  # of free GPU memory; the model, its gradients and activations need the rest
RAM_SHARE = 0.6
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# control groups, version 2 and 1: file of the limit, file of the usage, key of the page cache that can be dropped
FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


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
        if kind in FILES:
            top = CGROUPS / kind
            own = top / group.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(top):
                    yield _free_in_group(folder, *FILES[kind])


def _free_in_group(folder: Path, limit: str, usage: str, droppable: str) -> float:
    try:
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        maximum, used = (int((folder / name).read_text()) for name in (limit, usage))
        return max(0, maximum - used + int(statistics[droppable]))
    except (OSError, ValueError, KeyError):  # no limit in this group
        return math.inf
