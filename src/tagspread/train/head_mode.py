"""``--mode head``: the network stays as it is, and a linear head is fitted on what it sees. No GPU needed.

Every image is looked at once (and its mirror image, if images may be mirrored); the penalties, the reliable
interval and the weight of the unlabeled set are chosen by cross-validation on the labeled images; the rounds of
:mod:`tagspread.linear.rounds` do the rest in seconds. What comes out is an ordinary run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tagspread.data.images.store import TensorStore
from tagspread.errors import TagspreadError
from tagspread.linear.feature_rows import DenseRows
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.options import make_search_space
from tagspread.linear.rounds import Settings, check_method, probe, spread
from tagspread.linear.search import intervals_of, search_settings
from tagspread.methods import get_method
from tagspread.methods.base import Method, Targets
from tagspread.progress import Watcher
from tagspread.train.config import DEFAULT, TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.features import forget_others, kept_features
from tagspread.train.head import ROUNDS, apart_labels, probe_alone, set_head
from tagspread.train.state import TrainState
from tagspread.vision.backbones import TagNet

LARGE_UNLABELED = 2000  # images; on a processor, fine-tuning on fewer may be worth the wait


IN_USE = (
    "method", "method_options", "mode", "seed", "backbone", "weights", "image_size", "normalize", "head", "flip",
    "unlabeled_weight", "selection", "held_out", "precision", "score_batch",
)  # fmt: skip


def settings_in_use(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that had a part in a run, to show to people: a frozen network has no learning rate."""
    kept = {name: value for name, value in settings.items() if name in IN_USE or settings.get("mode") != "head"}
    if kept.get("selection") != "held_out":
        kept.pop("held_out", None)
    return kept


def resolve_mode(config: TrainConfig, dataset: Dataset, method: Method, device: torch.device) -> TrainConfig:
    """Return the configuration with the mode decided: ``"auto"`` is the head where all else would take hours."""
    mode = config.mode
    if mode == "auto":
        slow = device.type == "cpu" and len(dataset.unlabeled) >= LARGE_UNLABELED
        mode = "head" if slow and not is_untrained(config) and _fits(config, method) else "full"
    if mode == "full":
        return replace(config, mode=mode)
    if config.head != "linear":
        raise TagspreadError(f"mode 'head' fits a linear head, but head is {config.head!r}; leave it at 'linear'.")
    check_method(method)
    return replace(config, mode=mode, start="fitted_head", warmup_epochs=0, epochs=0, schedule_epochs=None)


def is_untrained(config: TrainConfig) -> bool:
    """Whether the network begins with random weights, in which case what it sees means little."""
    return config.weights == "none" or config.backbone == "small"


def _fits(config: TrainConfig, method: Method) -> bool:
    try:
        check_method(method)
    except TagspreadError:
        return False
    return config.head == "linear"


def as_features(
    network: TagNet, dataset: Dataset, config: TrainConfig, device: torch.device, kept: Path, watcher: Watcher
) -> tuple[Dataset, list[torch.Tensor]]:
    """Return the dataset with features for images, and the features of each view that the head is fitted on.

    They are kept in the folder ``kept``. In that of a run, whatever else was kept there before is removed.
    """
    began, everything = time.perf_counter(), np.arange(len(dataset.store))
    train = np.concatenate([dataset.labeled, dataset.unlabeled])
    # whichever of them are labeled or held out, they are found again in the cache
    in_order = np.sort(np.concatenate([train, dataset.held_out]))
    plain, file = kept_features(kept, network, dataset, everything, config, device, watcher)
    views, files = [plain[torch.from_numpy(train).to(device)]], [file]
    if config.flip:  # what is only tested on is looked at as it is
        place = torch.from_numpy(np.searchsorted(in_order, train)).to(device)
        mirrored, file = kept_features(kept, network, dataset, in_order, config, device, watcher, mirror=True)
        views, files = [*views, mirrored[place]], [*files, file]
    watcher.note(f"looked at {len(dataset.store):,} images in {time.perf_counter() - began:.1f} s; kept in {kept}")
    forget_others(files)
    return replace(dataset, store=TensorStore(plain, device), identity=dataset.fingerprint()), views


def fit_on_features(
    student: TagNet,
    learnt: Dataset,
    views: list[torch.Tensor],
    config: TrainConfig,
    state: TrainState,
    before_unlabeled: Callable[[], None],
    watcher: Watcher,
) -> None:
    """Choose the settings, fit the head, and leave everything in ``state`` as if it had been trained."""
    began, n, y = time.perf_counter(), len(learnt.labeled), torch.from_numpy(learnt.y[learnt.labeled])
    features = torch.stack(views)
    y = y.to(features.device)
    everything = features.flatten(0, 1)
    mean, std = everything.mean(0), everything.std(0).clamp(min=1e-6)
    standard = (features - mean) / std
    known, unlabeled = DenseRows(standard[:, :n]), DenseRows(standard[:, n:])
    methods, head = _methods(config), LogisticHead()
    space = make_search_space("auto", "auto" if config.unlabeled_weight is None else config.unlabeled_weight)
    how: dict[str, Any] = {"head": head, "classes": learnt.classes, "max_rounds": ROUNDS}
    chosen = search_settings(known, y, unlabeled, methods, space=space, seed=config.seed, **how)
    settings: Settings = chosen.settings
    set_head(student, *probe_alone(features[:, :n], y, settings.ridge))
    if state.method.uses_unlabeled:
        before_unlabeled()
    start = probe(known, y, settings.ridge, head)

    def write_down(number: int, targets: Targets, scores: torch.Tensor) -> None:
        before = int(state.flips.sum()) if len(state.flips) else 0
        state.relabel(slice(None), targets, scores)
        labels, now = targets.labels, time.perf_counter() - began
        state.log.append({
            "epoch": number - 1, "stage": "head", "seconds": now - sum(line["seconds"] for line in state.log),
            "pseudo_positives": int((labels >= 0.5).sum()), "ignored": int((labels == -1).sum()),
            "flips": int(state.flips.sum()) - before,
        })  # fmt: skip

    if settings.uses_unlabeled:
        fitted = spread(known, y, unlabeled, settings, start, watch=write_down, apart=apart_labels(learnt), **how)
        set_head(student, fitted.layers, mean, std)
    # else the labeled-only head stays: nothing of the unlabeled set is in it, not even its mean
    state.ema.restart()
    facts = {"method": type(settings.method).__name__, "options": asdict(settings.method), "ridge": settings.ridge}
    # what was chosen is what the run was made with: its files must say so
    state.config = replace(config, method_options=asdict(settings.method), unlabeled_weight=settings.unlabeled_weight)
    facts |= {"unlabeled_ridge": settings.unlabeled_ridge, "unlabeled_weight": settings.unlabeled_weight}
    seconds = time.perf_counter() - began
    if not state.log:
        state.log.append({"epoch": 0, "stage": "head", "seconds": seconds})
    state.log[-1]["chosen"] = facts
    watcher.note(f"head fitted in {seconds:.1f} s; {_in_words(settings, chosen.trials != ())}")


def chooses_options(config: TrainConfig) -> bool:
    """Return whether a head finds its method's options itself: CAP's interval, unless it is the user's own."""
    usual = config.method_options in ({}, DEFAULT["method_options"])
    return config.mode == "head" and config.method == "cap" and usual


def _methods(config: TrainConfig) -> tuple[Method, ...]:
    """Return the variants to choose among."""
    if chooses_options(config):
        return intervals_of(get_method("cap"))
    return (get_method(config.method, **config.method_options),)


def _in_words(settings: Settings, compared: bool) -> str:
    how = "chosen by cross-validation on the labeled images" if compared else "too few labeled images to compare"
    if not settings.uses_unlabeled:
        why = ", as no clear gain from it was found" if compared and settings.method.uses_unlabeled else ""
        return f"penalty {settings.ridge:g}, without the unlabeled set{why} ({how})"
    options = ", ".join(f"{name} {value}" for name, value in asdict(settings.method).items() if value is not None)
    method = type(settings.method).__name__ + (f" with {options}" if options else "")
    return (
        f"{method}, penalty {settings.ridge:g} alone and {settings.unlabeled_ridge:g} with the unlabeled set, which "
        f"weighs "
        f"{settings.unlabeled_weight:g} ({how})"
    )
