"""Mode ``head``: keep the network frozen and fit a linear head on its embeddings, without a GPU.

The features of each image (and of its mirror image, if images may be mirrored) are computed once. Cross-validation on
the labeled images chooses the penalties, CAP's ``keep_pos`` and ``keep_neg``, and the weight of the unlabeled set. The
head is then fitted in pseudo-labeling rounds (:mod:`tagspread.linear.rounds`), which takes seconds. This replaces the
training loop; the result is an ordinary run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace

from torch import Tensor

from tagspread.linear.logistic import LogisticHead
from tagspread.linear.options import make_search_space
from tagspread.linear.rounds import Settings
from tagspread.linear.search import intervals_of, search_settings
from tagspread.methods.base import Targets
from tagspread.progress import Watcher
from tagspread.train.config import chooses_options
from tagspread.train.head import ROUNDS, HeadData, fit_head, fit_labeled_only, standardize
from tagspread.train.training import Training


def train_head(training: Training, views: Tensor, watcher: Watcher, *, labeled_only: Callable[[], None]) -> None:
    """Choose the settings and fit the head; update ``training`` as the training loop would.

    Args:
        training: the training, whose head, pseudo-labels and log are set.
        views: features of the rows to train on (views x rows x features), labeled rows first.
        watcher: prints the chosen settings.
        labeled_only: called while the network has the labeled-only head, if the method uses the unlabeled set.
    """
    began, experiment = time.perf_counter(), training.experiment
    data = HeadData.of(experiment.dataset, views)
    pseudo_labels, history, network = training.pseudo_labels, training.history, training.student.network
    settings, was_compared = choose_settings(training, data)

    def log_round(number: int, targets: Targets, scores: Tensor) -> None:
        pseudo_labels.relabel(slice(None), targets, scores)
        labels, elapsed = targets.labels, time.perf_counter() - began
        history.log.append({
            "epoch": number - 1, "stage": "head", "seconds": elapsed - sum(line["seconds"] for line in history.log),
            "pseudo_positives": int((labels >= 0.5).sum()), "ignored": int((labels == -1).sum()),
            "flips": history.count_flips(pseudo_labels.total_flips),
        })  # fmt: skip

    if settings.method.uses_unlabeled:
        fit_head(network, data, settings, labeled_only=labeled_only, watch=log_round)
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
        "unlabeled_ridge": settings.unlabeled_ridge, "unlabeled_weight": settings.unlabeled_weight,
    }  # fmt: skip
    watcher.note(f"head fitted in {seconds:.1f} s; {_describe(settings, was_compared)}")


def choose_settings(training: Training, data: HeadData) -> tuple[Settings, bool]:
    """Choose settings by cross-validation on the labeled images.

    Returns:
        The settings, and whether there were enough labeled images to compare any.
    """
    config, method, rows = training.experiment.config, training.experiment.method, standardize(data)
    methods = intervals_of(type(method)()) if chooses_options(config) else (method,)
    space = make_search_space("auto", "auto" if config.unlabeled_weight is None else config.unlabeled_weight)
    chosen = search_settings(
        rows.labeled, data.y, rows.unlabeled, methods,
        space=space, seed=config.seed, head=LogisticHead(), classes=data.classes, max_rounds=ROUNDS,
    )  # fmt: skip
    return chosen.settings, chosen.trials != ()


def _describe(settings: Settings, was_compared: bool) -> str:
    """Describe the settings in a sentence."""
    origin = (
        "chosen by cross-validation on the labeled images"
        if was_compared
        else "defaults: too few labeled images for cross-validation"
    )
    if not settings.uses_unlabeled:
        reason = ", which showed no clear gain" if was_compared and settings.method.uses_unlabeled else ""
        return f"penalty {settings.ridge:g}, without the unlabeled set{reason} ({origin})"
    options = ", ".join(f"{name} {value}" for name, value in asdict(settings.method).items() if value is not None)
    method = type(settings.method).__name__ + (f" with {options}" if options else "")
    return (
        f"{method}, penalty {settings.ridge:g} on the labeled set, {settings.unlabeled_ridge:g} with the unlabeled set "
        f"at weight {settings.unlabeled_weight:g} ({origin})"
    )
