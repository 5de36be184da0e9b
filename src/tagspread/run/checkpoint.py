"""Checkpoints: all state needed to resume, in one safetensors file that is replaced atomically.

Tensors are stored by name; what is not a tensor travels as JSON in the file's header. No pickle, no code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError
from tagspread.files import Remedy, write_tensors

FORMAT = 2  # raised whenever what is written changes: a checkpoint is for the version that made it


class Checkpoint(NamedTuple):
    """Named tensors and plain facts."""

    tensors: dict[str, Tensor]
    facts: JsonObject

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors of one part, without its prefix."""
        return {name[len(prefix) + 1 :]: value for name, value in self.tensors.items() if name.startswith(prefix + ".")}


def save_checkpoint(path: Path, tensors: dict[str, Tensor], facts: JsonObject) -> None:
    """Write a checkpoint; until it is whole and on the disk, the last one stays."""
    remedy = Remedy("free disk space there or choose another @out. The last good checkpoint is kept", {"out": ...})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TagspreadError(
            f"{path.parent} cannot be written to ({error.strerror}); choose another @out.", out=...
        ) from None
    header = {"tagspread": json.dumps({"format": FORMAT, **facts})}
    write_tensors(path, tensors, header, remedy=remedy)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raise if there is none or it is not one of ours."""
    if not path.is_file():
        raise TagspreadError(
            f"there is no checkpoint at {path}; the run never finished its first epoch. Start it again."
        )
    try:
        with safe_open(path, framework="pt") as opened:
            about = (opened.metadata() or {}).get("tagspread")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise TagspreadError(
            f"{path} is damaged ({error}); start the run again with @overwrite.", overwrite=True
        ) from None
    if about is None:
        raise TagspreadError(f"{path} is not a tagspread checkpoint; resume from the folder of a tagspread run.")
    facts = json.loads(about)
    if facts["format"] > FORMAT:
        raise TagspreadError(f"{path} has format {facts['format']}, this version reads {FORMAT}; update tagspread.")
    if facts["format"] < FORMAT:
        raise TagspreadError(
            f"{path} was written by an older version of tagspread (format {facts['format']}, this version reads "
            f"{FORMAT}); start the run again with @overwrite.",
            overwrite=True,
        )
    return Checkpoint(tensors, facts)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's moments by parameter number and name."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": torch.as_tensor(value) for number, s in state.items() for name, value in s.items()}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """Put moments and settings back; a moment lies in memory as its parameter does, or the fused update refuses it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        laid = torch.empty_like(parameter, dtype=value.dtype).copy_(value) if value.shape == parameter.shape else value
        state.setdefault(int(number), {})[name] = laid
    own = optimizer.state_dict()["param_groups"]
    # JSON knows no tuples
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in groups]
    merged = [{**mine, **saved} for mine, saved in zip(own, groups, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": merged})


def restore_random(saved: Checkpoint, device: torch.device) -> None:
    """Let the random numbers go on where they were."""
    random = saved.under("rng")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"], device)
