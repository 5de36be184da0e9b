"""Did the unlabeled images help? What labels alone had made of the network is kept, compared, and put into words.

The labeled-only model is what the run had before it used the unlabeled set: the student at the end of the warm-up or,
where the head is fitted instead, a linear head fitted on the labeled images alone. The main stage also trains longer
than a warm-up, and all of the network where a probe leaves it frozen; a run of ``asl`` with as many epochs tells that
apart.
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
FEW = 50  # images, below which luck with the split moves a figure more than its interval says
NO_PART = (
    "no tagged image was kept from training to measure it on; put some aside with --test-share 0.2, or give "
    "--test-labels"
)
NO_MODEL = "the run had no model without them to compare with; give warmup_epochs, or start 'fitted_head'"
NO_POSITIVE = "no image that was kept from training carries any tag; put more aside"
LEFT_OUT = "cross-validation on the labeled ones could show no gain from them"
KINDS = {"warmup": "the network after the warm-up", "fitted_head": "a linear head on the frozen network"}

Logits = Callable[[np.ndarray], Tensor]


def measure_gain(dataset: Dataset, with_unlabeled: Logits, without: Logits, start: str) -> JsonObject:
    """Return what ``metrics.json`` says about the labeled-only model and about the gain over it.

    Args:
        dataset: what was learned; measured is on its held-out part, or on the test part if nothing was held out.
        with_unlabeled: logits of rows by the model that used the unlabeled set.
        without: the same by the one that had labels alone.
        start: how the run started, which tells what that one is.
    """
    part = "held_out" if len(dataset.held_out) else "test"
    rows: np.ndarray = getattr(dataset, part)
    if not len(rows):
        return {"gain": {"not_measured": NO_PART}}
    ours, theirs = with_unlabeled(rows), without(rows)
    truth = torch.from_numpy(dataset.y[rows]).to(ours.device)
    before = mean_average_precision(theirs, truth)
    if math.isnan(before):
        return {"gain": {"not_measured": NO_POSITIVE}}
    difference, low, high = paired_difference_interval(ours, theirs, truth, samples=SAMPLES)
    interval = mean_average_precision_interval(theirs, truth, samples=SAMPLES)
    return {
        "labeled_only": {"mAP": before, "interval_90": interval, "what": KINDS[start]},
        "gain": {"difference": difference, "interval_90": (low, high), "part": part, "images": len(rows)},
    }


def gain_in_words(metrics: JsonObject, *, advise: bool = True) -> str | None:
    r"""Return the answer for a person, from the figures of ``metrics.json``; None for a run without an unlabeled set.

    Args:
        metrics: what is in ``metrics.json``.
        advise: also say what could have been done better.

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
        return f"the unlabeled images were left out: {gain['left_out']}"
    if "not_measured" in gain:
        return f"whether the unlabeled images helped is not known: {gain['not_measured']}"
    words = _compared(metrics["labeled_only"], gain)
    if metrics["network"] == "labeled_only":
        return f"{words}; the model without them is the one that is kept"
    if gain["images"] < FEW:
        words += "; on so few images that is a hint, no more"
    harmful = advise and gain["interval_90"][1] < 0
    return f"{words}; --keep-better would have kept the model without them" if harmful else words


def _compared(labeled_only: JsonObject, gain: JsonObject) -> str:
    low, high = gain["interval_90"]
    before = round(100 * labeled_only["mAP"], 1)
    after = round(100 * (labeled_only["mAP"] + gain["difference"]), 1)
    difference = (after - before) / 100  # of the figures as they are shown, or they would contradict each other
    where = f"on {counted(gain['images'], gain['part'].replace('_', '-') + ' image')}"
    interval = f"90 % interval {points(low)} to {points(high)}"
    if points(difference) == "0.0":
        return (
            f"the unlabeled images made no difference: mAP {before:.1f} with and without them "
            f"({labeled_only['what']}), {where} ({interval} points)"
        )
    verdict = "helped" if low > 0 else "hurt" if high < 0 else "made no difference that can be told"
    return (
        f"the unlabeled images {verdict}: mAP {after:.1f} against {before:.1f} without "
        f"them ({labeled_only['what']}), a {'gain' if difference > 0 else 'loss'} of {points(abs(difference))} "
        f"points {where} ({interval})"
    )
