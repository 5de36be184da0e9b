"""Predictions for images: predicted tags, probabilities, and the reason why an image could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FIXED = ("image", "tags", "error")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predicted tags and probabilities of images.

    Attributes:
        images: name of each image: its path or its number.
        classes: names of the tags, in the order of the columns.
        probabilities: images x classes; NaN for an image that could not be read.
        chosen: images x classes, true for predicted tags.
        errors: the reason why an image could not be read; empty if it could.
    """

    images: list[str]
    classes: tuple[str, ...]
    probabilities: np.ndarray
    chosen: np.ndarray
    errors: list[str]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def tags(self) -> list[list[str]]:
        """Predicted tags of each image, the most probable first."""
        order = np.argsort(-self.probabilities, axis=1, kind="stable")
        return [[self.classes[k] for k in row if on[k]] for row, on in zip(order.tolist(), self.chosen, strict=True)]

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame: image, tags (a list), error, and one column of probabilities per class."""
        import pandas as pd

        frame = pd.DataFrame({"image": self.images, "tags": self.tags, "error": self.errors})
        return pd.concat([frame, pd.DataFrame(self.probabilities, columns=column_names(self.classes))], axis=1)


def column_names(classes: Sequence[str]) -> list[str]:
    """Return the column names of the probabilities: class names, changed if they clash with another column.

    >>> column_names(["cat", "error"])
    ['cat', 'error (class)']
    """
    return [f"{name} (class)" if name in FIXED else name for name in classes]
