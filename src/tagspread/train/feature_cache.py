"""Feature cache: the features of images on disk, so that no image passes through a frozen network twice.

Features are found by the digest of an image's pixels, not by its name or its place in a split. More labels, another
split or a larger folder therefore change nothing for the images that are there already.

Each network, image size, view and precision has a folder ``features-KEY``. Its files, called shards, hold the digests
and features of up to some hundred images. A shard is written once, atomically, and never changed. It carries a digest
of its own contents: a damaged shard is removed, and its features are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from tagspread.data.images.decode import available_cores
from tagspread.data.images.store import Store
from tagspread.errors import TagspreadError
from tagspread.files import LOCK, Remedy, hold_lock, remove_stale, write_tensors
from tagspread.run.folder import CONFIG, RunFolder
from tagspread.vision.backbones import TagNet

FORMAT = 1  # part of the key; increased if the same key would stand for other features
KEY_DIGITS = 16  # of the key in a folder's name
DIGITS = 32  # hexadecimal digits of the digest of an image
ROWS_TO_HASH = 256  # images in memory at once while their digests are computed
SUFFIX = ".safetensors"
_FOLDER = re.compile(f"features-[0-9a-f]{{{KEY_DIGITS}}}")
REMEDY = Remedy("free disk space there or choose another @cache", {"cache": ...})

PixelDigests: TypeAlias = npt.NDArray[np.bytes_]  # dtype S32
Features: TypeAlias = npt.NDArray[np.float32]


class FeatureCache:
    """Features of one network at one image size, of one view, in one or more folders.

    Args:
        folder: folder to read from and to write to; None if nothing is to be written.
        key: identifies network, image size, view and precision (:func:`cache_key`).
        others: further folders to read from, such as other runs.
        waits: whether :meth:`writing` waits for other processes, which may compute the same features.
    """

    def __init__(self, folder: Path | None, key: str, others: Iterable[Path] = (), *, waits: bool = True) -> None:
        name = f"features-{key}"
        self.folder = None if folder is None else folder / name
        self._sources = [*([] if self.folder is None else [self.folder]), *(other / name for other in others)]
        self._waits = waits
        self._shards: dict[Path, PixelDigests] = {}

    @property
    def exists(self) -> bool:
        """Whether there are any features of this key."""
        return any(True for source in self._sources for _ in source.glob(f"*{SUFFIX}"))

    def read(self, digests: PixelDigests) -> tuple[Features | None, npt.NDArray[np.bool_]]:
        """Look up images.

        Args:
            digests: digests of the images, sorted and without repetitions.

        Returns:
            The features (images x features; zeros where there are none, None if there are none at all), and which
            images have features.
        """
        found, features = np.zeros(len(digests), dtype=bool), None
        for shard, its_digests in self._list_shards():
            places = np.searchsorted(digests, its_digests).clip(max=len(digests) - 1)
            is_wanted = (digests[places] == its_digests) & ~found[places]
            if not is_wanted.any():
                continue
            values = _read_features(shard)
            if values is None or len(values) != len(its_digests):
                self._discard(shard)
                continue
            if features is None:
                features = np.zeros((len(digests), values.shape[1]), dtype=np.float32)
            features[places[is_wanted]] = values[is_wanted]
            found[places[is_wanted]] = True
            if found.all():
                break
        return features, found

    def add(self, digests: PixelDigests, features: Features) -> None:
        """Write the features of images into a new shard."""
        if self.folder is None:
            return
        tensors = {
            "digests": torch.from_numpy(np.ascontiguousarray(digests).view(np.uint8).reshape(-1, DIGITS).copy()),
            "features": torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)),
        }
        checksum = _checksum(tensors["digests"].numpy(), tensors["features"].numpy())
        shard = self.folder / f"{checksum[:DIGITS]}{SUFFIX}"
        write_tensors(shard, tensors, {"sha256": checksum}, remedy=REMEDY)
        self._shards[shard] = digests

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Wait until no other process computes features for this folder, and keep others waiting during the block."""
        if self.folder is None:
            yield
            return
        with contextlib.ExitStack() as held:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                if self._waits:
                    held.enter_context(hold_lock(self.folder / LOCK, doing="is having features computed"))
                    remove_stale(self.folder)
            except OSError as error:
                raise TagspreadError(
                    f"features cannot be cached in {self.folder} ({error.strerror}); {REMEDY.words}.", **REMEDY.options
                ) from None
            yield

    def tidy(self) -> None:
        """Remove what a killed process left in the folder, unless another process is writing there."""
        if self.folder is None or not (lock := self.folder / LOCK).exists():
            return
        with contextlib.suppress(OSError), hold_lock(lock, wait=False) as acquired:
            if acquired:
                remove_stale(self.folder)

    def _list_shards(self) -> Iterator[tuple[Path, PixelDigests]]:
        """Yield all shards with the digests of their images; other processes may have added some."""
        for source in self._sources:
            for shard in sorted(source.glob(f"*{SUFFIX}")):
                if shard not in self._shards:
                    digests = _read_digests(shard)
                    if digests is None:
                        self._discard(shard)
                        continue
                    self._shards[shard] = digests
                yield shard, self._shards[shard]

    def _discard(self, shard: Path) -> None:
        """Forget a damaged shard, and remove it from the folder that is written to."""
        self._shards.pop(shard, None)
        if shard.parent == self.folder:
            with contextlib.suppress(OSError):
                shard.unlink(missing_ok=True)


def cache_key(network: TagNet, shape: Sequence[int], *, mirror: bool, precision: str) -> str:
    """Return what identifies features, apart from the image: network below the head, image size, view, precision."""
    digest = hashlib.sha256(f"{FORMAT} {tuple(shape)} {mirror} {precision}\0".encode())
    digest.update(repr(network.backbone).encode())  # the same weights with other strides give other features
    for name, value in network.state_dict().items():
        if not name.startswith("head."):
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:KEY_DIGITS]


def pixel_digests(store: Store, rows: npt.NDArray[np.int64]) -> PixelDigests:
    """Return the digest of the pixels of each of these rows of a store."""
    digests = np.empty(len(rows), dtype=f"S{DIGITS}")
    with ThreadPoolExecutor(available_cores(), thread_name_prefix="tagspread-digest") as pool:
        for at in range(0, len(rows), ROWS_TO_HASH):
            images = store.batch(rows[at : at + ROWS_TO_HASH]).cpu().contiguous().numpy()
            digests[at : at + len(images)] = list(pool.map(_digest, images))
    return digests


def _digest(pixels: npt.NDArray[Any]) -> bytes:
    return hashlib.blake2b(pixels.data, digest_size=DIGITS // 2).hexdigest().encode()


def has_features(folder: Path) -> bool:
    """Return whether features of any network are cached in a folder."""
    return any(True for _ in feature_folders(folder))


def feature_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of cached features in a folder; the pattern of their names matches no folder of the user."""
    with contextlib.suppress(OSError):
        yield from (entry for entry in sorted(folder.glob("features-*")) if _FOLDER.fullmatch(entry.name))


def runs_beside(run: Path) -> list[Path]:
    """Return the runs in the same parent folder that have cached features."""
    found: list[Path] = []
    with contextlib.suppress(OSError):
        for entry in sorted(run.absolute().parent.iterdir()):
            if entry != run.absolute() and (entry / CONFIG).is_file() and has_features(entry):
                found.append(entry)
    return found


def remove_outdated(folder: Path, in_use: Iterable[Path]) -> None:
    """Remove the cached features of other networks, image sizes and views from a run folder."""
    if not RunFolder(folder).is_run:  # a cache folder is shared by several runs
        return
    keep = set(in_use)
    for other in list(feature_folders(folder)):
        if other not in keep:
            for file in (*other.glob(f"*{SUFFIX}"), other / LOCK):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds files of the user
                other.rmdir()


def _read_digests(shard: Path) -> PixelDigests | None:
    """Return the digests of a shard's images; None if it is damaged."""
    try:
        with safe_open(shard, framework="np") as opened:
            digests = opened.get_tensor("digests")
    except (OSError, SafetensorError, ValueError):
        return None
    if digests.dtype != np.uint8 or digests.ndim != 2 or digests.shape[1] != DIGITS:
        return None
    found: PixelDigests = np.ascontiguousarray(digests).view(f"S{DIGITS}").reshape(-1)
    return found


def _read_features(shard: Path) -> Features | None:
    """Return the features of a shard; None if it is damaged."""
    try:
        with safe_open(shard, framework="np") as opened:
            digests, features = opened.get_tensor("digests"), opened.get_tensor("features")
            expected = (opened.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, ValueError):
        return None
    if features.ndim != 2 or features.dtype != np.float32 or _checksum(digests, features) != expected:
        return None
    found: Features = features
    return found


def _checksum(digests: npt.NDArray[np.uint8], features: Features) -> str:
    total = hashlib.sha256(digests.tobytes())
    total.update(features.tobytes())
    return total.hexdigest()
