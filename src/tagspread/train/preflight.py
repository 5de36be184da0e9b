"""Before a run: everything is built once, and whatever can be found wrong is, before anything is written."""

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
from tagspread.train.experiment import Experiment
from tagspread.train.stages import plan_stages, size_notes
from tagspread.vision.backbones import Backbone, add_head, build_backbone
from tagspread.vision.heads import LinearHead

LARGE_UNLABELED = 2000  # images; on a CPU, fine-tuning on fewer may be worth the wait
MAX_REHEARSED_SCORES = 10**7
ARGUMENTS_OF_LOSSES = ("logits", "targets", "weight", "reduction")  # which are not for the user to set
NO_GPU = (
    "there is no GPU and the unlabeled set has {:,} images: the network stays as it is and a head is fitted on what it "
    "sees; "
    "--mode full trains all of it."
)
UNTRAINED = (
    "{} begins with random weights, and in mode 'head' it keeps them: what it sees means little. Take a pretrained "
    "network, or mode 'full'."
)


@dataclass(frozen=True)
class SeededBackbone:
    """A network without its head, and the random state it leaves for what is built next."""

    backbone: Backbone
    random_state: Tensor


def seeded_backbone(config: TrainConfig, weights: str | None = None) -> SeededBackbone:
    """Build the network without its head, which depends on the data; the caller's random numbers are left alone.

    Doing this before images are decoded finds wrong weights, or a download that fails, early.

    Args:
        config: the settings.
        weights: in place of those of the settings.
    """
    with _random_numbers() as generator:
        generator.manual_seed(config.seed)
        backbone = build_backbone(config.backbone, config.weights if weights is None else weights)
        return SeededBackbone(backbone, generator.get_state())


def prepare(
    dataset: Dataset,
    config: TrainConfig,
    device: torch.device,
    *,
    backbone: SeededBackbone | None = None,
    resume: bool = False,
) -> Experiment:
    """Check what can be checked and build the experiment.

    Args:
        dataset: what is to be learned.
        config: how.
        device: where.
        backbone: what :func:`seeded_backbone` returned for these settings; built here if not given.
        resume: whether a checkpoint brings the weights of the network.
    """
    method = get_method(config.method, **config.method_options)
    if config.selection == "held_out":
        dataset = dataset.hold_out(config.held_out, config.seed)
    if method.share_apart:
        dataset = dataset.set_apart(method.share_apart, config.seed)
    if config.selection == "test_best" and not len(dataset.test):
        raise TagspreadError("selection is 'test_best' but there is no test part; give one, or choose 'last'.")
    asked, config = config.mode, resolve_mode(config, dataset, method, device)
    notes = dataset.check_trainable(method.uses_unlabeled) + size_notes(dataset, config)
    stages = plan_stages(dataset, config, method)
    _rehearse(method, dataset)
    check_loss(method.labeled_loss or config.loss, config.loss_options)
    if asked == "auto" and config.mode == "head":
        notes.append(NO_GPU.format(len(dataset.unlabeled)))
    if config.mode == "head" and is_untrained(config):
        notes.append(UNTRAINED.format(config.backbone))

    is_frozen = method.on_features or config.mode == "head"  # then the checkpoint has the head alone
    if backbone is None:
        backbone = seeded_backbone(config, "none" if resume and not is_frozen else None)
    with _random_numbers() as generator:
        generator.set_state(backbone.random_state)
        network = method.network(
            add_head(backbone.backbone, len(dataset.classes), head=config.head, normalize=config.normalize)
        )
        random_state = generator.get_state()
    if config.start == "fitted_head" and not isinstance(network.head, LinearHead):
        raise TagspreadError(
            "start is 'fitted_head', which fits a linear head, but the network has another; choose start 'warmup', and "
            "warmup_epochs."
        )
    return Experiment(dataset, config, method, stages, device, network, random_state, tuple(notes))


def resolve_mode(config: TrainConfig, dataset: Dataset, method: Method, device: torch.device) -> TrainConfig:
    """Return the configuration with the mode decided: ``"auto"`` is the head where all else would take hours."""
    mode = config.mode
    if mode == "auto":
        slow = device.type == "cpu" and len(dataset.unlabeled) >= LARGE_UNLABELED
        mode = "head" if slow and not is_untrained(config) and _is_possible_on_features(config, method) else "full"
    if mode == "full":
        return replace(config, mode=mode)
    if config.head != "linear":
        raise TagspreadError(f"mode 'head' fits a linear head, but head is {config.head!r}; leave it at 'linear'.")
    check_method(method)
    return replace(config, mode=mode, start="fitted_head", warmup_epochs=0, epochs=0, schedule_epochs=None)


def is_untrained(config: TrainConfig) -> bool:
    """Whether the network begins with random weights, in which case its features mean little."""
    return config.weights == "none" or config.backbone == "small"


def _is_possible_on_features(config: TrainConfig, method: Method) -> bool:
    try:
        check_method(method)
    except TagspreadError:
        return False
    return config.head == "linear"


def _rehearse(method: Method, dataset: Dataset) -> None:
    """Start a method; let a user's own label random scores, so that its mistakes show before the warm-up."""
    y = torch.from_numpy(dataset.y[dataset.labeled])
    labeled = Labeled(y, dataset.classes, unlabeled_size=len(dataset.unlabeled))
    state, shape = method.start(labeled), (labeled.unlabeled_size, len(labeled.classes))
    is_ours = type(method) in METHODS.values()
    if is_ours or not method.uses_unlabeled or not 0 < math.prod(shape) <= MAX_REHEARSED_SCORES:
        return
    with torch.random.fork_rng(devices=[]):
        scores = torch.randn(shape)
        labeled = replace(labeled, scores=torch.randn(labeled.y.shape) if method.reads_labeled else None)
        method.new_epoch(labeled, state)
        check_targets(method, method.targets(scores, labeled, state), scores)


def check_loss(name: str, options: dict[str, float]) -> None:
    """Raise unless the loss of that name has these options."""
    known = [option for option in signature(LOSSES[name]).parameters if option not in ARGUMENTS_OF_LOSSES]
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise TagspreadError(f"the loss {name!r} has no option {option!r}; {has}.{did_you_mean(option, known)}")
    try:
        LOSSES[name](torch.zeros(1, 1), torch.zeros(1, 1), **options)
    except TypeError:
        raise TagspreadError(f"loss_options is {options!r}; give numbers.") from None


@contextmanager
def _random_numbers() -> Iterator[torch.Generator]:
    """Yield the CPU's random numbers to seed and use; afterwards they are the caller's again."""
    with torch.random.fork_rng(devices=[]):
        yield torch.default_generator
