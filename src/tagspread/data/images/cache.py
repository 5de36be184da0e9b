"""Image cache: decoded images on disk, so that each file is decoded once for all runs.

A cache of images of S x S pixels is two files in a folder of the user. ``tagspread-S.u8`` holds the images, 3 x S x S
bytes per slot. ``tagspread-S.json`` is the index: path, size and modification time of the file in each slot, and what
decoded them. A changed file gets a new slot, and its old slot is not used again. Unreadable files are tried again each
time.

Images are only appended after those in the index, and the index is replaced atomically after the images are on disk. A
crash therefore loses only the images since the last index, and their bytes are overwritten. A cache that is damaged in
another way raises an error that names the files to delete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tagspread.aliases import Progress
from tagspread.data.images.decode import (
    AnyPath,
    Broken,
    Images,
    check_size,
    decode_all,
    decoder,
    reason_for,
    shifted,
)
from tagspread.errors import TagspreadError
from tagspread.files import LOCK, Remedy, atomic_text, hold_lock

FORMAT = "tagspread image cache"
VERSION = 2  # raise it whenever decode() gives other bytes for the same file
BYTES_AT_ONCE = 2**26  # images decoded before a write: bounds the memory
SAVE_EVERY = 2048  # new images between two writes of the index, or a tenth of it if that is more


class _Key(NamedTuple):
    """Identity of a file: any change of the file gives another key."""

    path: str
    bytes: int
    changed: int  # nanoseconds

    @classmethod
    def of(cls, path: AnyPath) -> _Key:
        status = Path(path).stat()
        return cls(os.path.abspath(path), status.st_size, status.st_mtime_ns)  # noqa: PTH100 - keep links


class ImageCache:
    """Cache of images of one size in a folder, which several processes may share.

    Args:
        folder: folder of the two files; created if missing.
        size: height and width of the images. One folder may hold caches of several sizes.

    Raises:
        TagspreadError: if the folder cannot be written, the cache is damaged, or another file has its name.
    """

    def __init__(self, folder: AnyPath, size: int) -> None:
        check_size(size)
        self.folder = Path(folder)
        self.size = size
        self.shape = (3, size, size)
        self.data_file = self.folder / f"tagspread-{size}.u8"
        self.index_file = self.folder / f"tagspread-{size}.json"
        self._slots: dict[_Key, int] = {}
        self._used = 0
        with self._disk_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.index_file.exists():
                self._begin()
            self._read_index()

    def __len__(self) -> int:
        return self._used

    @property
    def images(self) -> Images:
        """All images by slot, as a read-only memory map."""
        if self._used == 0:  # an empty file cannot be mapped
            return np.empty((0, *self.shape), dtype=np.uint8)
        return np.memmap(self.data_file, np.uint8, "r", shape=(self._used, *self.shape))

    def add(
        self, paths: Sequence[AnyPath], progress: Progress | None = None, workers: int | None = None
    ) -> tuple[npt.NDArray[np.int64], list[Broken]]:
        """Decode the files that are not in the cache yet.

        While one process adds images, other processes wait and then use its images.

        Args:
            paths: the files; paths may repeat.
            progress: called with (done, total) images; images in the cache count as done.
            workers: number of decoding threads; by default one per available core.

        Returns:
            The slot of each path in :attr:`images`, -1 for unreadable images, and the unreadable images.
        """
        keys: list[_Key | None] = []
        reasons: dict[int | _Key, str] = {}  # by row for missing files
        for row, path in enumerate(paths):
            try:
                keys.append(_Key.of(path))
            except (OSError, ValueError) as error:  # ValueError: a path with a null character
                keys.append(None)
                reasons[row] = reason_for(error)
        if self._missing(keys):
            with self._locked() as data:
                with self._disk_errors():
                    self._read_index()  # another process may have added images meanwhile
                reasons |= self._decode(self._missing(keys), data, len(paths), progress, workers)
        elif progress is not None:
            progress(len(paths), len(paths))
        slots = np.array([-1 if key is None else self._slots.get(key, -1) for key in keys], dtype=np.int64)
        broken = [
            Broken(row, Path(paths[row]), reasons[row if key is None else key])
            for row, key in enumerate(keys)
            if slots[row] < 0
        ]
        return slots, broken

    def _begin(self) -> None:
        """Write the index of an empty cache, unless another process has done so meanwhile."""
        with self._locked() as data:
            if self.index_file.exists():
                return
            if data.seek(0, os.SEEK_END):
                raise self._damaged(f"there is {self.data_file.name} but no {self.index_file.name}")
            self._write_index()

    def _missing(self, keys: Sequence[_Key | None]) -> list[_Key]:
        return [key for key in dict.fromkeys(keys) if key is not None and key not in self._slots]

    def _decode(
        self, missing: list[_Key], data: FileIO, total: int, progress: Progress | None, workers: int | None
    ) -> dict[int | _Key, str]:
        """Append the missing images to the data file; return the reasons of unreadable images."""
        self._check_space(len(missing))
        cached = total - len(missing)
        reasons: dict[int | _Key, str] = {}
        saved = self._used
        at_once = max(1, BYTES_AT_ONCE // math.prod(self.shape))
        buffer = np.empty((min(len(missing), at_once), *self.shape), dtype=np.uint8)
        try:
            for at in range(0, len(missing), at_once):
                chunk = missing[at : at + at_once]
                decoded = buffer[: len(chunk)]
                report = shifted(progress, cached + at, total)
                broken = decode_all([key.path for key in chunk], self.size, decoded, workers, report)
                reasons |= {chunk[image.index]: image.reason for image in broken}
                self._append(data, chunk, decoded, {image.index for image in broken})
                if self._used - saved >= max(SAVE_EVERY, saved // 10):
                    self._save(data)
                    saved = self._used
        finally:  # also on Ctrl-C: what is decoded is not lost
            if self._used > saved:
                self._save(data)
        return reasons

    def _append(self, data: FileIO, keys: Sequence[_Key], decoded: Images, broken: set[int]) -> None:
        whole = [row for row in range(len(keys)) if row not in broken]
        with self._disk_errors():
            data.seek(self._used * math.prod(self.shape))
            # written, not stored through a memory map: on a full disk that would kill the process
            left = (decoded[whole] if broken else decoded).reshape(-1).data
            while left:
                left = left[data.write(left) :]
        for slot, row in enumerate(whole, start=self._used):
            self._slots[keys[row]] = slot
        self._used += len(whole)

    def _save(self, data: FileIO) -> None:
        with self._disk_errors():
            os.fsync(data.fileno())
            self._write_index()

    def _write_index(self) -> None:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "decoder": decoder(),
            "size": self.size,
            "used": self._used,
            "slots": [[*key, slot] for key, slot in self._slots.items()],
        }
        remedy = Remedy("give a folder in which you may write, on a disk with room")
        with atomic_text(self.index_file, remedy=remedy) as file:
            json.dump(content, file)

    def _read_index(self) -> None:
        try:
            content: Any = json.loads(self.index_file.read_text(encoding="ascii"))
            if content["format"] != FORMAT:
                raise ValueError
            header = (content["version"], content.get("decoder"), content["size"], content["used"])
            slots = {
                _Key(str(path), int(length), int(changed)): int(slot)
                for path, length, changed, slot in content["slots"]
            }
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._damaged(f"{self.index_file.name} is not the index of an image cache") from None
        version, decoded_by, size, used = header
        if version != VERSION:
            raise self._damaged(f"another version of tagspread created it (format {version}, not {VERSION})")
        if decoded_by != decoder():
            raise self._damaged(f"its JPEG files were decoded by {decoded_by}, but {decoder()} decodes them here")
        if size != self.size:
            raise self._damaged(f"its images have {size} x {size} pixels, not {self.size} x {self.size}")
        if not isinstance(used, int) or used < 0 or not all(0 <= slot < used for slot in slots.values()):
            raise self._damaged(f"{self.index_file.name} is inconsistent")
        needed = used * math.prod(self.shape)
        actual = self.data_file.stat().st_size if self.data_file.exists() else 0
        if actual < needed:
            raise self._damaged(f"{self.data_file.name} has {actual:,} bytes, but its index needs {needed:,}")
        self._slots, self._used = slots, used

    @contextlib.contextmanager
    def _locked(self) -> Iterator[FileIO]:
        """Open the data file for writing, locked for this process."""
        with contextlib.ExitStack() as held:
            with self._disk_errors():
                if not os.access(self.folder, os.W_OK):  # else noticed only when the index is to be replaced
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                held.enter_context(hold_lock(self.folder / f".tagspread-{self.size}{LOCK}"))
                descriptor = os.open(self.data_file, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            # unbuffered, for after a failed write a buffer would try, and fail, once more on closing
            yield held.enter_context(os.fdopen(descriptor, "r+b", buffering=0))

    def _check_space(self, images: int) -> None:
        with self._disk_errors():
            needed = (self._used + images) * math.prod(self.shape) - self.data_file.stat().st_size
            free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise TagspreadError(
                f"The cache in {self.folder} needs {needed / 1e9:.1f} GB more for {images:,} images of "
                f"{self.size} x {self.size} pixels, but only {free / 1e9:.1f} GB are free on its disk. "
                "Free disk space, or give a folder on a larger disk or a smaller image size."
            )

    def _damaged(self, what: str) -> TagspreadError:
        return TagspreadError(
            f"The image cache in {self.folder} cannot be used: {what}. Delete {self.data_file.name} and "
            f"{self.index_file.name} there (the images are then decoded again) or choose another folder."
        )

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TagspreadError(
                f"The image cache in {self.folder} cannot be written or read: {reason_for(error)}. "
                "Give a writable folder on a disk with free space."
            ) from error
