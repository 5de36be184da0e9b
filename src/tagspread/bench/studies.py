"""Studies besides the table: the reliable interval (figure 3), thresholds, how far class proportions can be trusted.

The last needs labels only: labeled sets of growing size n are drawn from training labels that are all known, and
what they say of each class's proportion is compared with the rest, beside what theory promises.
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
CELLS_AT_MOST = 2 * 10**8  # labels counted in all draws together: keeps large data sets within seconds

Variant: TypeAlias = tuple[str, SettingValues]  # a method and its options


def eta_variants() -> tuple[Variant, ...]:
    """Return CAP with one of its two shares lowered while the other stays at 1."""
    pos: list[Variant] = [("cap", {"keep_pos": share, "keep_neg": 1.0}) for share in KEEP_POS]
    neg: list[Variant] = [("cap", {"keep_pos": 1.0, "keep_neg": share}) for share in KEEP_NEG]
    return tuple(pos + neg[:-1])  # both at 1 is the same cell


class Study(NamedTuple):
    """What a study runs besides the methods as they are.

    Attributes:
        variants: methods with options of their own.
        tuned: methods whose threshold is chosen on held-out labels.
        table: it makes rows of the paper's table, so it usually has the table's labeled shares; others have one.
    """

    variants: tuple[Variant, ...] = ()
    tuned: tuple[str, ...] = ()
    table: bool = False


STUDIES = {"eta": Study(eta_variants()), "thresholds": Study(tuned=tuple(TUNED_FROM), table=True)}


def split_proportions(y: np.ndarray, shares: Iterable[float], seeds: Iterable[int]) -> list[JsonObject]:
    """Return, for each split of the paper, the class frequencies of its labeled and of its unlabeled part."""
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
    r"""Return, for growing n, the errors :math:`|\hat\gamma_k - \gamma_k|` and what was promised about them.

    The true proportion is that of the rows that were not drawn, as in the paper's theorem 1.
    """
    rows, classes = y.shape
    # up to half of the rows: a smaller rest is itself no good measure of what is true
    sizes = np.unique(np.geomspace(min(20, rows // 2), rows // 2, points).astype(int))
    draws = max(5, min(DRAWS, CELLS_AT_MOST // max(1, y.size)))
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
    says_something = 2 * rows < n * (rows - n)  # else theorem 1 holds with probability 0
    bound = theorem1_bound(n, rows - n) if says_something else None
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
    """Write both label studies down, so that figures can be made later where the data are not."""
    study = {
        "classes": list(classes),
        "confidence": CONFIDENCE,
        "splits": split_proportions(y, shares, seeds),
        "errors": proportion_errors(y),
    }
    write_file(file, json.dumps(study) + "\n")


def read_label_study(file: Path) -> JsonObject | None:
    """Return what was written, or None if nothing was."""
    try:
        study: JsonObject = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TagspreadError(f"{file} cannot be read ({error}); delete it, and the next call makes it anew.") from None
    return study
