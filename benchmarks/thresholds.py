"""Decision thresholds chosen on few labels: is the stated precision true, and is F1 better than at a fixed 0.5?

    python benchmarks/thresholds.py voc.npz [--labeled 100] [--draws 10] [--unlabeled 2000] [--out benchmarks/x.json]

The file holds features ``X``, labels ``Y`` and ``n_train``; the rows from ``n_train`` on are for testing. A file with
``X_train, Y_train, X_test, Y_test`` works, too. Without an argument, the file is ``features.npz`` in the folder that
the environment variable TAGSPREAD_DATA names. Each draw chooses some training rows as labeled, and as many as spare
labeled rows:

* ``out of fold``: ``TagSpreadClassifier`` chooses the thresholds on its out-of-fold predictions of the labeled rows.
* ``spare labels``: thresholds and calibration are chosen on the spare rows, as ``tagspread thresholds`` does.
* ``match``: each tag is predicted on the unlabeled rows as often as among the labeled rows, as a run does that held
  nothing out.

An interval is right if the rate on the test rows lies in it. Precision is checked for the tags that are predicted on at
least 20 test rows, because with fewer the test rows do not tell it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

import tagspread as ts
from tagspread.core.calibration import fit_calibration
from tagspread.core.decision import choose_thresholds, decide
from tagspread.core.expected import ExpectedRates, Rate, expected_rates

FEWEST_PREDICTED = 20


def read(file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return features and labels of the training rows, then of the test rows."""
    with np.load(file) as data:
        if "n_train" in data:
            n, x, y = int(data["n_train"]), data["X"].astype(np.float32), data["Y"].astype(np.int8)
            return x[:n], y[:n], x[n:], y[n:]
        return data["X_train"], data["Y_train"], data["X_test"], data["Y_test"]


def f1(decisions: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return the mean of F1 over classes (macro), and F1 over all decisions (micro), on rows with known labels."""
    hits, predicted, true = (decisions & (y == 1)).sum(0), (decisions & (y >= 0)).sum(0), (y == 1).sum(0)
    occurs = true > 0
    macro = (2 * hits[occurs] / (predicted[occurs] + true[occurs])).mean()
    return {"macro F1": 100 * macro, "micro F1": 100 * 2 * hits.sum() / (predicted.sum() + true.sum())}


def in_interval(decisions: np.ndarray, y: np.ndarray, rates: ExpectedRates) -> dict[str, list[float]]:
    """Return 1 for each class whose rate on the test rows lies in its interval, 0 for others; also the widths."""
    hits, predicted, true = (decisions & (y == 1)).sum(0), (decisions & (y >= 0)).sum(0), (y == 1).sum(0)
    found: dict[str, list[float]] = {}
    for name, rate, total, least in (
        ("precision", rates.precision, predicted, FEWEST_PREDICTED), ("recall", rates.recall, true, 1)
    ):  # fmt: skip
        shown = (total >= least) & ~np.isnan(rate.value)
        share = hits[shown] / total[shown]
        low, high = rate.low[shown], rate.high[shown]
        found[f"{name} in interval"] = ((low <= share) & (share <= high)).astype(float).tolist()
        found[f"{name} above"] = (share > high).astype(float).tolist()
        found[f"{name} below"] = (share < low).astype(float).tolist()
        found[f"{name} width"] = (high - low).tolist()
    return found


def draw(
    data: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], seed: int, labeled: int, unlabeled: int
) -> dict[str, dict[str, Any]]:
    """Return the results of one draw, by way of choosing."""
    x, y, test, test_y = data
    order = np.random.default_rng(seed).permutation(len(x))
    train, spare, rest = order[:labeled], order[labeled : 2 * labeled], order[2 * labeled :][:unlabeled]
    model = ts.TagSpreadClassifier().fit(x[train], y[train], x[rest])
    logits, spare_logits, rest_logits = (model.decision_function(rows) for rows in (test, x[spare], x[rest]))
    probabilities, counts = expit(logits), (y[train] == 1).sum(0)
    calibration = fit_calibration(spare_logits, y[spare])
    calibrated = calibration.probabilities(logits)

    def result(decisions: np.ndarray, rates: ExpectedRates | None = None) -> dict[str, Any]:
        found: dict[str, Any] = f1(decisions == 1, test_y)
        return found | (in_interval(decisions == 1, test_y, rates) if rates is not None else {})

    def on_spare(min_positives: int, enough_positives: int) -> dict[str, Any]:
        few = {"min_positives": min_positives, "enough_positives": enough_positives}
        chosen = choose_thresholds(calibration.probabilities(spare_logits), y[spare], "f1", **few)
        rates = expected_rates(spare_logits, y[spare], "f1", calibrate=True, **few)
        return result(decide(calibrated, chosen.thresholds), rates)

    def of_model(rates: ExpectedRates | None) -> ExpectedRates | None:
        """Leave out the classes without a labeled positive, which are never predicted."""
        if rates is None:
            return None
        unknown = np.where(counts > 0, 0.0, np.nan)
        precision, recall = (Rate(rate.value + unknown, *rate[1:]) for rate in (rates.precision, rates.recall))
        return ExpectedRates(precision, recall, rates.confidence)

    frequencies = np.where(counts > 0, counts / labeled, np.nan)
    matched = choose_thresholds(expit(rest_logits), policy="match", proportions=frequencies)
    return {
        "fixed 0.5": result(decide(probabilities, 0.5)),
        "out of fold": result(decide(probabilities, model.thresholds_), of_model(model.expected_rates_)),
        "match": result(decide(probabilities, matched.thresholds)),
        "fixed 0.5, calibrated on spare labels": result(decide(calibrated, 0.5)),
        "spare labels": on_spare(5, 20),
        "spare labels, each tag alone": on_spare(1, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "file", type=Path, nargs="?", default=Path(os.environ.get("TAGSPREAD_DATA", ".")) / "features.npz"
    )
    parser.add_argument("--labeled", type=int, default=100)
    parser.add_argument("--unlabeled", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # classes without a labeled positive
    data, draws = read(options.file), []
    for seed in range(options.draws):
        began = time.perf_counter()
        draws.append(draw(data, seed, options.labeled, options.unlabeled))
        print(f"draw {seed + 1} of {options.draws}: {time.perf_counter() - began:.0f} s", flush=True)
    summary: dict[str, dict[str, float]] = {}
    for way in draws[0]:
        for name, value in draws[0][way].items():
            values = [x for one in draws for x in (one[way][name] if isinstance(value, list) else [one[way][name]])]
            summary.setdefault(way, {})[name] = round(float(np.mean(values)), 3)
        print(way, json.dumps(summary[way]))
    if options.out:
        text = {"labeled": options.labeled, "unlabeled": options.unlabeled, "draws": options.draws, "mean": summary}
        options.out.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
