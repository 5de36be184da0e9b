"""Checkpoints: save, load and resume the complete training state in one safetensors file, replaced atomically.

Tensors are stored by name. All other values are stored as JSON in the file's header. No pickle is used, so loading a
checkpoint executes no code.
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
from tagspread.run import schema

RESTART = "start the run again with --overwrite"
FORMAT = 2  # increased with each change of the contents; a version reads only its own format


class Checkpoint(NamedTuple):
    """The contents of a checkpoint: tensors by name, and plain values (``facts``)."""

    tensors: dict[str, Tensor]
    facts: JsonObject

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names start with ``prefix.``, with the prefix removed."""
        return {name[len(prefix) + 1 :]: value for name, value in self.tensors.items() if name.startswith(prefix + ".")}


def save_checkpoint(path: Path, tensors: dict[str, Tensor], facts: JsonObject) -> None:
    """Write a checkpoint; the previous one stays until the new one is complete and flushed to disk."""
    remedy = Remedy("free disk space there or choose another @out. The previous checkpoint is kept", {"out": ...})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TagspreadError(
            f"{path.parent} cannot be written to ({error.strerror}); choose another @out.", out=...
        ) from None
    header = {"tagspread": json.dumps({"format": FORMAT, **facts})}
    write_tensors(path, tensors, header, remedy=remedy)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raise if it is missing, damaged or of another format."""
    if not path.is_file():
        raise TagspreadError(
            f"there is no checkpoint at {path}: training has not started or the file was removed. Start the run again."
        )
    try:
        with safe_open(path, framework="pt") as opened:
            header = (opened.metadata() or {}).get("tagspread")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise TagspreadError(
            f"{path} is damaged ({error}); start the run again with @overwrite.", overwrite=True
        ) from None
    if header is None:
        raise TagspreadError(f"{path} is not a tagspread checkpoint; give a run folder to resume.")
    facts = schema.parse_object(header, path, RESTART)
    if not isinstance(facts.get("format"), int):
        raise TagspreadError(f"{path} has no format number; {RESTART}.")
    if facts["format"] > FORMAT:
        raise TagspreadError(
            f"{path} has format {facts['format']}, but this version reads format {FORMAT}; update tagspread."
        )
    if facts["format"] < FORMAT:
        raise TagspreadError(
            f"{path} was written by an older version of tagspread (format {facts['format']}, this version reads "
            f"format {FORMAT}); start the run again with @overwrite.",
            overwrite=True,
        )
    schema.validate(facts, schema.CHECKPOINT, path, RESTART)
    return Checkpoint(tensors, facts)


def job_of_checkpoint(path: Path) -> str | None:
    """Return the job of ``torchrun`` that wrote a checkpoint; None if there is no checkpoint that can be read."""
    try:
        with safe_open(path, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {}).get("tagspread", "{}"))
    except (SafetensorError, OSError, ValueError):
        return None
    return str(facts.get("job", "")) if isinstance(facts, dict) else None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state (moments and step counts), with keys ``parameter number.name``."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": torch.as_tensor(value) for number, s in state.items() for name, value in s.items()}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """Restore the state and settings of an optimizer.

    Each moment gets the memory layout of its parameter, which the fused optimizer requires.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        moment = (
            torch.empty_like(parameter, dtype=value.dtype).copy_(value) if value.shape == parameter.shape else value
        )
        state.setdefault(int(number), {})[name] = moment
    current = optimizer.state_dict()["param_groups"]
    # JSON has no tuples
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in groups]
    merged = [{**group, **saved} for group, saved in zip(current, groups, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": merged})


def restore_random(saved: Checkpoint, device: torch.device) -> None:
    """Restore the state of the random number generators."""
    random = saved.under("rng")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"], device)
