"""One run from start to finish: check everything first, train, and leave a folder that tells what was done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tagspread._version import __version__
from tagspread.core.metrics import mean_average_precision, mean_average_precision_interval
from tagspread.errors import TagspreadError
from tagspread.methods import get_method
from tagspread.methods.base import Labelled, Method
from tagspread.train.checkpoint import load_checkpoint
from tagspread.train.config import LOSSES, TrainConfig
from tagspread.train.console import Watcher
from tagspread.train.folder import RunFolder
from tagspread.train.head import fit_head
from tagspread.train.loop import train_loop
from tagspread.train.problem import Problem
from tagspread.train.stages import plan_stages, size_notes
from tagspread.train.state import TrainState
from tagspread.vision.backbones import TagNet, build_network


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its figures, and one line per epoch."""

    path: Path
    metrics: dict[str, Any]
    log: list[dict[str, Any]]


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of that name; ``"auto"`` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TagspreadError(f"device {name!r} cannot be used ({reason}); try 'cpu' or 'auto'.") from None
    return device


def run_training(
    problem: Problem,
    config: TrainConfig,
    out: str | Path,
    *,
    device: torch.device | None = None,
    overwrite: bool = False,
    resume: bool = False,
    about: dict[str, Any] | None = None,
    watcher: Watcher | None = None,
    tensorboard: bool = False,
) -> Run:
    """Train on ``problem`` as ``config`` says and leave everything in the folder ``out``.

    Args:
        problem: what is to be learnt.
        config: how.
        out: the run's folder; one that holds another run is refused unless ``overwrite`` or ``resume`` is given.
        device: where; the GPU if there is one.
        overwrite: replace a run that is there.
        resume: go on with the run that is there, which must be of the same data and settings.
        about: where the data came from, kept in config.json.
        watcher: who is shown the progress.
        tensorboard: also write the figures of each epoch for TensorBoard.
    """
    device, watcher, folder = device or choose_device(), watcher or Watcher(), RunFolder(out)
    method = get_method(config.method, **config.method_options)
    if config.selection == "held_out":
        problem = problem.hold_out(config.held_out, config.seed)
    if config.selection == "test_best" and not len(problem.test):
        raise TagspreadError("selection is 'test_best' but there is no test part; give one, or choose 'last'.")
    notes = _check_everything(problem, config, method)
    if tensorboard:
        _tensorboard_class()
    if resume and folder.is_run and not folder.checkpoint.exists():
        resume, overwrite = False, True  # it was stopped before there was anything to go on from
    gpus = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=gpus):  # the caller's random numbers are the caller's
            torch.manual_seed(config.seed)
            if resume:
                state = _restored(problem, config, folder, device)
            else:
                network = _build(problem, config)
                folder.create(overwrite, bytes_needed=12 * _size_in_bytes(network))
                folder.write_json("config.json", _facts(config, about))
                for note in notes:
                    watcher.note(f"note: {note}")
                state = _fresh(network, problem, config, folder, device, watcher)
                state.save()
            train_loop(problem, state, watcher, _recorder(folder, state, tensorboard))
            return _finish(problem, config, folder, state)
    except (torch.OutOfMemoryError, MemoryError):
        raise TagspreadError(
            f"out of memory on {device}. Lower batch (now {config.batch}), score_batch ({config.score_batch}) or "
            f"image_size ({config.image_size}); pictures can stay on disk with --cache DIR."
        ) from None
    finally:
        watcher.close()


def _recorder(folder: RunFolder, state: TrainState, tensorboard: bool) -> Callable[[dict[str, Any]], None]:
    """Return what writes an epoch's line down: into log.jsonl, and for TensorBoard if that is wanted."""
    writer = _tensorboard_class()(folder.path / "tensorboard") if tensorboard else None

    def write_down(line: dict[str, Any]) -> None:
        folder.write_log(state.log)
        if writer is not None:
            for name, value in line.items():
                if isinstance(value, int | float):
                    writer.add_scalar(name, value, line["epoch"])
            writer.flush()

    return write_down


def _tensorboard_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TagspreadError(
            "TensorBoard is not installed; pip install 'tagspread[tensorboard]', or leave it out."
        ) from None
    return SummaryWriter


def _check_everything(problem: Problem, config: TrainConfig, method: Method) -> list[str]:
    """Raise for whatever can be found wrong before anything is built or written; return notes for a person."""
    notes = problem.check_trainable(method.uses_pile) + size_notes(problem, config)
    plan_stages(problem, config, method)
    method.start(Labelled(torch.from_numpy(problem.y[problem.labelled]), problem.classes))
    if config.start == "fitted_head" and config.head != "linear":
        raise TagspreadError(
            "start is 'fitted_head', which fits a linear head; choose head 'linear' or start 'warmup'."
        )
    try:
        LOSSES[method.labelled_loss or config.loss](torch.zeros(1, 1), torch.zeros(1, 1), **config.loss_options)
    except TypeError as error:
        raise TagspreadError(f"loss_options do not fit the loss {config.loss!r} ({error}).") from None
    return notes


def _build(problem: Problem, config: TrainConfig, weights: str | None = None) -> TagNet:
    return build_network(
        config.backbone,
        len(problem.classes),
        weights=weights or config.weights,
        head=config.head,
        normalize=config.normalize,
    )


def _fresh(
    network: TagNet, problem: Problem, config: TrainConfig, folder: RunFolder, device: torch.device, watcher: Watcher
) -> TrainState:
    network.to(device)
    if config.start == "fitted_head":
        method = get_method(config.method, **config.method_options)
        labelled = Labelled(torch.from_numpy(problem.y[problem.labelled]), problem.classes)
        begun = time.perf_counter()
        fit_head(network, problem, config, method, method.start(labelled), device)
        watcher.note(f"head fitted on the frozen network's features in {time.perf_counter() - begun:.1f} s")
    return TrainState(network, problem, config, device, folder.checkpoint)


def _restored(problem: Problem, config: TrainConfig, folder: RunFolder, device: torch.device) -> TrainState:
    saved = load_checkpoint(folder.checkpoint)
    state = TrainState(_build(problem, config, weights="none"), problem, config, device, folder.checkpoint)
    state.restore(saved)
    return state


def _finish(problem: Problem, config: TrainConfig, folder: RunFolder, state: TrainState) -> Run:
    """Choose the model as the selection says, measure it once, write everything down."""
    folder.write_log(state.log)
    folder.write_model("model.safetensors", state.student.state_dict())
    folder.write_model("ema.safetensors", state.ema.model.state_dict())
    chosen, which = state.ema.model, "ema"
    if state.best:
        chosen.load_state_dict(state.best)
        which = [line["best_is"] for line in state.log if "best_is" in line][-1]
        folder.write_model("best.safetensors", chosen.state_dict())
    seconds = sum(line["seconds"] for line in state.log)
    metrics: dict[str, Any] = {"selection": config.selection, "network": which, "seconds": round(seconds, 1)}
    if config.selection != "last":
        metrics["warning"] = {
            "test_best": "chosen on the test part, as the published code does: optimistic, for comparison only",
            "held_out": "the held-out figure is of the part the model was chosen on: optimistic",
        }[config.selection]
    for part, rows in (("test", problem.test), ("held_out", problem.held_out)):
        if not len(rows):
            continue
        scores = state.score(chosen, problem.store, rows)
        truth = torch.from_numpy(problem.y[rows]).to(state.device)
        value, skipped = mean_average_precision(scores, truth, return_skipped=True)
        known = not math.isnan(value)  # no class has a positive there
        metrics[part] = {
            "mAP": value if known else None,
            "interval_90": mean_average_precision_interval(scores, truth, samples=200) if known else None,
            "classes_without_positive": skipped,
            "pictures": len(rows),
        }
    folder.write_json("metrics.json", metrics)
    if state.targets is not None:
        names = [problem.name(int(row)) for row in problem.pile]
        folder.write_pseudo_labels(names, problem.classes, state.targets.labels.cpu().numpy())
    folder.write_json("labels.json", _labels(problem, config, state))
    return Run(folder.path, metrics, state.log)


def _labels(problem: Problem, config: TrainConfig, state: TrainState) -> dict[str, Any]:
    return {
        "classes": list(problem.classes),
        "preprocessing": {
            "image_size": problem.store.shape[-1],
            "scale": state.student.scale.flatten().tolist(),
            "shift": state.student.shift.flatten().tolist(),
        },
        "backbone": config.backbone,
        "head": config.head,
    }


def _facts(config: TrainConfig, about: dict[str, Any] | None) -> dict[str, Any]:
    return {"tagspread": __version__, "settings": config.to_dict(), "data": about or {}}


def _size_in_bytes(network: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
