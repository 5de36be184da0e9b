"""Gain from the unlabeled images: the mAP of the run's model compared with that of its labeled-only model.

The labeled-only model is the student before it used the unlabeled set: after the warm-up or, if the head is fitted
instead, a linear head fitted on the labeled images only. The main stage also trains for longer, and trains the whole
network where the linear head leaves it frozen. To separate this effect, compare with a run of method ``asl`` with the
same number of epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tagspread.aliases import JsonObject
from tagspread.core.compare import paired_difference_interval
from tagspread.core.metrics import mean_average_precision, mean_average_precision_interval
from tagspread.train.dataset import Dataset
from tagspread.wording import counted, points

LABELED_ONLY = "labeled_only.safetensors"
SAMPLES = 200
FEW = 50  # images, below which the mAP varies more with the split than its interval says
NO_PART = "there are no labeled images to evaluate it on; set some aside with --test-share 0.2, or give --test-labels"
NO_MODEL = "the run has no labeled-only model to compare with; give warmup_epochs, or start 'fitted_head'"
NO_POSITIVE = "no image to evaluate it on carries any tag; set more labeled images aside"
LEFT_OUT = "cross-validation on the labeled images showed no gain from them"
LABELED_ONLY_KINDS = {"warmup": "the network after the warm-up", "fitted_head": "a linear head on the frozen network"}

Logits = Callable[[np.ndarray], Tensor]


def measure_gain(dataset: Dataset, with_unlabeled: Logits, without: Logits, start: str) -> JsonObject:
    """Compare the run's model with its labeled-only model; return the entries for ``metrics.json``.

    Args:
        dataset: the data; the held-out images are used, or the test images if none were held out.
        with_unlabeled: computes logits of rows with the model that was trained on the unlabeled set.
        without: the same with the labeled-only model.
        start: the setting ``start``, which decides what the labeled-only model is.
    """
    part = "held_out" if len(dataset.held_out) else "test"
    rows: np.ndarray = getattr(dataset, part)
    if not len(rows):
        return {"gain": {"not_measured": NO_PART}}
    scores, baseline_scores = with_unlabeled(rows), without(rows)
    truth = torch.from_numpy(dataset.y[rows]).to(scores.device)
    baseline = mean_average_precision(baseline_scores, truth)
    if math.isnan(baseline):
        return {"gain": {"not_measured": NO_POSITIVE}}
    difference, low, high = paired_difference_interval(scores, baseline_scores, truth, samples=SAMPLES)
    interval = mean_average_precision_interval(baseline_scores, truth, samples=SAMPLES)
    return {
        "labeled_only": {"mAP": baseline, "interval_90": interval, "what": LABELED_ONLY_KINDS[start]},
        "gain": {"difference": difference, "interval_90": (low, high), "part": part, "images": len(rows)},
    }


def gain_in_words(metrics: JsonObject, *, advise: bool = True) -> str | None:
    r"""Describe the gain recorded in ``metrics.json`` in a sentence; return None for a run without an unlabeled set.

    Args:
        metrics: the contents of ``metrics.json``.
        advise: also recommend an option if the unlabeled images made the tagger worse.

    >>> labeled_only = {"mAP": 0.69, "interval_90": (0.66, 0.72), "what": "the network after the warm-up"}
    >>> gain = {"difference": 0.06, "interval_90": (0.048, 0.071), "part": "test", "images": 500}
    >>> words = gain_in_words({"network": "ema", "labeled_only": labeled_only, "gain": gain})
    >>> print(*words.split(", "), sep=",\n")
    the unlabeled images helped: mAP 75.0 against 69.0 without them (the network after the warm-up),
    a gain of 6.0 points on 500 test images (90 % interval 4.8 to 7.1)
    """
    gain = metrics.get("gain")
    if gain is None:
        return None
    if "left_out" in gain:
        return f"the unlabeled images were not used: {gain['left_out']}"
    if "not_measured" in gain:
        return f"it is not known whether the unlabeled images helped: {gain['not_measured']}"
    sentence = _comparison(metrics["labeled_only"], gain)
    if metrics["network"] == "labeled_only":
        return f"{sentence}; the run keeps the labeled-only model"
    if gain["images"] < FEW:
        sentence += "; with so few images this is a rough estimate"
    advice = "; --keep-better would have kept the labeled-only model"
    return sentence + advice if advise and gain["interval_90"][1] < 0 else sentence


def _comparison(labeled_only: JsonObject, gain: JsonObject) -> str:
    low, high = gain["interval_90"]
    before = round(100 * labeled_only["mAP"], 1)
    after = round(100 * (labeled_only["mAP"] + gain["difference"]), 1)
    difference = (after - before) / 100  # difference of the rounded values, so that the sentence is consistent
    where = f"on {counted(gain['images'], gain['part'].replace('_', '-') + ' image')}"
    interval = f"90 % interval {points(low)} to {points(high)}"
    if points(difference) == "0.0":
        return (
            f"the unlabeled images made no difference: mAP {before:.1f} with and without them "
            f"({labeled_only['what']}), {where} ({interval} points)"
        )
    verdict = "helped" if low > 0 else "hurt" if high < 0 else "made no measurable difference"
    return (
        f"the unlabeled images {verdict}: mAP {after:.1f} against {before:.1f} without "
        f"them ({labeled_only['what']}), a {'gain' if difference > 0 else 'loss'} of {points(abs(difference))} "
        f"points {where} ({interval})"
    )
