"""Compare ``TagSpreadClassifier`` with scikit-learn's methods on three small datasets (``docs/benchmarks.md``).

    python benchmarks/features.py FOLDER [--seeds 10] [--out table.md]

FOLDER holds ``emotions.npz``, ``scene.npz`` and ``yeast.npz`` with ``X_train, Y_train, X_test, Y_test``. Of the
training rows, a random 5, 10 or 20 % keep their labels, and the others are the unlabeled set. mAP is measured on the
test rows. All methods use the same features, standardized on all training rows.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

import tagspread as ts

Scores = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # features, labels with -1, test features → scores
DATA, SHARES = ("emotions", "scene", "yeast"), (0.05, 0.1, 0.2)


def logistic_regression(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    labeled = y[:, 0] >= 0
    return per_class(lambda target: LogisticRegression(max_iter=1000).fit(x[labeled], target[labeled]), y, test)


def self_training(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    wrapped = MultiOutputClassifier(SelfTrainingClassifier(LogisticRegression(max_iter=1000)))
    learnable = [k for k in range(y.shape[1]) if len(np.unique(y[y[:, k] >= 0, k])) == 2]
    scores = np.zeros((len(test), y.shape[1]))
    for k, probabilities in zip(learnable, wrapped.fit(x, y[:, learnable]).predict_proba(test), strict=True):
        scores[:, k] = probabilities[:, 1]
    return scores


def label_spreading(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    return per_class(lambda target: LabelSpreading(kernel="knn", n_neighbors=7).fit(x, target), y, test)


def per_class(fit: Callable[[np.ndarray], object], y: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit each class separately; a class without labeled positives or negatives gets equal scores."""
    scores = np.zeros((len(test), y.shape[1]))
    for k in range(y.shape[1]):
        if len(np.unique(y[y[:, k] >= 0, k])) == 2:
            positive = fit(y[:, k]).predict_proba(test)[:, 1]  # type: ignore[attr-defined]
            scores[:, k] = np.nan_to_num(positive)  # label spreading gives NaN for rows that no label reaches
    return scores


def estimator(method: str, used: list[bool]) -> Scores:
    def run(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
        model = ts.TagSpreadClassifier(method).fit(x, y)
        used.append(model.unlabeled_weight_ > 0)
        scores: np.ndarray = model.decision_function(test)
        return scores

    return run


def measure(data: dict[str, np.ndarray], share: float, seeds: int) -> tuple[dict[str, np.ndarray], float]:
    """Return the mAP of each method per seed, and the share of seeds in which CAP used the unlabeled set."""
    scaler = StandardScaler().fit(data["X_train"])
    x, test = scaler.transform(data["X_train"]), scaler.transform(data["X_test"])
    used: list[bool] = []
    methods: dict[str, Scores] = {
        "logistic regression": logistic_regression,
        "self-training": self_training,
        "label spreading": label_spreading,
        "tagspread, `bce`": estimator("bce", []),
        "tagspread, `cap`": estimator("cap", used),
    }
    maps: dict[str, list[float]] = {name: [] for name in methods}
    for seed in range(seeds):
        labeled = np.random.default_rng(seed).permutation(len(x))[: round(share * len(x))]
        y = np.full(data["Y_train"].shape, -1)
        y[labeled] = data["Y_train"][labeled]
        for name, scores in methods.items():
            maps[name].append(100 * ts.mean_average_precision(scores(x, y, test), data["Y_test"]))
    return {name: np.array(values) for name, values in maps.items()}, float(np.mean(used))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # classes without a labeled positive, rows that no label reaches
    lines: list[str] = []
    for name in DATA:
        with np.load(options.folder / f"{name}.npz") as file:
            data = {key: file[key] for key in ("X_train", "Y_train", "X_test", "Y_test")}
        for share in SHARES:
            maps, used = measure(data, share, options.seeds)
            if not lines:
                lines += [
                    f"| data, labeled | {' | '.join(maps)} | `cap` - `bce` | unlabeled set used |",
                    "|---" * 8 + "|",
                ]
            gain = maps["tagspread, `cap`"] - maps["tagspread, `bce`"]
            cells = [f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" for values in (*maps.values(), gain)]
            rows = round(share * len(data["X_train"]))
            lines.append(f"| {name}, {share:.0%} ({rows} rows) | {' | '.join(cells)} | {used:.0%} |")
            print(lines[-1], flush=True)
            if options.out:
                options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
