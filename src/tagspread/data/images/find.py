"""Find image files: all images below a folder; those without labels are the unlabeled set."""

from __future__ import annotations

import os
from pathlib import Path

from tagspread.errors import TagspreadError

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))


def find_images(folder: str | Path) -> list[Path]:
    """Return all image files below ``folder``, sorted.

    Hidden files and folders are left out (thumbnails, trash folders, ``._photo.jpg`` of macOS). Links to folders are
    not followed, to avoid loops.
    """
    top = Path(folder)
    if not top.is_dir():
        raise TagspreadError(f"{top} is not a folder; give the folder with the images.")
    images: list[Path] = []
    for where, folders, names in os.walk(top):
        folders[:] = [
            name for name in folders if not name.startswith(".")
        ]  # os.walk descends into the remaining folders
        images += [
            Path(where) / name for name in names if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        ]
    return sorted(images)
