"""RandAugment on image batches: two random operations per image, grouped so that equal operations run together.

The random parameters are known on the host, so grouping the images by operation never waits for the device. For each of
the two slots, one table of parameters is sent to the device. Its rows are sorted so that every group is a slice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tagspread.vision import operations

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

SLOTS = 2  # operations drawn per image
APPLIED = 0.5  # probability that a drawn operation is applied
LEVELS = 10  # steps of each scale below; step 0, which has no effect, is never drawn
CUTOUT_FILL = (125, 122, 113)

# magnitude of each operation at each level, as a share of the side, in degrees, bits, gray levels or pixels
MAGNITUDES: dict[str, Floats] = {
    "Invert": np.zeros(LEVELS),
    "Cutout": np.linspace(0, 20, LEVELS).round(),
    "Sharpness": np.linspace(0, 0.9, LEVELS),
    "AutoContrast": np.zeros(LEVELS),
    "Posterize": np.linspace(8, 4, LEVELS).round(),
    "ShearX": np.linspace(0, 0.3, LEVELS),
    "TranslateX": np.linspace(0, 150 / 331, LEVELS),
    "TranslateY": np.linspace(0, 150 / 331, LEVELS),
    "ShearY": np.linspace(0, 0.3, LEVELS),
    "Rotate": np.linspace(0, 30, LEVELS),
    "Equalize": np.zeros(LEVELS),
    "Contrast": np.linspace(0, 0.9, LEVELS),
    "Color": np.linspace(0, 0.9, LEVELS),
    "Solarize": np.linspace(256, 0, LEVELS),
    "Brightness": np.linspace(0, 0.9, LEVELS),
}
OPERATIONS: tuple[str, ...] = tuple(MAGNITUDES)
SIGNED = ("ShearX", "ShearY", "TranslateX", "TranslateY")
FACTORS = ("Sharpness", "Contrast", "Color", "Brightness")
NEAREST = ("TranslateX", "TranslateY", "Rotate")
SHEARS = ("ShearX", "ShearY")

# the streams of random numbers of the first slot; each following slot adds SLOT_STREAMS
CHOICE, APPLY, SIGN, AT_X, AT_Y, SLOT_STREAMS = 0, 1, 2, 3, 4, 8


@dataclass(frozen=True)
class Choices:
    """The operations and parameters that RandAugment drew for B images.

    >>> first = np.array([[OPERATIONS.index("Rotate"), -1]])
    >>> chosen = Choices(first, np.array([[3, 9]]), np.ones((1, 2)), np.zeros((1, 2, 2)))
    >>> chosen.names(), chosen.values().tolist()  # ten degrees, then nothing
    ([('Rotate',)], [[10.0, 0.0]])
    """

    operation: Integers  # B x 2: index in OPERATIONS of each slot's operation, -1 if it is not applied
    level: Integers  # B x 2: 1..9
    sign: Floats  # B x 2: -1 or 1
    at: Floats  # B x 2 x 2: center (x, y) of each slot's Cutout, as a share of width and height

    def names(self) -> list[tuple[str, ...]]:
        """Return the names of the operations applied to each image, in order."""
        return [tuple(OPERATIONS[number] for number in slots if number >= 0) for slots in self.operation]

    def values(self) -> Floats:
        """Return the argument of each operation (B x 2): a signed share, a factor, degrees, bits or pixels."""
        arguments = np.zeros(self.operation.shape)
        for number, name in enumerate(OPERATIONS):
            magnitude = MAGNITUDES[name][self.level]
            if name in SIGNED:
                magnitude = magnitude * self.sign
            elif name in FACTORS:
                magnitude = 1 + magnitude * self.sign
            arguments = np.where(self.operation == number, magnitude, arguments)
        return arguments


def choose(operations: tuple[str, ...], draw: Callable[[int], Floats]) -> Choices:
    """Draw both slots of every image; ``draw`` returns one number in [0, 1) per image for each stream.

    >>> choose(("Invert", "Rotate"), lambda stream: np.array([0.49, 0.51])).names()
    [('Invert', 'Invert'), ()]
    """

    def slots(stream: int) -> Floats:
        return np.stack([draw(stream + slot * SLOT_STREAMS) for slot in range(SLOTS)], axis=1)

    # one draw over all pairs (operation, level), except for level 0
    pair = np.floor(slots(CHOICE) * len(operations) * (LEVELS - 1)).astype(np.int64)
    indices = np.array([OPERATIONS.index(name) for name in operations] or [-1])
    return Choices(
        operation=np.where(slots(APPLY) < APPLIED, indices[pair // (LEVELS - 1)], -1),
        level=pair % (LEVELS - 1) + 1,
        sign=np.where(slots(SIGN) < 0.5, -1.0, 1.0),
        at=np.stack([slots(AT_X), slots(AT_Y)], axis=2),
    )


# the columns of a slot's table
ROW, VALUE, X, Y, HORIZONTAL, INNER, OUTER = 0, 1, 2, 3, 4, slice(5, 11), slice(11, 17)


def apply(images: Tensor, choices: Choices) -> Tensor:
    """Apply both slots and return new images.

    >>> chosen = choose(("Invert",), lambda stream: np.array([0.2]) if stream < 8 else np.array([0.8]))
    >>> apply(torch.tensor([[[[1, 2]]]], dtype=torch.uint8), chosen).tolist()
    [[[[254, 253]]]]
    """
    height, width = images.shape[2:]
    views, values, operation = images.clone(), choices.values(), choices.operation.copy()
    nearest = np.isin(operation, [OPERATIONS.index(name) for name in NEAREST])
    moving = nearest | np.isin(operation, [OPERATIONS.index(name) for name in SHEARS])
    # a geometric operation followed by a nearest-pixel operation: do both in one resampling
    joined = moving[:, 0] & nearest[:, 1]
    matrices = [_matrices(operation[:, slot], values[:, slot], height, width) for slot in range(SLOTS)]
    outer = np.where(joined[:, None], matrices[1], operations.translation(0, 0))
    operation[joined, 1] = -1
    for slot in range(SLOTS):
        at = np.floor(choices.at[:, slot] * (width, height))
        horizontal = operation[:, slot] == OPERATIONS.index("ShearX")
        columns = (np.arange(len(views)), values[:, slot], at, horizontal, matrices[slot], outer)
        # float64 holds these integers exactly, so one table is enough
        table = np.column_stack(columns).astype(np.float64)
        group = np.array([*GROUP_OF, -1])[operation[:, slot]]
        order = np.argsort(group, kind="stable")[np.count_nonzero(group < 0) :]
        on_device = torch.from_numpy(table[order]).to(views.device, non_blocking=True)
        start = 0
        for number, size in zip(*np.unique(group[order], return_counts=True), strict=True):
            part, members = on_device[start : start + size], order[start : start + size]
            index = part[:, ROW].to(torch.int64)
            both_at_once = slot == 0 and bool(joined[members].any())
            changed = GROUPS[number](views.index_select(0, index), part, both_at_once)
            views.index_copy_(0, index, changed)
            start += size
    return views


def _matrices(operation: Integers, values: Floats, height: int, width: int) -> Integers:
    """Return the B x 6 matrices of the nearest-pixel operations; the identity for all others."""
    made = np.tile(operations.translation(0, 0), (len(operation), 1))
    for name in NEAREST:
        for k in np.flatnonzero(operation == OPERATIONS.index(name)):
            value = float(values[k])
            if name == "Rotate":
                made[k] = operations.rotation(value, height, width)
            elif name == "TranslateX":
                made[k] = operations.translation(value * width, 0)
            else:
                made[k] = operations.translation(0, value * height)
    return made


Apply = Callable[[Tensor, Tensor, bool], Tensor]  # images, their rows of the table, whether to apply OUTER, too


def _nearest(images: Tensor, table: Tensor, joined: bool) -> Tensor:
    return operations.nearest(images, table[:, INNER].to(torch.int64), _outer(table, joined))


def _shear(images: Tensor, table: Tensor, joined: bool) -> Tensor:
    return operations.shear(images, table[:, VALUE], table[:, HORIZONTAL] > 0, _outer(table, joined))


def _outer(table: Tensor, joined: bool) -> Tensor | None:
    return table[:, OUTER].to(torch.int64) if joined else None


def _cutout(images: Tensor, table: Tensor, _: bool) -> Tensor:
    side, x, y = table[:, VALUE : Y + 1].to(torch.int64).unbind(1)
    fill = torch.stack([torch.full_like(side, level) for level in CUTOUT_FILL[: images.shape[1]]], dim=1)
    return operations.cut_square(images, x, y, side, fill.to(torch.uint8))


def _plain(function: Callable[[Tensor], Tensor]) -> Apply:
    return lambda images, table, joined: function(images)


def _with_value(function: Callable[[Tensor, Tensor], Tensor]) -> Apply:
    return lambda images, table, joined: function(images, table[:, VALUE])


FUNCTIONS: dict[str, Apply] = {
    "Invert": _plain(operations.invert),
    "Cutout": _cutout,
    "Sharpness": _with_value(operations.sharpness),
    "AutoContrast": _plain(operations.autocontrast),
    "Posterize": _with_value(operations.posterize),
    "ShearX": _shear,
    "TranslateX": _nearest,
    "TranslateY": _nearest,
    "ShearY": _shear,
    "Rotate": _nearest,
    "Equalize": _plain(operations.equalize),
    "Contrast": _with_value(operations.contrast),
    "Color": _with_value(operations.color),
    "Solarize": _with_value(operations.solarize),
    "Brightness": _with_value(operations.brightness),
}
GROUPS = list(dict.fromkeys(FUNCTIONS.values()))  # operations with the same function are one group
GROUP_OF = [GROUPS.index(FUNCTIONS[name]) for name in OPERATIONS]
