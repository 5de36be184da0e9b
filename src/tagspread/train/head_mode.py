"""``--mode head``: the network stays as it is, and a linear head is fitted to its features. No GPU needed.

The features of every image are computed once (and of its mirror image, if images may be mirrored). The penalties, the
reliable interval and the weight of the unlabeled set are chosen by cross-validation on the labeled images; the rounds
of :mod:`tagspread.linear.rounds` do the rest in seconds. This takes the place of the training loop; what comes out is
an ordinary run.
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
    """Choose the settings and fit the head, and leave all in ``training`` as if the loop had trained it.

    Args:
        training: gets head, pseudo-labels and log.
        views: views x rows x features of the rows that are trained on, labeled first.
        watcher: is told what was chosen.
        labeled_only: is called while the head is that of the labeled part alone, if the method uses the unlabeled set.
    """
    began, experiment = time.perf_counter(), training.experiment
    data = HeadData.of(experiment.dataset, views)
    pseudo_labels, history, network = training.pseudo_labels, training.history, training.student.network
    settings, compared = choose_settings(training, data)

    def write_down(number: int, targets: Targets, scores: Tensor) -> None:
        pseudo_labels.relabel(slice(None), targets, scores)
        labels, now = targets.labels, time.perf_counter() - began
        history.log.append({
            "epoch": number - 1, "stage": "head", "seconds": now - sum(line["seconds"] for line in history.log),
            "pseudo_positives": int((labels >= 0.5).sum()), "ignored": int((labels == -1).sum()),
            "flips": history.count_flips(pseudo_labels.total_flips),
        })  # fmt: skip

    if settings.method.uses_unlabeled:
        fit_head(network, data, settings, labeled_only=labeled_only, watch=write_down)
    else:
        fit_labeled_only(network, data, settings.ridge)
    training.student.ema.restart()
    options = asdict(settings.method)
    # what was chosen is what the run was made with: its files must say so
    chosen = replace(experiment.config, method_options=options, unlabeled_weight=settings.unlabeled_weight)
    training.experiment = replace(experiment, config=chosen)
    seconds = time.perf_counter() - began
    if not history.log:
        history.log.append({"epoch": 0, "stage": "head", "seconds": seconds})
    history.log[-1]["chosen"] = {
        "method": type(settings.method).__name__, "options": options, "ridge": settings.ridge,
        "unlabeled_ridge": settings.unlabeled_ridge, "unlabeled_weight": settings.unlabeled_weight,
    }  # fmt: skip
    watcher.note(f"head fitted in {seconds:.1f} s; {_in_words(settings, compared)}")


def choose_settings(training: Training, data: HeadData) -> tuple[Settings, bool]:
    """Return what cross-validation on the labeled images chose, and whether there were enough of them to compare."""
    config, method, rows = training.experiment.config, training.experiment.method, standardize(data)
    methods = intervals_of(type(method)()) if chooses_options(config) else (method,)
    space = make_search_space("auto", "auto" if config.unlabeled_weight is None else config.unlabeled_weight)
    chosen = search_settings(
        rows.labeled, data.y, rows.unlabeled, methods,
        space=space, seed=config.seed, head=LogisticHead(), classes=data.classes, max_rounds=ROUNDS,
    )  # fmt: skip
    return chosen.settings, chosen.trials != ()


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
