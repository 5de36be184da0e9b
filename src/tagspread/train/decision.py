"""Which thresholds and which calibration a run gets, and what is written down about where they came from.

Both must rest on images whose labels the network was not trained on. A run that held some out has such images. One
that did not still knows how often each tag occurs among the labeled images, and what the network says of the unlabeled
set: its thresholds choose each tag as often on the unlabeled set as it occurs ("match"), and its probabilities stay as
they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tagspread.core.calibration import Calibration, Reliability, crossfitted, fit_calibration, reliability
from tagspread.core.decision import Decision, choose_thresholds, decide
from tagspread.run.artifact import artifact_facts
from tagspread.run.record import CHOSEN_ON, chosen_on_part
from tagspread.run.split import Part
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.vision.backbones import TagNet

MOST_OF_UNLABELED = (
    20_000  # images of the unlabeled set that are scored: enough for any tag that is on more than 1 in 1000
)
PLAIN = 0.5


def facts_of_run(
    dataset: Dataset, config: TrainConfig, network: TagNet, model: Path, logits_of: Callable[[np.ndarray], Tensor]
) -> dict[str, Any]:
    """Return the whole ``labels.json`` of a run that has just been trained.

    Args:
        dataset: what it was trained on.
        config: how.
        network: the network that predicts.
        model: the file with its weights, already written.
        logits_of: its logits of some rows of the dataset.
    """
    facts = artifact_facts(dataset.classes, config.to_dict(), network, dataset.store.shape, model)
    return facts | decide_for_run(dataset, logits_of, config.method_options.get("priors"))


def decide_for_run(
    dataset: Dataset, logits_of: Callable[[np.ndarray], Tensor], priors: dict[str, float] | None = None
) -> dict[str, Any]:
    """Return the thresholds and calibration of a run that has just been trained, for its ``labels.json``.

    Args:
        dataset: what it was trained on.
        logits_of: the chosen network's logits of some rows of the store.
        priors: how often a class occurs in the unlabeled set, by name, where the user knows better than the labeled
            part does.
    """
    rows, words, part = dataset.held_out, "held-out images", Part.HELD_OUT
    if not len(rows):
        rows, words, part = dataset.apart, "labeled images whose labels were not trained on", Part.APART
    y = dataset.y[rows]
    labeled = bool((y == 1).any() and (y == 0).any())
    if not labeled:
        rows = dataset.unlabeled[:: 1 + len(dataset.unlabeled) // MOST_OF_UNLABELED]
    if not len(rows):
        return _plain_cut(dataset, "nothing: no image was held out and there is no unlabeled set")
    logits = logits_of(rows).double().cpu().numpy()
    if not np.isfinite(logits).all():  # training went wrong; what it left is still the user's
        return _plain_cut(dataset, "nothing: the network's answers are not finite")
    if labeled:
        facts = decide_on(logits, y, dataset.classes, "f1", f"{len(rows):,} {words}")
        return facts | {CHOSEN_ON: chosen_on_part(part)}
    calibration = Calibration.identity(len(dataset.classes))
    shares = _proportions(dataset, priors or {})
    decision = choose_thresholds(calibration.probabilities(logits), policy="match", proportions=shares)
    source = f"{len(rows):,} images of the unlabeled set, to match how often each tag is labeled: nothing was held out"
    return _facts(dataset.classes, decision, source, calibration, None, None)


def _plain_cut(dataset: Dataset, source: str) -> dict[str, Any]:
    classes = dataset.classes
    decision = Decision(np.full(len(classes), PLAIN), PLAIN, "none")
    return _facts(classes, decision, source, Calibration.identity(len(classes)), None, None)


def decide_on(
    logits: np.ndarray,
    y: np.ndarray,
    classes: tuple[str, ...],
    policy: str,
    source: str,
    *,
    calibrate: bool = True,
    min_positives: int = 5,
) -> dict[str, Any]:
    """Return thresholds and calibration fitted on labeled rows, for ``labels.json``.

    Args:
        logits: rows x classes, of images that the network was not trained on.
        y: their labels: 1, 0, -1 unknown.
        classes: the tags' names.
        policy: what the thresholds are to be good for, see :func:`~tagspread.core.decision.choose_thresholds`.
        source: which images those are, in words.
        calibrate: also fit probabilities; else the network's own are kept.
        min_positives: a class with fewer takes what fits all classes together.
    """
    if not calibrate:
        calibration, shown = Calibration.identity(len(classes)), None
    else:
        calibration = fit_calibration(logits, y, min_positives=min_positives)
        before = Calibration.identity(len(classes)).probabilities(logits)
        after = crossfitted(logits, y, min_positives=min_positives)
        shown = {"before": _plain(reliability(before, y)), "after": _plain(reliability(after, y))}
    probabilities = calibration.probabilities(logits)
    decision = choose_thresholds(probabilities, y, policy, min_positives=min_positives)
    facts = _facts(classes, decision, source, calibration, source if calibrate else None, shown)
    nowhere = ~decide(probabilities, decision.thresholds).any(axis=0) & np.isfinite(decision.thresholds)
    facts["decision"]["classes_chosen_nowhere"] = [classes[k] for k in np.flatnonzero(nowhere)]
    return facts


def decision_in_words(facts: dict[str, Any]) -> str:
    """Return how tags are chosen, for a person, from what ``labels.json`` says.

    >>> decision_in_words({"decision": {"policy": "f1", "chosen_on": "60 held-out images"}, "calibration": {}})
    "tags are chosen by policy f1 on 60 held-out images; probabilities are the network's own, good for ranking"
    """
    policy, source = facts["decision"]["policy"], facts["decision"]["chosen_on"]
    fitted = facts["calibration"].get("fitted_on")
    known = f"fitted on {fitted}" if fitted else "the network's own, good for ranking"
    chosen = f"from {PLAIN} on, chosen on {source}" if policy == "none" else f"by policy {policy} on {source}"
    better = "" if fitted or policy == "f1" else " ('tagspread thresholds' fixes both, given labeled images to spare)"
    return f"tags are chosen {chosen}; probabilities are {known}{better}"


def _proportions(dataset: Dataset, priors: dict[str, float]) -> np.ndarray:
    """Return how often each class occurs: the prior where there is one, else counted; NaN where none is labeled."""
    known = dataset.y[dataset.labeled]
    positives, total = (known == 1).sum(axis=0), (known >= 0).sum(axis=0)
    counted = np.where(positives > 0, positives / np.maximum(total, 1), np.nan)
    return np.array([priors.get(name, share) for name, share in zip(dataset.classes, counted, strict=True)])


def _facts(
    classes: tuple[str, ...],
    decision: Decision,
    source: str,
    calibration: Calibration,
    fitted_on: str | None,
    shown: dict[str, Any] | None,
) -> dict[str, Any]:
    def names(places: tuple[int, ...]) -> list[str]:
        return [classes[k] for k in places]

    return {
        CHOSEN_ON: None,
        "thresholds": [None if math.isinf(cut) else cut for cut in decision.thresholds.tolist()],
        "decision": {
            "policy": decision.policy,
            "chosen_on": source,
            "pooled": None if math.isinf(decision.pooled) else decision.pooled,
            "classes_with_pooled_threshold": names(decision.rare),
            "classes_never_chosen": [
                name for name, cut in zip(classes, decision.thresholds, strict=True) if np.isinf(cut)
            ],
        },
        "calibration": {
            "slope": calibration.slope.tolist(),
            "intercept": calibration.intercept.tolist(),
            "fitted_on": fitted_on,
            "classes_with_pooled_fit": names(calibration.rare),
            "reliability": shown,
        },
    }


def _plain(shown: Reliability) -> dict[str, Any]:
    """Return reliability data for JSON, which knows no NaN."""
    plain: dict[str, Any] = {}
    for name, values in asdict(shown).items():
        numbers = values.tolist() if isinstance(values, np.ndarray) else values
        plain[name] = [None if x != x else x for x in numbers] if isinstance(numbers, list) else numbers  # noqa: PLR0124
    return plain
