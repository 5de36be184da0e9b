"""Fingerprints: digests of images, by which a run recognizes them after they were moved or renamed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tagspread.data.images.store import Store
from tagspread.run.artifact import file_digest

DIGITS = 16
NONE = b""  # in place of a digest, for a file that cannot be read
AT_ONCE = 64  # files or items per task of a thread
BATCH = 1024  # items per batch of the store
Digests: TypeAlias = npt.NDArray[np.bytes_]  # hex digits; empty for files that cannot be read


def digest_files(files: Sequence[str | Path]) -> Digests:
    """Compute the first 16 hex digits of the SHA-256 of each file, in threads."""
    return _in_threads(lambda rows: [_file(files[row]) for row in rows], len(files))


def digest_items(store: Store) -> Digests:
    """Compute the first 16 hex digits of the SHA-256 of each item's pixels, for images without files."""
    digests = [np.empty(0, f"S{DIGITS}")]
    for at in range(0, len(store), BATCH):
        items = store.batch(np.arange(at, min(at + BATCH, len(store)))).cpu().numpy()
        digests.append(_in_threads(partial(_pixels, items), len(items)))
    return np.concatenate(digests)


def count_common(digests: Digests, others: Digests) -> int:
    """Count the images that are, by content, among other images.

    >>> count_common(np.array([b"a", b"a", b"b", b""]), np.array([b"a", b"c", b""]))
    2
    """
    return int(np.isin(digests[digests != NONE], others).sum())


def _in_threads(digest: Callable[[range], list[bytes]], count: int) -> Digests:
    pool = ThreadPoolExecutor(thread_name_prefix="tagspread-digest")
    try:
        parts = pool.map(digest, (range(at, min(at + AT_ONCE, count)) for at in range(0, count, AT_ONCE)))
        return np.array([value for part in parts for value in part], f"S{DIGITS}")
    finally:
        pool.shutdown(cancel_futures=True)  # so that Ctrl-C does not wait for all files


def _file(file: str | Path) -> bytes:
    path = Path(file)
    try:
        return file_digest(path)[:DIGITS].encode() if path.is_file() else NONE  # never read a pipe, which has no end
    except (OSError, ValueError):  # ValueError: a path with a null character
        return NONE


def _pixels(items: npt.NDArray[np.generic], rows: range) -> list[bytes]:
    return [hashlib.sha256(items[row].tobytes()).hexdigest()[:DIGITS].encode() for row in rows]
