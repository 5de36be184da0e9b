"""Decision thresholds and calibration of a trained run, chosen on held-out images or by class frequency.

Both need images whose labels were not trained on. If the run held out images, or its method set some apart, thresholds
(policy ``f1``) and calibration are fitted on those. Otherwise the thresholds match class frequencies (policy
``match``): each tag is predicted on the unlabeled set as often as it occurs among the labeled images, and the
probabilities are not calibrated.
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
from tagspread.core.expected import ExpectedRates, Rate, expected_rates
from tagspread.run.artifact import artifact_facts
from tagspread.run.record import CHOSEN_ON, chosen_on_part
from tagspread.run.split import Part
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.vision.backbones import TagNet

MAX_SCORED_UNLABELED = 20_000  # unlabeled images to score: enough for any tag on more than 1 in 1000 images
DEFAULT_THRESHOLD = 0.5


def facts_of_run(
    dataset: Dataset, config: TrainConfig, network: TagNet, model: Path, logits_of: Callable[[np.ndarray], Tensor]
) -> dict[str, Any]:
    """Return the contents of ``labels.json`` for a run that has just been trained.

    Args:
        dataset: the data that it was trained on.
        config: its settings.
        network: the network that predicts.
        model: the file with the network's weights, already written.
        logits_of: computes the network's logits of some rows of the dataset.
    """
    facts = artifact_facts(dataset.classes, config.to_dict(), network, dataset.store.shape, model)
    return facts | decide_for_run(dataset, logits_of, config.method_options.get("priors"))


def decide_for_run(
    dataset: Dataset, logits_of: Callable[[np.ndarray], Tensor], priors: dict[str, float] | None = None
) -> dict[str, Any]:
    """Return the thresholds and calibration of a run that has just been trained, for its ``labels.json``.

    Args:
        dataset: the data that it was trained on.
        logits_of: computes the logits of some rows of the store.
        priors: class frequencies in the unlabeled set by class name, where the user knows them better than the labeled
            set does.
    """
    rows, description, part = dataset.held_out, "held-out images", Part.HELD_OUT
    if not len(rows):
        rows, description, part = dataset.apart, "labeled images whose labels were not used in training", Part.APART
    y = dataset.y[rows]
    has_labels = bool((y == 1).any() and (y == 0).any())
    if not has_labels:
        rows = dataset.unlabeled[:: 1 + len(dataset.unlabeled) // MAX_SCORED_UNLABELED]
    if not len(rows):
        return _default_decision(dataset, "nothing: no image was held out and there is no unlabeled set")
    logits = logits_of(rows).double().cpu().numpy()
    if not np.isfinite(logits).all():  # training diverged, but the run is kept
        return _default_decision(dataset, "nothing: the network's scores are not finite")
    if has_labels:
        facts = decide_on(logits, y, dataset.classes, "f1", f"{len(rows):,} {description}")
        return facts | {CHOSEN_ON: chosen_on_part(part)}
    calibration = Calibration.identity(len(dataset.classes))
    frequencies = _class_frequencies(dataset, priors or {})
    decision = choose_thresholds(calibration.probabilities(logits), policy="match", proportions=frequencies)
    source = f"{len(rows):,} unlabeled images, to match the class frequencies of the labeled ones: nothing was held out"
    return _facts(dataset.classes, decision, source, calibration, None, None)


def _default_decision(dataset: Dataset, source: str) -> dict[str, Any]:
    classes = dataset.classes
    decision = Decision(np.full(len(classes), DEFAULT_THRESHOLD), DEFAULT_THRESHOLD, "none")
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
    enough_positives: int = 20,
) -> dict[str, Any]:
    """Choose thresholds and fit the calibration on labeled rows; return both for ``labels.json``.

    The result also has the precision and recall to expect on new images
    (:func:`~tagspread.core.expected.expected_rates`).

    Args:
        logits: rows x classes, of images that the network was not trained on.
        y: their labels: 1, 0, -1 unknown.
        classes: names of the tags.
        policy: how to choose the thresholds, see :func:`~tagspread.core.decision.choose_thresholds`.
        source: description of the images, for people.
        calibrate: also calibrate the probabilities; otherwise those of the network are used.
        min_positives: classes with fewer positives share one threshold and one calibration.
        enough_positives: classes with fewer positives borrow evidence from the others for their threshold.
    """
    if not calibrate:
        calibration, reliability_data = Calibration.identity(len(classes)), None
    else:
        calibration = fit_calibration(logits, y, min_positives=min_positives)
        before = Calibration.identity(len(classes)).probabilities(logits)
        after = crossfitted(logits, y, min_positives=min_positives)
        reliability_data = {"before": _for_json(reliability(before, y)), "after": _for_json(reliability(after, y))}
    probabilities = calibration.probabilities(logits)
    few = {"min_positives": min_positives, "enough_positives": enough_positives}
    decision = choose_thresholds(probabilities, y, policy, **few)
    facts = _facts(classes, decision, source, calibration, source if calibrate else None, reliability_data)
    rates = expected_rates(logits if calibrate else probabilities, y, policy, calibrate=calibrate, **few)
    facts["decision"] |= {
        "positives": (y == 1).sum(axis=0).tolist(),
        "enough_positives": enough_positives,
        "expected": _expected_for_json(rates, decision),
    }
    never_reached = ~decide(probabilities, decision.thresholds).any(axis=0) & np.isfinite(decision.thresholds)
    facts["decision"]["classes_chosen_nowhere"] = [classes[k] for k in np.flatnonzero(never_reached)]
    return facts


def decision_in_words(facts: dict[str, Any]) -> str:
    """Describe the thresholds and calibration in ``labels.json`` in a sentence.

    >>> decision_in_words({"decision": {"policy": "f1", "chosen_on": "60 held-out images"}, "calibration": {}})
    'thresholds were chosen by policy f1 on 60 held-out images; probabilities are not calibrated, good for ranking only'
    """
    decision = facts.get("decision", {"policy": "unknown", "chosen_on": "images that labels.json does not name"})
    policy, source = decision["policy"], decision["chosen_on"]
    fitted_on = facts["calibration"].get("fitted_on")
    if policy == "none":
        thresholds = f"thresholds are {DEFAULT_THRESHOLD}, chosen on {source}"
    else:
        thresholds = f"thresholds were chosen by policy {policy} on {source}"
    probabilities = f"calibrated on {fitted_on}" if fitted_on else "not calibrated, good for ranking only"
    hint = " ('tagspread thresholds' improves both, with labeled images that were not used in training)"
    return f"{thresholds}; probabilities are {probabilities}{'' if fitted_on or policy == 'f1' else hint}"


def _class_frequencies(dataset: Dataset, priors: dict[str, float]) -> np.ndarray:
    """Return the frequency of each class: its prior if given, otherwise counted; NaN without a labeled positive."""
    y = dataset.y[dataset.labeled]
    positives, known = (y == 1).sum(axis=0), (y >= 0).sum(axis=0)
    counted = np.where(positives > 0, positives / np.maximum(known, 1), np.nan)
    return np.array([priors.get(name, share) for name, share in zip(dataset.classes, counted, strict=True)])


def _facts(
    classes: tuple[str, ...],
    decision: Decision,
    source: str,
    calibration: Calibration,
    fitted_on: str | None,
    reliability_data: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return thresholds and calibration as they are stored in ``labels.json``."""

    def names(places: tuple[int, ...]) -> list[str]:
        return [classes[k] for k in places]

    return {
        CHOSEN_ON: None,
        "thresholds": [None if math.isinf(threshold) else threshold for threshold in decision.thresholds.tolist()],
        "decision": {
            "policy": decision.policy,
            "chosen_on": source,
            "pooled": None if math.isinf(decision.pooled) else decision.pooled,
            "classes_with_pooled_threshold": names(decision.rare),
            "classes_with_shrunken_threshold": names(decision.shrunken),
            "classes_never_chosen": [
                name for name, threshold in zip(classes, decision.thresholds, strict=True) if np.isinf(threshold)
            ],
        },
        "calibration": {
            "slope": calibration.slope.tolist(),
            "intercept": calibration.intercept.tolist(),
            "fitted_on": fitted_on,
            "classes_with_pooled_fit": names(calibration.rare),
            "reliability": reliability_data,
        },
    }


def _expected_for_json(rates: ExpectedRates, decision: Decision) -> dict[str, Any]:
    """Return the expected rates as plain values: value, low and high per class; None where nothing is known."""
    is_chosen = np.isfinite(np.asarray(decision.thresholds))

    def triples(rate: Rate) -> list[list[float] | None]:
        rows = np.stack(rate, axis=1)
        known = is_chosen & ~np.isnan(rate.value)
        return [row.tolist() if has else None for row, has in zip(rows, known, strict=True)]

    return {
        "confidence": rates.confidence,
        "precision": triples(rates.precision),
        "recall": triples(rates.recall),
    }


def _for_json(data: Reliability) -> dict[str, Any]:
    """Return reliability data as plain values; NaN, which JSON does not have, becomes None."""
    plain: dict[str, Any] = {}
    for name, values in asdict(data).items():
        numbers = values.tolist() if isinstance(values, np.ndarray) else values
        plain[name] = [None if x != x else x for x in numbers] if isinstance(numbers, list) else numbers  # noqa: PLR0124
    return plain
