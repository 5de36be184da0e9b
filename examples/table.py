"""Tag the rows of a table: which of several faults does a machine have? 80 of 1,500 machines were inspected.

    python examples/table.py

The readings are generated. Some inspectors looked for some faults only: such an entry is -1, like all entries of a
machine that nobody inspected.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import tagspread as ts

FAULTS = ["bearing", "imbalance", "overheating", "leak"]


def make_machines(count: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return readings, one row per machine, and its faults."""
    rng = np.random.default_rng(seed)
    faults = (rng.random((count, 4)) < [0.3, 0.2, 0.25, 0.1]).astype(int)
    effect = np.random.default_rng(7).normal(size=(4, 24))
    effect *= 3.5 / np.linalg.norm(effect, axis=1, keepdims=True)
    scale = np.geomspace(0.01, 1000, 24)  # volts, hertz, degrees: features need not be alike
    readings = (faults @ effect + rng.normal(size=(count, 24))) * scale + 20
    return pd.DataFrame(readings).add_prefix("sensor "), pd.DataFrame(faults, columns=FAULTS)


def main() -> None:
    """Train without and with the machines that nobody inspected, and say what is wrong with new ones."""
    readings, faults = make_machines(1500)
    new_readings, new_faults = make_machines(2000, seed=1)
    given = faults.copy()
    given.iloc[80:] = -1  # not inspected
    given.iloc[:15, 3] = -1  # inspected, but not for leaks

    for name, method in (("inspected machines alone", "bce"), ("with all the others", "cap")):
        model = ts.TagSpreadClassifier(method).fit(readings, given)
        print(f"{name}: mAP {100 * model.score(new_readings, new_faults):.1f}")

    positives, known = model.class_counts_
    for k, fault in enumerate(model.classes_):
        print(f"{fault}: {positives[k]} of {known[k]} inspected; called from {model.thresholds_[k]:.2f} on")
    found = ts.multilabel_report(model.predict(new_readings), new_faults.to_numpy())
    print(f"of the faults called, {found['OP']:.0%} are there; of those there, {found['OR']:.0%} are called")


if __name__ == "__main__":
    main()
