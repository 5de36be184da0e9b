"""Before a run: its parts are settled, and whatever can be found wrong is, before anything is built or written."""

from __future__ import annotations

import math
from dataclasses import replace
from inspect import signature
from typing import NamedTuple

import torch

from tagspread.errors import TagspreadError, did_you_mean
from tagspread.methods import METHODS
from tagspread.methods.base import Labeled, Method, check_targets
from tagspread.train.config import LOSSES, TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.head_mode import is_untrained, resolve_mode
from tagspread.train.stages import plan_stages, size_notes
from tagspread.vision.backbones import build_network

REHEARSED = 10**7  # scores at most
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


class Settled(NamedTuple):
    """What a run is going to do."""

    dataset: Dataset
    config: TrainConfig
    notes: list[str]  # for a person


def settle(dataset: Dataset, config: TrainConfig, method: Method, device: torch.device) -> Settled:
    """Set apart what selection and method keep from training, decide the mode, and raise for what cannot be trained."""
    if config.selection == "held_out":
        dataset = dataset.hold_out(config.held_out, config.seed)
    if method.share_apart:
        dataset = dataset.set_apart(method.share_apart, config.seed)
    if config.selection == "test_best" and not len(dataset.test):
        raise TagspreadError("selection is 'test_best' but there is no test part; give one, or choose 'last'.")
    asked, config = config.mode, resolve_mode(config, dataset, method, device)
    notes = dataset.check_trainable(method.uses_unlabeled) + size_notes(dataset, config)
    plan_stages(dataset, config, method)
    _rehearse(method, labeled_part(dataset))
    check_loss(method.labeled_loss or config.loss, config.loss_options)
    if asked == "auto" and config.mode == "head":
        notes.append(NO_GPU.format(len(dataset.unlabeled)))
    if config.mode == "head" and is_untrained(config):
        notes.append(UNTRAINED.format(config.backbone))
    return Settled(dataset, config, notes)


def try_weights(config: TrainConfig) -> None:
    """Notice wrong weights, or a download that fails, before images are decoded; no random number is used up."""
    with torch.random.fork_rng(devices=[]):
        build_network(config.backbone, 1, weights=config.weights)


def labeled_part(dataset: Dataset) -> Labeled:
    """Return what a method is told about the labeled part."""
    y = torch.from_numpy(dataset.y[dataset.labeled])
    return Labeled(y, dataset.classes, unlabeled_size=len(dataset.unlabeled))


def _rehearse(method: Method, labeled: Labeled) -> None:
    """Start a method; let a user's own label random scores, so that its mistakes show before the warm-up."""
    state, shape = method.start(labeled), (labeled.unlabeled_size, len(labeled.classes))
    if type(method) in METHODS.values() or not method.uses_unlabeled or not 0 < math.prod(shape) <= REHEARSED:
        return
    with torch.random.fork_rng(devices=[]):
        scores = torch.randn(shape)
        seen = replace(labeled, scores=torch.randn(labeled.y.shape) if method.reads_labeled else None)
        method.new_epoch(seen, state)
        check_targets(method, method.targets(scores, seen, state), scores)


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
