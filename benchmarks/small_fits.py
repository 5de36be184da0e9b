"""Small fits: the estimator against logistic regression with cross-validation (``docs/benchmarks.md``).

    python benchmarks/small_fits.py

Features are 1,280 normal numbers plus a direction of their own for each of the 20 classes. The reference is
``MultiOutputClassifier(LogisticRegressionCV(Cs=4, cv=4))`` of scikit-learn on the labeled rows. Both are fitted in turn
with one thread, and the CPU time of the fastest fit counts, because other programs may use the machine.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV
from sklearn.multioutput import MultiOutputClassifier

import tagspread as ts

FEATURES, CLASSES, SHARE, SIGNAL, REPEATS = 1280, 20, 0.3, 0.3, 3
CASES = ((30, 5), (30, 30), (160, 160), (320, 160), (1600, 160))  # rows, labeled


def dataset(rows: int, labeled: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels; the rows after the labeled ones are unlabeled."""
    rng = np.random.default_rng(0)
    y = (rng.random((rows, CLASSES)) < SHARE).astype(int)
    x = rng.normal(size=(rows, FEATURES)) + SIGNAL * (y @ rng.normal(size=(CLASSES, FEATURES)))
    y[labeled:] = -1
    return x.astype(np.float32), y


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of a fit."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    warnings.simplefilter("ignore")  # about classes that no labeled row carries
    torch.set_num_threads(1)
    print("| rows | labeled | tagspread, s | scikit-learn, s | ratio | unlabeled rows used |")
    print("|---|---|---|---|---|---|")
    for rows, labeled in CASES:
        x, y = dataset(rows, labeled)
        counts = y[:labeled].sum(0)
        # cross-validation in scikit-learn needs every class on both sides of every fold
        can_compare = bool((np.minimum(counts, labeled - counts) >= 4).all())
        reference = MultiOutputClassifier(LogisticRegressionCV(Cs=4, cv=4))
        own, other = [], []
        for _ in range(REPEATS):
            model = ts.TagSpreadClassifier()
            own.append(seconds(lambda model=model, x=x, y=y: model.fit(x, y)))  # type: ignore[misc]
            if can_compare:
                other.append(
                    seconds(lambda x=x, y=y, n=labeled, model=reference: model.fit(x[:n], y[:n]))  # type: ignore[misc]
                )
        fastest = f"{min(other):.2f} | {min(own) / min(other):.2f}" if other else "refuses | "
        print(f"| {rows} | {labeled} | {min(own):.2f} | {fastest} | {model.unlabeled_weight_:g} |", flush=True)


if __name__ == "__main__":
    main()
