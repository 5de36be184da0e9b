"""Counter-based random numbers for augmentation: each number is a hash of (seed, epoch, image, stream).

An image therefore gets the same view in any batch, process and device, and a run can be resumed without saving the
state of a generator.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tagspread.errors import TagspreadError

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: consecutive multiples lie far apart
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of the splitmix64 finalizer
SHIFTS = (30, 27, 31)


def uniform(seed: int, epoch: int, rows: npt.ArrayLike, stream: int) -> npt.NDArray[np.float64]:
    """Return one uniform random number in [0, 1) per image.

    Args:
        seed: seed of the run; any integer.
        epoch: epoch number; each epoch has its own numbers.
        rows: index of each image in its data set, a vector of integers.
        stream: number of the stream; separates the random numbers that one image needs in one epoch.

    >>> uniform(0, 3, [5, 6], stream=1).round(4).tolist()
    [0.8985, 0.7264]
    >>> uniform(0, 3, [6], stream=1).round(4).tolist()
    [0.7264]
    """
    index = check_rows(rows)
    key = 0
    for part in (seed, epoch, stream):
        # mix after every part, so that (1, 2) and (2, 1) give unrelated keys
        key = int(_mix(np.array([(key + (part + 1) * GOLDEN) & MASK], np.uint64))[0])
    counter = index.view(np.uint64) * np.uint64(GOLDEN) + np.array([key], np.uint64)
    # a float64 holds 53 bits, so the largest number stays below 1
    return (_mix(counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def check_rows(rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return ``rows`` as a vector of integers, or raise.

    >>> check_rows([3, 1])
    array([3, 1])
    """
    index = np.asarray(rows)
    if index.ndim != 1 or (index.size > 0 and index.dtype.kind not in "iu"):
        raise TagspreadError(
            f"rows is an array of {index.dtype} with shape {index.shape}; "
            "give a vector with the integer index of each image in its data set."
        )
    return index.astype(np.int64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the splitmix64 finalizer, a bijection in which each input bit changes about half of the output bits."""
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(multiplier)
    return values ^ (values >> np.uint64(SHIFTS[-1]))
