"""Find image files: all images below a folder, and what is left out there; images without labels are unlabeled."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tagspread.data.images.formats import DECODABLE, IMAGE_SUFFIXES, undecodable_in_words
from tagspread.data.images.paths import Paths, PathsWriter
from tagspread.errors import TagspreadError
from tagspread.wording import counted

NAMED = 3  # paths that a note names


class UnreadableFolder(NamedTuple):
    """A folder that cannot be listed, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class FolderListing:
    """The images below a folder, and everything that may hold images and is left out.

    Attributes:
        folder: the folder.
        images: the image files, sorted.
        undecodable: files that are images by their suffix, but of a format that cannot be decoded here.
        unreadable: folders below it that cannot be listed.
        links: links to folders, which are not followed, to avoid loops.
    """

    folder: Path
    images: Paths
    undecodable: Paths
    unreadable: tuple[UnreadableFolder, ...]
    links: tuple[Path, ...]

    def notes(self) -> list[str]:
        """Return one sentence for each kind of file or folder that is left out."""
        notes = []
        if self.unreadable:
            folders = "folders" if len(self.unreadable) > 1 else "folder"
            named = self._named(folder.path for folder in self.unreadable)
            notes.append(
                f"{len(self.unreadable):,} {folders} below {self.folder} cannot be read, so the images in there are "
                f"missing: {named} ({self.unreadable[0].reason})"
            )
        if count := len(self.undecodable):
            suffixes = undecodable_in_words(path.suffix.lower() for path in self.undecodable)
            notes.append(
                f"{counted(count, 'image file')} below {self.folder} cannot be decoded here and "
                f"{'is' if count == 1 else 'are'} left out ({suffixes})"
            )
        if self.links:
            links = "links to folders are" if len(self.links) > 1 else "link to a folder is"
            notes.append(f"{len(self.links):,} {links} not followed: {self._named(self.links)}")
        return notes

    def _named(self, paths: Iterable[Path]) -> str:
        names = [str(path.relative_to(self.folder)) for path in paths]
        return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


def find_images(folder: str | Path) -> Paths:
    """Return all image files below a folder, sorted; see :func:`list_folder`."""
    return list_folder(folder).images


def list_folder(folder: str | Path) -> FolderListing:
    """List the images below a folder, in the order of their paths.

    Hidden files and folders are left out (thumbnails, trash folders, ``._photo.jpg`` of macOS). Links to folders are
    not followed, to avoid loops.
    """
    top = Path(folder)
    if not top.is_dir():
        raise TagspreadError(f"{top} is not a folder; give the folder with the images.")
    images, undecodable = PathsWriter(), PathsWriter()
    unreadable: list[UnreadableFolder] = []
    links: list[Path] = []
    waiting = [(True, "")]  # folders and files, the next one last: their order makes sorting the images unnecessary
    while waiting:
        is_folder, name = waiting.pop()
        if not is_folder:
            suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122  # no Path object per file
            if suffix in DECODABLE:
                images.add(name)
            elif suffix in IMAGE_SUFFIXES:
                undecodable.add(name)
            continue
        try:
            with os.scandir(top / name) as entries:
                listed = [(entry.name, _kind(entry)) for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            if not name:
                raise TagspreadError(f"{top} cannot be read ({error.strerror}); give a folder that can.") from None
            unreadable.append(UnreadableFolder(top / name, (error.strerror or "unknown error").lower()))
            continue
        for entry_name, kind in sorted(listed, reverse=True):
            below = f"{name}/{entry_name}" if name else entry_name
            if kind == "link":
                links.append(top / below)
            else:
                waiting.append((kind == "folder", below))
    return FolderListing(top, images.paths(top), undecodable.paths(top), tuple(unreadable), tuple(sorted(links)))


def _kind(entry: os.DirEntry[str]) -> str:
    """Return ``folder``, ``link`` (to a folder) or ``file``; links that lead nowhere are files, unreadable ones."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return "link" if entry.is_symlink() and entry.is_dir() else "file"
    except OSError:
        return "file"
