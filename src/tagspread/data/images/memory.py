"""How much memory images may take: a share of what is free on the device, or in the machine and its container."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch

GPU_SHARE = 0.5  # of the free memory; the rest is for the model, its gradients and activations
RAM_SHARE = 0.6
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# control groups, version 2 and 1: the limit, what is held of it, and how the files are called that could be dropped
FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def usable_memory(device: torch.device, budget: int | None = None) -> int:
    """Return how many bytes a store may take on a device: a share of what is free, at most ``budget``."""
    if device.type == "cuda":
        usable = int(torch.cuda.mem_get_info(device)[0] * GPU_SHARE)
    else:
        usable = int(min(_free_in_machine(), *_free_in_groups()) * RAM_SHARE)
    return usable if budget is None else min(usable, budget)


def _free_in_machine() -> int:
    try:
        fields = dict(line.split(":", 1) for line in (PROC / "meminfo").read_text(encoding="ascii").splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux; all the memory there is, is the best known guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_in_groups() -> Iterator[float]:
    """Yield what the process's control groups leave it: a container, or a job of a cluster, is killed beyond that."""
    yield math.inf
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kind, group = line.split(":", 2)
        if kind in FILES:
            top = CGROUPS / kind
            here = top / group.lstrip("/")
            for folder in (here, *here.parents):
                if folder.is_relative_to(top):
                    yield _free_in_group(folder, *FILES[kind])


def _free_in_group(folder: Path, limit: str, held: str, droppable: str) -> float:
    try:
        figures = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        most, taken = (int((folder / name).read_text()) for name in (limit, held))
        return max(0, most - taken + int(figures[droppable]))
    except (OSError, ValueError, KeyError):  # no limit here
        return math.inf
