"""Input validation: matrices in numpy or torch, and numbers per class; results are of the kind that was given."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tagspread.errors import TagspreadError

Array: TypeAlias = Any  # a tensor if the argument was a tensor, otherwise a numpy array
ArrayLike: TypeAlias = npt.ArrayLike | Tensor
Ratio: TypeAlias = tuple[int, int]  # numerator and denominator

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


def without_missing(values: Any) -> Any:
    """Return a data frame of nullable numbers (``Int8``, ``boolean``) as an array in which -1 stands for missing.

    Everything else is returned as it is.
    """
    dtypes = list(getattr(values, "dtypes", ())) if hasattr(values, "columns") else []
    nullable = [hasattr(dtype, "na_value") and getattr(dtype, "kind", "") in tuple("biuf") for dtype in dtypes]
    if not any(nullable):
        return values
    columns = []
    for k, dtype in enumerate(dtypes):
        column = values.iloc[:, k]
        if nullable[k]:
            column = column.to_numpy(dtype=np.int8 if dtype.kind == "b" else f"{dtype.kind}8", na_value=-1)
        columns.append(np.asarray(column))
    return np.column_stack(columns)


def as_labels(argument: str, values: ArrayLike) -> Tensor:
    """Return a non-empty rows x classes int8 matrix that holds only 1, 0 and -1 (unknown)."""
    given = check_matrix(argument, as_tensor(argument, without_missing(values)))
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


def per_class(argument: str, values: ArrayLike, classes: int) -> list[float]:
    """Return one number per class; a single number is used for all classes.

    A float stands for the decimal that it prints as, in its own precision: float32 0.7 is 0.7, not 0.69999999.
    """
    given = as_tensor(argument, values).cpu()
    if given.ndim > 1 or (given.ndim == 1 and len(given) != classes):
        raise TagspreadError(
            f"{argument} has shape {tuple(given.shape)} but there are {classes} classes; give one number per class, "
            "or a single one for all."
        )
    if given.dtype in (torch.float16, torch.bfloat16):
        given = given.float()
    numbers = given.reshape(-1).numpy()
    exact = [float(str(number)) for number in numbers] if given.is_floating_point() else numbers.tolist()
    return exact if given.ndim else exact * classes


def counts(argument: str, values: ArrayLike, classes: int) -> list[int]:
    """Return one non-negative integer per class.

    >>> counts("labeled", 22, 3)
    [22, 22, 22]
    """
    numbers = per_class(argument, values, classes)
    for k, number in enumerate(numbers):
        if not (math.isfinite(number) and number >= 0 and number == int(number)):
            raise TagspreadError(
                f"{argument} is {number} for class {k}; it counts rows, so give a whole number of at least 0. "
                "(If you have proportions, give them as priors to the functions that take priors.)"
            )
    return [int(number) for number in numbers]


def share(argument: str, number: float, k: int) -> Ratio:
    """Return ``number``, which must lie between 0 and 1, as an exact ratio.

    >>> share("keep_pos", 0.7, 0)
    (7, 10)
    """
    if not 0 <= number <= 1:
        raise TagspreadError(f"{argument} is {number} for class {k}; give a share from 0 to 1.")
    return Fraction(str(float(number))).as_integer_ratio()


def shares(argument: str, values: ArrayLike, classes: int) -> list[Ratio]:
    """Return one exact ratio between 0 and 1 per class."""
    if isinstance(values, float | int):  # fast path for the most common case
        return [share(argument, values, 0)] * classes
    return [share(argument, number, k) for k, number in enumerate(per_class(argument, values, classes))]
