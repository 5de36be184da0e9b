"""Fit a linear head on the embeddings of a frozen network; in mode ``head``, nothing else is trained.

The features of each image and, if images may be mirrored, of its mirror image are computed once and standardized.
Cross-validation on the labeled images chooses the penalties, CAP's ``keep_pos`` and ``keep_neg``, and the weight of the
unlabeled set. The head is fitted on the labeled rows first (a linear probe), then in pseudo-labeling rounds with the
unlabeled rows (:mod:`tagspread.linear.rounds`). This takes seconds without a GPU and is deterministic. After the first
fit, the network has the labeled-only head, which the caller can save. In mode ``head`` this replaces the training loop;
the result is an ordinary run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tagspread.linear.heads import DenseRows, Layers
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.options import make_search_space
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.linear.search import intervals_of, search_settings
from tagspread.methods.base import Method, State, Targets
from tagspread.methods.cap import CAP
from tagspread.progress import Watcher
from tagspread.train.config import has_default_options
from tagspread.train.dataset import Dataset
from tagspread.train.deadline import Deadline
from tagspread.train.training import Training
from tagspread.vision.backbones import TagNet

ROUNDS = 5


class HeadData(NamedTuple):
    """Features and labels to fit a head on.

    Attributes:
        features: views x rows x features; labeled rows first, then unlabeled rows.
        y: labels of the labeled rows, on the same device.
        classes: names of the tags.
        apart: labels of the last unlabeled rows, if the method set labeled rows apart.
    """

    features: Tensor
    y: Tensor
    classes: Sequence[str]
    apart: Tensor | None = None

    @classmethod
    def of(cls, dataset: Dataset, features: Tensor) -> HeadData:
        """Combine features of a dataset's labeled and unlabeled rows with its labels."""
        y = torch.from_numpy(dataset.y[dataset.labeled]).to(features.device)
        apart = torch.from_numpy(dataset.y[dataset.apart]) if len(dataset.apart) else None
        return cls(features, y, dataset.classes, apart)


class Standardized(NamedTuple):
    """Features with mean 0 and variance 1 over all rows and views."""

    labeled: DenseRows
    unlabeled: DenseRows
    mean: Tensor
    std: Tensor


def fit_head(
    network: TagNet,
    data: HeadData,
    settings: Settings,
    *,
    labeled_only: Callable[[], None],
    method_state: State | None = None,
    watch: Callable[[int, Targets, Tensor], None] | None = None,
    deadline: Deadline | None = None,
) -> None:
    """Fit a linear head on features and set it as the head of ``network``.

    Args:
        network: the network whose head is set.
        data: features and labels.
        settings: method, penalties and weight of the unlabeled set; with weight 0 the unlabeled set is not used.
        labeled_only: called while the network has the labeled-only head, if the method uses the unlabeled set.
        method_state: the method's state, if it was started already.
        watch: called after each round with its number and the targets and scores of the unlabeled set.
        deadline: the rounds end early, but not before the first one, to keep to it.
    """
    if settings.method.uses_unlabeled:
        fit_labeled_only(network, data, settings.ridge)
        labeled_only()
        if not settings.uses_unlabeled:
            return
    rows, head = standardize(data), LogisticHead()
    start = probe(rows.labeled, data.y, settings.ridge, head)
    fitted = spread(
        rows.labeled, data.y, rows.unlabeled, settings, start,
        head=head, classes=data.classes, max_rounds=ROUNDS, state=method_state, apart=data.apart, watch=watch,
        out_of_time=(deadline or Deadline()).is_near,
    )  # fmt: skip
    set_head(network, fitted.layers, rows.mean, rows.std)


def fit_labeled_only(network: TagNet, data: HeadData, ridge: float) -> None:
    """Fit a linear head on the labeled rows only, standardized without the unlabeled rows, and set it."""
    labeled = data.features[:, : len(data.y)]
    rows = labeled.flatten(0, 1)
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    std = torch.where(deviation > 1e-6, deviation, 1.0)  # do not scale up features that are constant
    layers = probe(DenseRows((labeled - mean) / std), data.y, ridge, LogisticHead())
    set_head(network, layers, mean, std)


def standardize(data: HeadData) -> Standardized:
    """Standardize the features over labeled and unlabeled rows together."""
    rows, n = data.features.flatten(0, 1), len(data.y)
    mean, std = rows.mean(0), rows.std(0).clamp(min=1e-6)
    standard = (data.features - mean) / std
    return Standardized(DenseRows(standard[:, :n]), DenseRows(standard[:, n:]), mean, std)


def set_head(network: TagNet, layers: Layers, mean: Tensor, std: Tensor) -> None:
    """Set the network's head to one that was fitted on standardized features."""
    ((weight, bias),) = layers
    with torch.no_grad():  # fold the standardization into the head
        network.head.weight.copy_(weight / std)
        network.head.bias.copy_(bias - (weight * (mean / std)).sum(1))


def train_head(
    training: Training,
    views: Tensor,
    watcher: Watcher,
    *,
    labeled_only: Callable[[], None],
    deadline: Deadline | None = None,
) -> None:
    """Choose the settings and fit the head; update ``training`` as the training loop would.

    Args:
        training: the training, whose head, pseudo-labels and log are set.
        views: features of the rows to train on (views x rows x features), labeled rows first.
        watcher: prints the chosen settings.
        labeled_only: called while the network has the labeled-only head, if the method uses the unlabeled set.
        deadline: the search for settings and the rounds end early to keep to it.
    """
    began, experiment = time.perf_counter(), training.experiment
    data = HeadData.of(experiment.dataset, views)
    pseudo_labels, history, network = training.pseudo_labels, training.history, training.student.network
    settings, was_compared = choose_settings(training, data, watcher, deadline or Deadline())

    progress = watcher.begin("fitting the head")

    def log_round(number: int, targets: Targets, scores: Tensor) -> None:
        progress(number, ROUNDS)
        pseudo_labels.relabel(slice(None), targets, scores)
        labels, elapsed = targets.labels, time.perf_counter() - began
        history.log.append({
            "epoch": number - 1, "stage": "head", "seconds": elapsed - sum(line["seconds"] for line in history.log),
            "pseudo_positives": int((labels >= 0.5).sum()), "ignored": int((labels == -1).sum()),
            "flips": history.count_flips(pseudo_labels.total_flips),
        })  # fmt: skip

    if settings.method.uses_unlabeled:
        fit_head(network, data, settings, labeled_only=labeled_only, watch=log_round, deadline=deadline)
    else:
        fit_labeled_only(network, data, settings.ridge)
    training.student.ema.restart()
    options = asdict(settings.method)
    # record the chosen settings in the run's files
    chosen = replace(experiment.config, method_options=options, unlabeled_weight=settings.unlabeled_weight)
    training.experiment = replace(experiment, config=chosen)
    seconds = time.perf_counter() - began
    if not history.log:
        history.log.append({"epoch": 0, "stage": "head", "seconds": seconds})
    history.log[-1]["chosen"] = {
        "method": type(settings.method).__name__, "options": options, "ridge": settings.ridge,
        "unlabeled_ridge": settings.penalty(len(data.y), data.features.shape[1] - len(data.y)),
        "unlabeled_weight": settings.unlabeled_weight,
    }  # fmt: skip
    watcher.note(f"head fitted in {seconds:.1f} s; {describe(settings, was_compared)}")


def choose_settings(training: Training, data: HeadData, watcher: Watcher, deadline: Deadline) -> tuple[Settings, bool]:
    """Choose settings by cross-validation on the labeled images.

    Returns:
        The settings, and whether there were enough labeled images to compare any.
    """
    config, method, rows = training.experiment.config, training.experiment.method, standardize(data)
    methods: tuple[Method, ...] = (method,)
    if isinstance(method, CAP) and has_default_options(config):
        methods = intervals_of(CAP(priors=method.priors))
    weight = "auto" if config.unlabeled_weight is None else config.unlabeled_weight
    space = make_search_space("auto", weight, methods)
    if config.search == "short":
        space, methods = space.short(), methods[:1]
    chosen = search_settings(
        rows.labeled, data.y, rows.unlabeled, methods,
        space=space, seed=config.seed, head=LogisticHead(), classes=data.classes, max_rounds=ROUNDS,
        progress=watcher.begin("choosing settings"), out_of_time=deadline.is_near,
    )  # fmt: skip
    return chosen.settings, chosen.trials != ()


def describe(settings: Settings, was_compared: bool) -> str:
    """Describe the settings in a sentence."""
    origin = (
        "chosen by cross-validation on the labeled images"
        if was_compared
        else "defaults: too few labeled images for cross-validation"
    )
    if not settings.uses_unlabeled:
        reason = ", which did not help" if was_compared and settings.method.uses_unlabeled else ""
        return f"L2 penalty {settings.ridge:g}, without the unlabeled set{reason} ({origin})"
    options = ", ".join(f"{name} {value}" for name, value in asdict(settings.method).items() if value is not None)
    method = type(settings.method).__name__ + (f" with {options}" if options else "")
    return (
        f"{method}, L2 penalty {settings.ridge:g}, with the unlabeled set at weight {settings.unlabeled_weight:g} "
        f"({origin})"
    )
