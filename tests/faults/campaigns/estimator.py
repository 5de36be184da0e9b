"""Estimator: features and labels of wrong types and shapes, with gaps, infinities and huge values."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError

from tagspread.errors import TagspreadError
from tests.faults.campaigns.harness import Case
from tests.faults.campaigns.world import World

ROWS, FEATURES, CLASSES = 30, 4, 3
REFUSALS = (ValueError, TypeError, NotFittedError)  # of scikit-learn and of tagspread
ODD_OPTIONS: dict[str, tuple[Any, ...]] = {
    "method": ("cap", "bce", "top1", "zzz", 3, None, "evil.py:Rule"),
    "head": ("linear", "mlp", "x", None),
    "ridge": ("auto", 0.3, 0, -1, "x", float("nan"), 1e300, None, True, [1]),
    "hidden": (4, 0, -1, 2.5, "x", 10**9, None),
    "unlabeled_weight": ("auto", 0, 1, -1, "x", float("inf"), None, 1e300),
    "standardize": (True, False, "x", None),
    "max_rounds": (2, 0, -1, 1.5, "x", None),
    "tol": (0.001, -1, 2, "x", float("nan"), None),
    "folds": (2, 1, 0, 1000, 2.5, "x", None),
    "policy": ("f1", "match", "x", "fbeta:0", "fbeta:x", "precision:2", None, 3),
    "device": ("cpu", "x", "cuda:99", None, 3),
    "random_state": (0, -1, "x", 1.5, None, 2**40, np.random.RandomState(0)),
}


def _frame(values: np.ndarray, kind: Any) -> Any:
    import pandas as pd

    frame = pd.DataFrame(values, columns=[f"c{k}" for k in range(values.shape[1])])
    return frame.astype(kind) if kind else frame


def features(rng: random.Random, base: np.ndarray) -> tuple[Any, str]:
    """Return features of an odd kind, and their kind in words."""
    import pandas as pd

    big, holes = base * rng.choice((1e20, 1e150, 1e300, 1e-300)), base.copy()
    holes[0, 0] = rng.choice((np.nan, np.inf, -np.inf))
    integers = np.round(base * 10).astype(np.int64)
    kinds: dict[str, Callable[[], Any]] = {
        "float64": lambda: base,
        "float32": lambda: base.astype(np.float32),
        "float16": lambda: base.astype(np.float16),
        "huge": lambda: big,
        "holes": lambda: holes,
        "integers": lambda: integers,
        "bool": lambda: base > 0,
        "uint8": lambda: integers.astype(np.uint8),
        "int8": lambda: integers.astype(np.int8),
        "object": lambda: base.astype(object),
        "strings": lambda: base.astype(str),
        "bytes": lambda: base.astype(str).astype("S"),
        "complex": lambda: base + 1j,
        "dates": lambda: integers.astype("datetime64[s]"),
        "one row": lambda: base[:1],
        "no rows": lambda: base[:0],
        "no columns": lambda: base[:, :0],
        "one column": lambda: base[:, :1],
        "vector": lambda: base[:, 0],
        "cube": lambda: base[:, :, None],
        "scalar": lambda: 3.0,
        "None": lambda: None,
        "list": base.tolist,
        "ragged": lambda: [*base[:-1].tolist(), [1.0]],
        "csr": lambda: sparse.csr_matrix(base),
        "csc": lambda: sparse.csc_matrix(base),
        "coo array": lambda: sparse.coo_array(base),
        "dok": lambda: sparse.dok_matrix(base),
        "sparse holes": lambda: sparse.csr_matrix(holes),
        "sparse empty": lambda: sparse.csr_matrix(base.shape),
        "frame": lambda: _frame(base, ""),
        "Float64": lambda: _frame(base, "Float64"),
        "Int8": lambda: _frame(integers % 50, "Int8"),
        "Int8 gaps": lambda: _frame(integers % 50, "Int8").mask(base > 1),
        "boolean": lambda: _frame(base > 0, "boolean"),
        "category": lambda: _frame(integers % 3, "category"),
        "series": lambda: pd.Series(base[:, 0]),
        "masked": lambda: np.ma.masked_greater(base, 1),
        "constant": lambda: np.zeros_like(base),
        "same": lambda: np.ones_like(base) * 1e6,
        "fortran": lambda: np.asfortranarray(base),
        "read only": lambda: _read_only(base),
        "big endian": lambda: base.astype(">f8"),
        "strided": lambda: np.repeat(base, 2, axis=1)[:, ::2],
        "wide": lambda: np.tile(base, (1, 50)),
        "matrix": lambda: np.asmatrix(base),
        "subnormal": lambda: base * 1e-310,
        "one huge": lambda: np.where(base == base.max(), 1e308, base),
        "dict": lambda: {"a": 1},
        "generator": lambda: (row for row in base),
        "string": lambda: "features",
        "duplicate names": lambda: _frame(base, "").rename(columns={"c1": "c0"}),
        "arrow": lambda: _frame(base, "double[pyarrow]"),
    }
    kind = rng.choice(sorted(kinds))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # of the matrix
        return kinds[kind](), kind


def labels(rng: random.Random, base: np.ndarray) -> tuple[Any, str]:
    """Return labels of an odd kind, and their kind in words."""
    import pandas as pd

    real = base.astype(float)
    gaps = np.where(base < 0, np.nan, real)
    kinds: dict[str, Callable[[], Any]] = {
        "int": lambda: base,
        "int8": lambda: base.astype(np.int8),
        "float": lambda: real,
        "bool": lambda: base > 0,
        "nan": lambda: gaps,
        "uint8": lambda: base.astype(np.uint8),
        "strings": lambda: base.astype(str),
        "object": lambda: base.astype(object),
        "None": lambda: None,
        "vector": lambda: base[:, 0],
        "column": lambda: base[:, :1],
        "no columns": lambda: base[:, :0],
        "fewer rows": lambda: base[:-1],
        "all unknown": lambda: np.full_like(base, -1),
        "all 1": lambda: np.ones_like(base),
        "all 0": lambda: np.zeros_like(base),
        "twos": lambda: base + 1,
        "half": lambda: real / 2,
        "cube": lambda: base[:, :, None],
        "list": base.tolist,
        "ragged": lambda: [[1]] * (len(base) - 1) + [[1, 0]],
        "tags": lambda: [["sea"], ["sky", "sea"]] * (len(base) // 2),
        "sparse": lambda: sparse.csr_matrix(np.maximum(base, 0)),
        "frame": lambda: _frame(base, ""),
        "Int8": lambda: _frame(base, "Int8"),
        "Int8 gaps": lambda: _frame(base, "Int8").mask(base < 0),
        "boolean": lambda: _frame(base > 0, "boolean"),
        "boolean gaps": lambda: _frame(base > 0, "boolean").mask(base < 0),
        "category": lambda: _frame(base, "category"),
        "series": lambda: pd.Series(base[:, 0]),
        "huge": lambda: real * 1e300,
        "infinite": lambda: np.where(base > 0, np.inf, real),
        "one labeled row": lambda: np.where(np.arange(len(base))[:, None] == 0, np.maximum(base, 0), -1),
        "duplicates": lambda: _frame(base, "").rename(columns={"c1": "c0"}),
        "scalar": lambda: 1,
        "dict": lambda: {"a": 1},
        "dates": lambda: base.astype("datetime64[s]"),
        "masked": lambda: np.ma.masked_less(base, 0),
        "complex": lambda: base + 0j,
        "Series Int8": lambda: pd.Series(base[:, 0], dtype="Int8"),
        "arrow": lambda: _frame(base, "int8[pyarrow]"),
    }
    kind = rng.choice(sorted(kinds))
    return kinds[kind](), kind


def _read_only(values: np.ndarray) -> np.ndarray:
    copy = values.copy()
    copy.setflags(write=False)
    return copy


class Estimator:
    """``TagSpreadClassifier`` with odd input: an error of a kind that scikit-learn knows, or finite probabilities."""

    name = "estimator"
    count = 1700
    quick = 20
    trains = False

    def __init__(self, world: World, number: int) -> None:
        del world, number

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        del folder
        numbers = np.random.default_rng(rng.getrandbits(32))
        base_x = numbers.normal(size=(ROWS, FEATURES))
        base_y = (base_x[:, :CLASSES] + numbers.normal(size=(ROWS, CLASSES)) > 0).astype(int)
        base_y[ROWS // 2 :] = -1
        x, x_kind = features(rng, base_x) if rng.random() < 0.6 else (base_x, "usual")
        y, y_kind = labels(rng, base_y) if rng.random() < 0.6 else (base_y, "usual")
        more, more_kind = features(rng, base_x) if rng.random() < 0.15 else (None, "none")
        options: dict[str, Any] = {"ridge": 0.3, "folds": 2, "max_rounds": 2}
        changed = rng.sample(sorted(ODD_OPTIONS), rng.choice((0, 0, 0, 1, 2)))
        options |= {name: rng.choice(ODD_OPTIONS[name]) for name in changed}
        odd, odd_kind = features(rng, base_x) if rng.random() < 0.3 else (x, "as X")

        def job() -> None:
            from tagspread import TagSpreadClassifier

            warnings.simplefilter("default", RuntimeWarning)
            warnings.simplefilter("ignore", UserWarning)
            try:
                model = TagSpreadClassifier(**options).fit(x, y, more)
                probabilities, decided = model.predict_proba(odd), model.predict(odd)
            except REFUSALS as error:
                if not str(error).strip():
                    raise RuntimeError("an error without words") from error
                raise TagspreadError(str(error)) from None
            if not (np.isfinite(probabilities).all() and (probabilities >= 0).all() and (probabilities <= 1).all()):
                raise RuntimeError("probabilities are not within 0 and 1")
            if probabilities.shape != decided.shape or not np.isin(np.asarray(decided, float), (0, 1)).all():
                raise RuntimeError("decisions are not 0 or 1")

        given = {name: options[name] for name in changed}
        return Case(
            f"X {x_kind}, Y {y_kind}, X_unlabeled {more_kind}, predict {odd_kind}, {given}",
            job,
        )
