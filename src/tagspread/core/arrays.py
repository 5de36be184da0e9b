"""Input validation for arrays: accept numpy or torch, check shape and values, return the kind that was given."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tagspread.errors import TagspreadError

Array: TypeAlias = Any  # a tensor if the argument was a tensor, otherwise a numpy array
ArrayLike: TypeAlias = npt.ArrayLike | Tensor

LABEL_VALUES = "1 (present), 0 (absent) or -1 (unknown)"


def as_tensor(argument: str, values: ArrayLike) -> Tensor:
    """View ``values`` as a detached tensor; copy only where the memory layout requires it."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
    except ValueError:
        raise TagspreadError(f"{argument} has rows of different lengths; give a matrix.") from None
    if array.dtype.kind not in "fiub":
        raise TagspreadError(f"{argument} holds {array.dtype} entries; give numbers.")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype in (np.uint16, np.uint32, np.uint64):
        array = array.astype(np.int64)
    if array.dtype == np.longdouble and array.dtype != np.float64:
        array = array.astype(np.float64)
    # torch accepts neither negative strides nor (without a warning) read-only memory
    if any(step < 0 for step in array.strides) or not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def as_scores(argument: str, values: ArrayLike) -> Tensor:
    """Return a non-empty rows x classes matrix of scores; half precision is kept for the caller to widen."""
    scores = check_matrix(argument, as_tensor(argument, values))
    return scores if scores.is_floating_point() else scores.to(torch.float64)


def as_labels(argument: str, values: ArrayLike) -> Tensor:
    """Return a non-empty rows x classes int8 matrix that holds only 1, 0 and -1 (unknown)."""
    given = check_matrix(argument, as_tensor(argument, values))
    labels = given.to(torch.int8)
    # comparing with the original also catches fractions, NaN and numbers that overflow int8
    bad = (labels != given) | (labels > 1) | (labels < -1)
    if bool(bad.any()):
        row, column = first_true(bad)
        raise TagspreadError(
            f"{argument} holds {given[row, column].item()!r} at row {row}, class {column}; "
            f"each entry must be {LABEL_VALUES}."
        )
    return labels


def check_matrix(argument: str, values: Tensor) -> Tensor:
    """Raise unless ``values`` is two-dimensional with at least one row and one class."""
    if values.ndim != 2:
        raise TagspreadError(
            f"{argument} has shape {tuple(values.shape)}; it must be a matrix with one row per item "
            "and one column per class."
        )
    rows, classes = values.shape
    if rows == 0:
        raise TagspreadError(f"{argument} has no rows (shape {tuple(values.shape)}); give at least one item.")
    if classes == 0:
        raise TagspreadError(f"{argument} has no classes (shape {tuple(values.shape)}); give at least one column.")
    return values


def check_same_shape(argument: str, values: Tensor, other_argument: str, other: Tensor) -> None:
    """Raise unless both have the same shape."""
    if values.shape != other.shape:
        raise TagspreadError(
            f"{argument} has shape {tuple(values.shape)} but {other_argument} has shape {tuple(other.shape)}; "
            "both need one row per item and one column per class, in the same order."
        )


def check_no_nan(argument: str, values: Tensor) -> None:
    """Raise if any entry is NaN; the message names the first one."""
    if not values.is_floating_point():
        return
    # the sum is NaN if any entry is NaN; inf - inf also gives NaN, and then the exact test below decides
    if bool(torch.isnan(values.sum())) and bool((bad := torch.isnan(values)).any()):
        row, column = first_true(bad)
        raise nan_error(argument, row, column)


def nan_error(argument: str, row: int, column: int) -> TagspreadError:
    """Return the error for a NaN entry of a matrix."""
    return TagspreadError(
        f"{argument} holds NaN at row {row}, class {column}; a NaN cannot be ranked. "
        "Find out why the model returned it (often the learning rate is too high) or leave the row out."
    )


def first_true(mask: Tensor) -> tuple[int, int]:
    """Return (row, column) of the first true entry of a matrix."""
    row, column = mask.nonzero()[0].tolist()
    return row, column


def like(result: Tensor, given: ArrayLike) -> Array:
    """Convert ``result`` to the kind of array that ``given`` is: a tensor for a tensor, otherwise a numpy array."""
    return result if isinstance(given, Tensor) else result.cpu().numpy()
