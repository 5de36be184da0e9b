"""Named datasets: their folder layout, reader, training recipes and published results."""

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
    """Training and test labels, and the images, training images first, if they are drawn and not read from files."""

    train: LabelTable
    test: LabelTable
    images: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class NamedDataset:
    """A dataset for ``tagspread bench NAME``, with either ``read`` or ``draw``.

    Attributes:
        name: name on the command line.
        title: name in result tables.
        contents: required contents of the folder, for docs/guides/data.md and messages.
        read: returns training and test labels from the folder.
        draw: generates labels and images for a number of training images; for datasets without a folder.
        signs: files or folders; the folder of the dataset has at least one of them.
        recipes: for each preset, the settings that differ from it.
        method_recipes: for each method, the settings that differ for it.
        shares: default labeled shares.
        seeds: default seeds.
        published: results of papers; tables show the first result found.
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
        """Return all labels, and the images of a drawn dataset.

        Args:
            root: folder of the dataset; None for a drawn dataset.
            size: number of training images to draw.
        """
        if self.draw is not None:
            if root is not None:
                raise TagspreadError(
                    f"--root: {self.name} draws its own images and has no folder; omit --root, or name another data "
                    "set."
                )
            return self.draw(size)
        if root is None:
            raise TagspreadError(f"give the folder of {self.name} with --root DIR; it must hold {self.contents}.")
        if not root.is_dir():
            raise TagspreadError(f"--root: there is no folder {root}.")
        if not any((root / sign).exists() for sign in self.signs):
            raise TagspreadError(
                f"--root: {root} is not a {self.name} folder because it has no {' and no '.join(self.signs)}; it must "
                f"hold {self.contents}."
            )
        if self.read is None:
            raise TypeError(f"{self.name} has neither read nor draw")
        return Parts(*self.read(root))
