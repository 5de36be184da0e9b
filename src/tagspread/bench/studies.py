"""Benchmark studies: keep_pos and keep_neg (figure 3), decision thresholds, and errors of class proportions.

The study of class proportions needs labels only. It draws labeled sets of growing size n from the fully labeled
training set and compares their class proportions with those of the other images, and with theoretical bounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from tagspread.aliases import JsonObject, SettingValues
from tagspread.bench.results import write_file
from tagspread.bench.threshold_choice import TUNED_FROM
from tagspread.core.theory import proportion_interval, theorem1_bound
from tagspread.data.split import paper_split
from tagspread.errors import TagspreadError

# the ranges of the paper
KEEP_POS = (0.8, 0.85, 0.9, 0.95, 1.0)
KEEP_NEG = (0.95, 0.96, 0.97, 0.98, 0.99, 1.0)
CONFIDENCE = 0.9
LABEL_STUDY = "label_study.json"
DRAWS = 200
MAX_LABELS = 2 * 10**8  # labels counted in all draws, so that large datasets take seconds

Variant: TypeAlias = tuple[str, SettingValues]  # a method and its options


def eta_variants() -> tuple[Variant, ...]:
    """Return CAP with keep_pos below 1 and keep_neg 1, and the other way round."""
    pos: list[Variant] = [("cap", {"keep_pos": share, "keep_neg": 1.0}) for share in KEEP_POS]
    neg: list[Variant] = [("cap", {"keep_pos": 1.0, "keep_neg": share}) for share in KEEP_NEG]
    return tuple(pos + neg[:-1])  # both lists end with the cell in which both are 1


class Study(NamedTuple):
    """Cells that a study adds to a grid.

    Attributes:
        variants: methods with their options.
        tuned: methods whose threshold is chosen on held-out labels.
        table: whether the study adds rows to the paper's table; by default it then has all its labeled shares, not one.
    """

    variants: tuple[Variant, ...] = ()
    tuned: tuple[str, ...] = ()
    table: bool = False


STUDIES = {"eta": Study(eta_variants()), "thresholds": Study(tuned=tuple(TUNED_FROM), table=True)}


def split_proportions(y: np.ndarray, shares: Iterable[float], seeds: Iterable[int]) -> list[JsonObject]:
    """Return the class frequencies of the labeled and the unlabeled set for each split of the paper."""
    splits = []
    for share in shares:
        for seed in seeds:
            labeled, unlabeled = paper_split(len(y), share, seed)
            if not len(labeled):
                continue
            positives = (y[labeled] == 1).sum(0)
            low, high = proportion_interval(positives, len(labeled), CONFIDENCE)
            splits.append(
                {
                    "p": share, "seed": seed, "n": len(labeled), "m": len(unlabeled),
                    "estimated": (positives / len(labeled)).tolist(), "low": low.tolist(), "high": high.tolist(),
                    "true": (y[unlabeled] == 1).mean(0).tolist(),
                }
            )  # fmt: skip
    return splits


def proportion_errors(y: np.ndarray, points: int = 16, seed: int = 0) -> list[JsonObject]:
    r"""Return the errors :math:`|\hat\gamma_k - \gamma_k|` of class proportions for growing n, with their bounds.

    The true proportion is that of the rows that are not drawn, as in the paper's theorem 1.
    """
    rows, classes = y.shape
    # at most half of the rows, because the true proportion of few remaining rows is itself uncertain
    sizes = np.unique(np.geomspace(min(20, rows // 2), rows // 2, points).astype(int))
    draws = max(5, min(DRAWS, MAX_LABELS // max(1, y.size)))
    rng, total = np.random.default_rng(seed), (y == 1).sum(0)
    counts = np.empty((draws, len(sizes), classes), dtype=np.int64)
    for draw in counts:
        draw[:] = np.cumsum(y[rng.permutation(rows)] == 1, axis=0)[sizes - 1]
    return [_errors_at(int(n), counts[:, i], total, rows) for i, n in enumerate(sizes)]


def _errors_at(n: int, counts: np.ndarray, total: np.ndarray, rows: int) -> JsonObject:
    truth = (total - counts) / (rows - n)
    errors = np.abs(counts / n - truth)
    bounds = [proportion_interval(draw, n, CONFIDENCE) for draw in counts]
    low, high = (np.stack([pair[side] for pair in bounds]) for side in (0, 1))
    spread = proportion_interval(np.full(counts.shape[1], n // 2), n, CONFIDENCE, "hoeffding")
    is_informative = 2 * rows < n * (rows - n)  # otherwise theorem 1 holds with probability 0
    bound = theorem1_bound(n, rows - n) if is_informative else None
    return {
        "n": n, "m": rows - n, "draws": len(counts),
        "median_error": float(np.median(errors)), "worst_class_error": float(errors.max(1).mean()),
        "error_90": float(np.quantile(errors, CONFIDENCE)),
        "exact_half_width": float((high - low).mean() / 2),
        "exact_worst_half_width": float((high - low).max(1).mean() / 2),
        "exact_coverage": float(((low <= truth) & (truth <= high)).mean()),
        "hoeffding_half_width": float((spread[1] - spread[0]).max() / 2),
        "theorem1_bound": bound,
        "theorem1_coverage": None if bound is None else float((errors <= bound).mean()),
    }  # fmt: skip


def write_label_study(
    file: Path, y: np.ndarray, classes: tuple[str, ...], shares: Iterable[float], seeds: Iterable[int]
) -> None:
    """Write the study of class proportions to a file, so that charts can be drawn without the data."""
    study = {
        "classes": list(classes),
        "confidence": CONFIDENCE,
        "splits": split_proportions(y, shares, seeds),
        "errors": proportion_errors(y),
    }
    write_file(file, json.dumps(study) + "\n")


def read_label_study(file: Path) -> JsonObject | None:
    """Read the study of class proportions; return None if it does not exist."""
    try:
        study: JsonObject = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TagspreadError(
            f"{file} cannot be read ({error}); delete the file; the next run creates it again."
        ) from None
    return study
