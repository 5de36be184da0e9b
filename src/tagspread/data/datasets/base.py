"""A data set with a name: how its folder is recognized and read, how it is trained on, what was published on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tagspread.aliases import SettingValues
from tagspread.data.datasets.published import SHARES, PublishedTable
from tagspread.data.tables.label_table import LabelTable
from tagspread.errors import TagspreadError


class Parts(NamedTuple):
    """All labels, for training and for testing; and the images, training part first, where they are no files."""

    train: LabelTable
    test: LabelTable
    images: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class NamedDataset:
    """What ``tagspread bench NAME`` knows about a data set. One of ``read`` and ``draw`` is given.

    Attributes:
        name: what it is called on the command line.
        title: what it is called in tables.
        contents: what its folder must hold, for docs/guides/data.md and for messages.
        read: returns the labels of the training and the test part, from its folder.
        draw: makes labels and images for a number of training images, where there is no folder.
        signs: files or folders of which its folder has at least one.
        recipes: for each preset, the settings that differ from the preset's.
        method_recipes: for each method, the settings that differ on this data set.
        shares: labeled shares of its table, unless others are asked for.
        seeds: seeds of its table, unless others are asked for.
        published: figures of papers; those of the first paper that has one stand in the tables.
    """

    name: str
    title: str
    contents: str
    read: Callable[[Path], tuple[LabelTable, LabelTable]] | None = None
    draw: Callable[[int], Parts] | None = None
    signs: tuple[str, ...] = ()
    recipes: Mapping[str, SettingValues] = field(default_factory=dict)
    method_recipes: Mapping[str, SettingValues] = field(default_factory=dict)
    shares: tuple[float, ...] = SHARES
    seeds: tuple[int, ...] = (1, 2, 3)
    published: tuple[PublishedTable, ...] = ()

    def load(self, root: Path | None, size: int) -> Parts:
        """Return all labels.

        Args:
            root: the data set's folder; None for one that is drawn.
            size: how many training images to draw.
        """
        if self.draw is not None:
            if root is not None:
                raise TagspreadError(f"--root: {self.name} draws its own images; omit it, or name another data set.")
            return self.draw(size)
        if root is None:
            raise TagspreadError(f"give the folder of {self.name} with --root DIR; it must hold {self.contents}.")
        if not root.is_dir():
            raise TagspreadError(f"--root: there is no folder {root}.")
        if not any((root / sign).exists() for sign in self.signs):
            raise TagspreadError(
                f"--root: {root} is no folder of {self.name}, as it has no {' and no '.join(self.signs)}; it must hold "
                f"{self.contents}."
            )
        if self.read is None:
            raise TypeError(f"{self.name} has neither read nor draw")
        return Parts(*self.read(root))
