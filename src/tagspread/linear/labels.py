"""Label matrices with missing labels: find the labeled rows, the unlabeled rows and the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tagspread.core.arrays import as_labels, without_missing
from tagspread.errors import TagspreadError


@dataclass(frozen=True)
class Labels:
    """The labels of all rows, and the indices of labeled and unlabeled rows.

    Attributes:
        y: rows x classes: 1, 0, -1 unknown, int8.
        classes: names of the columns, or their numbers.
        labeled: indices of the rows with at least one known label.
        unlabeled: indices of the other rows.
        dtype: dtype of the given matrix, which predictions are returned in.
    """

    y: np.ndarray
    classes: np.ndarray
    labeled: np.ndarray
    unlabeled: np.ndarray
    dtype: np.dtype[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes as text."""
        return tuple(map(str, self.classes))


def read_labels(given: Any, rows: int | None = None, purpose: str = "learn from") -> Labels:
    """Check a label matrix: an array, a data frame (its columns name the classes) or a sparse matrix of 1 and 0.

    Missing values of nullable columns (``Int8``, ``boolean``) are unknown.

    Args:
        given: rows x classes of 1, 0 and -1.
        rows: expected number of rows.
        purpose: what the labels are needed for, for the error message.

    >>> labels = read_labels([[1, 0], [-1, -1], [-1, 1]])
    >>> labels.labeled.tolist(), labels.unlabeled.tolist(), labels.names
    ([0, 2], [1], ('0', '1'))
    """
    if given is None:
        raise TagspreadError("TagSpreadClassifier requires y to be passed, but the target y is None.")
    names = getattr(given, "columns", None)
    values = _as_array(given)
    if values.ndim == 1:
        raise TagspreadError(
            f"Unknown label type: Y has shape {values.shape}; give a matrix with one column per class, such as "
            "y.reshape(-1, 1) for a single yes/no question."
        )
    try:
        y = as_labels("Y", values).numpy().copy()
    except TagspreadError as error:
        hint = " For gaps in a data frame: Y.fillna(-1).astype(int)." if _has_gaps(given) else ""
        raise TagspreadError(f"Unknown label type: {error}{hint}") from None  # the wording of scikit-learn
    if rows is not None and len(y) != rows:
        raise TagspreadError(f"X has {rows} rows but Y has {len(y)}; give one row of labels per row of features.")
    classes = np.arange(y.shape[1]) if names is None else np.asarray(names)
    if len(set(classes.tolist())) < len(classes):
        raise TagspreadError("Y has two columns of the same name; give each class its own name.")
    has_label = (y >= 0).any(axis=1)
    if not has_label.any():
        raise TagspreadError(
            f"no row of Y is labeled: all {len(y)} rows are -1, so there is nothing to {purpose}; give a few labeled "
            "rows per class. (In cross-validation, shuffle: every fold needs some, as in KFold(5, shuffle=True).)"
        )
    return Labels(y, classes, np.flatnonzero(has_label), np.flatnonzero(~has_label), values.dtype)


def _as_array(given: Any) -> np.ndarray:
    if hasattr(given, "toarray"):
        dense: np.ndarray = given.toarray()
        return dense
    try:
        return np.asarray(without_missing(given))
    except ValueError:
        raise TagspreadError(
            "Unknown label type: Y has rows of different lengths; if they are lists of tags, make a matrix of them "
            "with MultiLabelBinarizer().fit_transform(Y)."
        ) from None


def _has_gaps(given: Any) -> bool:
    return hasattr(given, "isna") and bool(np.asarray(given.isna()).any())
