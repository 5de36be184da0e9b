"""One run from start to finish: settle what is to be done, train, and leave a folder that tells what was done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tagspread._version import __version__
from tagspread.errors import Blank, TagspreadError
from tagspread.methods import get_method
from tagspread.methods.base import Method
from tagspread.progress import Watcher
from tagspread.run.artefact import is_whole
from tagspread.run.folder import RunFolder
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.finalize import finish
from tagspread.train.frozen import FeatureNet, on_features, whole_model
from tagspread.train.gain import LABELED_ONLY
from tagspread.train.head import fit_head
from tagspread.train.head_mode import as_features, fit_on_features
from tagspread.train.interrupts import Interrupted
from tagspread.train.loop import train_loop
from tagspread.train.preflight import labeled_part, settle
from tagspread.train.state import TrainState
from tagspread.vision.backbones import TagNet, build_network
from tagspread.vision.heads import LinearHead

ALREADY = "{} is already finished; nothing was changed."


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its figures, and one line per epoch."""

    path: Path
    metrics: dict[str, Any]
    log: list[dict[str, Any]]

    def __fspath__(self) -> str:
        """Let a run stand for its folder: ``ts.load(run)``."""
        return str(self.path)


def finished_run(path: str | Path) -> Run | None:
    """Return the run in a folder, if it was finished and nothing of it is missing or damaged; else None."""
    folder = RunFolder(path)
    if not is_whole(path):
        return None
    try:
        lines = (folder.path / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return Run(folder.path, folder.read_json("metrics.json"), [json.loads(line) for line in lines])
    except (OSError, ValueError):
        return None


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of that name; ``"auto"`` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:  # torch would list every kind of device there is
        raise TagspreadError(f"device {name!r} cannot be used; give auto, cpu or cuda.") from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise TagspreadError(f"device {name!r} cannot be used ({reason}); give auto or cpu.") from None
    return device


def run_training(
    dataset: Dataset,
    config: TrainConfig,
    out: str | Path,
    *,
    device: torch.device | None = None,
    overwrite: bool = False,
    resume: bool = False,
    about: dict[str, Any] | None = None,
    watcher: Watcher | None = None,
    tensorboard: bool = False,
    after: str | Path | None = None,
    keep_better: bool = False,
    cache: Path | None = None,
) -> Run:
    """Train on ``dataset`` as ``config`` says and leave everything in the folder ``out``.

    Args:
        dataset: what is to be learnt.
        config: how.
        out: the run's folder; one that holds another run is refused unless ``overwrite`` or ``resume`` is given.
        device: where; the GPU if there is one.
        overwrite: replace a run that is there.
        resume: go on with the run that is there, which must be of the same data and settings.
        about: where the data came from, kept in config.json.
        watcher: who is shown the progress.
        tensorboard: also write the figures of each epoch for TensorBoard.
        after: folder of a finished labeled-only run of the same data and settings, whose end is taken for the end of
            the warm-up, so that several methods share one.
        cache: where features are kept, if the head alone is trained; the run's folder if not given.
        keep_better: let the model that labels alone made be the run's, if it is better on what was kept from training.
    """
    device, watcher, folder = device or choose_device(), watcher or Watcher(), RunFolder(out)
    method = get_method(config.method, **config.method_options)
    dataset, config, notes = settle(dataset, config, method, device)
    if tensorboard:
        _tensorboard_class()
    if resume and folder.is_run and not folder.checkpoint.exists():
        resume, overwrite = False, True  # it was stopped before there was anything to go on from
    gpus = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=gpus):  # the caller's random numbers are the caller's
            torch.manual_seed(config.seed)
            network = _build(dataset, config, method, fresh=not resume)
            if not resume:
                folder.create(overwrite, bytes_needed=13 * _size_in_bytes(network))
                folder.write_json("config.json", _facts(config, about, keep_better))
                for note in notes:
                    watcher.note(f"note: {note}")
            learnt, state = _ready(network, dataset, config, folder, device, watcher, cache, fresh=not resume)
            state.begin_from(resume, None if after is None else RunFolder(after).checkpoint)
            keep_better |= resume and bool(folder.read_json("config.json").get("keep_better"))
            if resume and (done := finished_run(folder.path)) is not None:
                watcher.note(ALREADY.format(folder.path))
                return done
            train_loop(learnt, state, watcher, _recorder(folder, state, tensorboard))
            how: dict[str, Any] = {"keep_better": keep_better, "images": (about or {}).get("images")}
            run = Run(folder.path, finish(dataset, learnt, network, folder, state, **how), state.log)
            folder.forget_previous()
            return run
    except (torch.OutOfMemoryError, MemoryError):
        raise _out_of_memory(device, config) from None
    except KeyboardInterrupt as stop:
        if isinstance(stop, Interrupted) or not folder.is_run:
            raise
        raise Interrupted(str(folder.path)) from None  # before the first step, or at once: going on works all the same
    finally:
        watcher.close()


def _out_of_memory(device: torch.device, config: TrainConfig) -> TagspreadError:
    return TagspreadError(
        f"out of memory on {device}. Lower batch (now {config.batch}), score_batch "
        f"({config.score_batch or 'what suits the device'}) or image_size ({config.image_size}); images can stay on "
        "disk with @cache.",
        cache=Blank("DIR"),
    )


def _ready(
    network: TagNet,
    dataset: Dataset,
    config: TrainConfig,
    folder: RunFolder,
    device: torch.device,
    watcher: Watcher,
    cache: Path | None,
    *,
    fresh: bool,
) -> tuple[Dataset, TrainState]:
    """Return what the student learns from (images, or features of a frozen network), and the student at its start."""
    learnt, student = dataset, network
    views: list[torch.Tensor] = []
    method = get_method(config.method, **config.method_options)
    if config.mode == "head":
        learnt, views = as_features(network, dataset, config, device, cache or folder.path, watcher)
    elif method.on_features:
        learnt = on_features(network, dataset, config, device, cache or folder.path, watcher)
    if learnt is not dataset:
        student = FeatureNet(network)
    keep = partial(_keep_labeled_only, folder, network, student)
    if fresh and config.start == "fitted_head" and config.mode != "head":
        _fit_head(student, learnt, config, method, device, watcher, keep)
    state = TrainState(student, learnt, config, device, folder.checkpoint)
    if fresh and config.mode == "head":
        fit_on_features(student, learnt, views, config, state, keep, watcher)
        folder.write_json("config.json", folder.read_json("config.json") | {"settings": state.config.to_dict()})
    if config.start == "warmup" and config.warmup_epochs:
        state.before_unlabeled = keep
    return learnt, state


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


def _build(dataset: Dataset, config: TrainConfig, method: Method, *, fresh: bool) -> TagNet:
    """Return the network that the method trains; what a checkpoint will bring back anyway is not loaded."""
    frozen = method.on_features or config.mode == "head"  # the checkpoint has the head alone
    network = method.network(
        build_network(
            config.backbone,
            len(dataset.classes),
            weights=config.weights if fresh or frozen else "none",
            head=config.head,
            normalize=config.normalize,
        )
    )
    if config.start == "fitted_head" and not isinstance(network.head, LinearHead):
        raise TagspreadError(
            "start is 'fitted_head', which fits a linear head, but the network has another; choose start 'warmup', and "
            "warmup_epochs."
        )
    return network


def _fit_head(
    network: TagNet,
    dataset: Dataset,
    config: TrainConfig,
    method: Method,
    device: torch.device,
    watcher: Watcher,
    before_unlabeled: Callable[[], None],
) -> None:
    begun = time.perf_counter()
    state = {name: value.to(device) for name, value in method.start(labeled_part(dataset)).items()}
    fit_head(network.to(device), dataset, config, method, state, device, before_unlabeled)
    watcher.note(f"head fitted on the frozen network's features in {time.perf_counter() - begun:.1f} s")


def _keep_labeled_only(folder: RunFolder, network: TagNet, student: TagNet) -> None:
    folder.write_model(LABELED_ONLY, whole_model(network, student))


def _facts(config: TrainConfig, about: dict[str, Any] | None, keep_better: bool) -> dict[str, Any]:
    return {
        "tagspread": __version__, "settings": config.to_dict(), "data": about or {}, "keep_better": keep_better
    }  # fmt: skip


def _size_in_bytes(network: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
