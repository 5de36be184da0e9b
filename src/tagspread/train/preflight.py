"""Preflight checks: build the experiment once and validate settings, method and data before anything is written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature

import torch
from torch import Tensor

from tagspread.errors import TagspreadError, did_you_mean
from tagspread.linear.rounds import check_method
from tagspread.methods import METHODS, get_method
from tagspread.methods.base import Labeled, Method, check_targets
from tagspread.train.config import LOSSES, TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.distributed import Processes
from tagspread.train.experiment import Experiment, plan_stages, size_notes
from tagspread.vision.backbones import Backbone, TagNet, add_head, build_backbone
from tagspread.vision.heads import LinearHead

MAX_REHEARSED_SCORES = 10**7
ARGUMENTS_OF_LOSSES = ("logits", "targets", "weight", "reduction")  # arguments that are not options of the user
NO_GPU = (
    "there is no GPU, so the network stays frozen and a linear head is fitted on its features; --mode full trains the "
    "whole network, which takes much longer."
)
UNTRAINED = (
    "{} begins with random weights, and mode 'head' does not train them, so its features mean little. Use a pretrained "
    "network, or mode 'full'."
)


@dataclass(frozen=True)
class SeededBackbone:
    """A network without its head, and the CPU random state after it was built, from which the head is built."""

    backbone: Backbone
    random_state: Tensor


def seeded_backbone(config: TrainConfig, weights: str | None = None) -> SeededBackbone:
    """Build the network without its head, which depends on the data; the caller's random state does not change.

    Built before images are decoded, it finds wrong weights or a failed download early.

    Args:
        config: the settings.
        weights: override ``config.weights``.
    """
    with _forked_rng() as generator:
        generator.manual_seed(config.seed)
        backbone = build_backbone(config.backbone, config.weights if weights is None else weights)
        return SeededBackbone(backbone, generator.get_state())


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of that name; ``"auto"`` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:  # PyTorch's message lists all device types
        raise TagspreadError(f"device {name!r} cannot be used; give auto, cpu or cuda.") from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise TagspreadError(f"device {name!r} cannot be used ({reason}); give auto or cpu.") from None
    return device


def measured_network(backbone: SeededBackbone, classes: int, config: TrainConfig, device: torch.device) -> TagNet:
    """Return the network on a device to measure its speed with; no random state changes."""
    with _forked_rng():
        network = add_head(backbone.backbone, classes, head=config.head, normalize=config.normalize)
    return network.to(device).eval()


def prepare(
    dataset: Dataset,
    config: TrainConfig,
    device: torch.device,
    *,
    backbone: SeededBackbone | None = None,
    resume: bool = False,
    processes: Processes | None = None,
) -> Experiment:
    """Validate dataset, settings and method, and build the experiment.

    Args:
        dataset: the data to train on.
        config: the settings.
        device: the device to train on.
        backbone: result of :func:`seeded_backbone` for these settings; built here if not given.
        resume: whether the weights of the network come from a checkpoint.
        processes: the processes that train together; a single one if not given.
    """
    processes = processes or Processes()
    method = get_method(config.method, **config.method_options)
    if config.selection == "held_out":
        dataset = dataset.hold_out(config.held_out, config.seed)
    if method.share_apart:
        dataset = dataset.set_apart(method.share_apart, config.seed)
    if config.selection == "test_best" and not len(dataset.test):
        raise TagspreadError("selection is 'test_best' but there is no test set; give one, or use selection 'last'.")
    requested_mode, config = config.mode, resolve_mode(config, method, device)
    notes = dataset.check_trainable(method.uses_unlabeled) + size_notes(dataset, config)
    stages = plan_stages(dataset, config, method)
    _rehearse(method, dataset)
    check_loss(method.labeled_loss or config.loss, config.loss_options)
    if requested_mode == "auto" and config.mode == "head":
        notes.append(NO_GPU)
    if config.mode == "head" and is_untrained(config):
        notes.append(UNTRAINED.format(config.backbone))

    is_frozen = method.on_features or config.mode == "head"  # then the checkpoint holds the head only
    if backbone is None:
        backbone = seeded_backbone(config, "none" if resume and not is_frozen else None)
    with _forked_rng() as generator:
        generator.set_state(backbone.random_state)
        network = method.network(
            add_head(backbone.backbone, len(dataset.classes), head=config.head, normalize=config.normalize)
        )
        random_state = generator.get_state()
    if config.start == "fitted_head" and not isinstance(network.head, LinearHead):
        raise TagspreadError(
            "start is 'fitted_head', which fits a linear head, but the network has another head; use start 'warmup' "
            "with warmup_epochs."
        )
    if processes.size > 1 and stages and (reason := method.combines_rows(network)) is not None:
        raise TagspreadError(
            f"method {config.method!r} cannot be trained by {processes.size} processes: {reason}. Train in one "
            "process, or use another method."
        )
    return Experiment(dataset, config, method, stages, device, network, random_state, tuple(notes), processes)


def resolve_mode(config: TrainConfig, method: Method, device: torch.device) -> TrainConfig:
    """Return the configuration with mode ``"auto"`` resolved: ``"head"`` if there is no GPU and a head can be fitted.

    Args:
        config: the settings.
        method: the method of the run.
        device: the device of the run.
    """
    mode = config.mode
    if mode == "auto":
        no_gpu = device.type == "cpu"
        mode = "head" if no_gpu and not is_untrained(config) and _is_possible_on_features(config, method) else "full"
    if mode == "full":
        return replace(config, mode=mode)
    if config.head != "linear":
        raise TagspreadError(f"mode 'head' fits a linear head, but head is {config.head!r}; give head 'linear'.")
    check_method(method)
    return replace(config, mode=mode, start="fitted_head", warmup_epochs=0, epochs=0, schedule_epochs=None)


def is_untrained(config: TrainConfig) -> bool:
    """Return whether the network starts from random weights, so that its features mean little."""
    return config.weights == "none" or config.backbone == "small"


def _is_possible_on_features(config: TrainConfig, method: Method) -> bool:
    try:
        check_method(method)
    except TagspreadError:
        return False
    return config.head == "linear"


def _rehearse(method: Method, dataset: Dataset) -> None:
    """Start the method; also let a custom method label random scores, to find its errors before the warm-up."""
    y = torch.from_numpy(dataset.y[dataset.labeled])
    labeled = Labeled(y, dataset.classes, unlabeled_size=len(dataset.unlabeled))
    state, shape = method.start(labeled), (labeled.unlabeled_size, len(labeled.classes))
    is_built_in = type(method) in METHODS.values()
    if is_built_in or not method.uses_unlabeled or not 0 < math.prod(shape) <= MAX_REHEARSED_SCORES:
        return
    with torch.random.fork_rng(devices=[]):
        scores = torch.randn(shape)
        labeled = replace(labeled, scores=torch.randn(labeled.y.shape) if method.reads_labeled else None)
        method.new_epoch(labeled, state)
        check_targets(method, method.targets(scores, labeled, state), scores)


def check_loss(name: str, options: dict[str, float]) -> None:
    """Raise unless the loss function of that name has these options."""
    allowed = [option for option in signature(LOSSES[name]).parameters if option not in ARGUMENTS_OF_LOSSES]
    for option in options:
        if option not in allowed:
            choices = f"its options are {', '.join(allowed)}" if allowed else "it has no options"
            hint = did_you_mean(option, allowed)
            raise TagspreadError(f"the loss {name!r} has no option {option!r}; {choices}.{hint}")
    try:
        LOSSES[name](torch.zeros(1, 1), torch.zeros(1, 1), **options)
    except TypeError:
        raise TagspreadError(f"loss_options is {options!r}; give numbers.") from None


@contextmanager
def _forked_rng() -> Iterator[torch.Generator]:
    """Yield the CPU generator to seed and use; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        yield torch.default_generator
