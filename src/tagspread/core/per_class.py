"""Per-class numbers: broadcast one number to all classes, read counts as integers and shares as exact ratios."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

import torch

from tagspread.core.arrays import ArrayLike, as_tensor
from tagspread.errors import TagspreadError

Ratio: TypeAlias = tuple[int, int]  # numerator and denominator


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
