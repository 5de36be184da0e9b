"""What a frozen network sees in images, computed once: kept in a file, a second run or one that was stopped goes on.

A file of features is a plain ``.npy`` array, one row per image; a small text file beside it says how many rows are
done. Both carry a digest of images, network and view in their names, so that they are found again and never mixed up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from tagspread.aliases import Progress
from tagspread.data.images.store import Store
from tagspread.errors import TagspreadError
from tagspread.files import alone
from tagspread.progress import Watcher
from tagspread.run.folder import RunFolder
from tagspread.train.config import TrainConfig
from tagspread.train.dataset import Dataset
from tagspread.train.scoring import resolve_precision, score
from tagspread.vision.backbones import TagNet

ROWS_AT_ONCE = 1024  # between two notes of how far it is
DIGITS = 16  # of the digest in a file's name


def embed(
    network: TagNet,
    store: Store,
    rows: np.ndarray,
    device: torch.device,
    *,
    batch: int | None = None,
    precision: str = "auto",
    mirror: bool = False,
    file: Path | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Return the network's pooled features of some rows of the store (rows x features, float32, on the CPU).

    Args:
        network: whose features.
        store: where the images are.
        rows: which.
        device: where the network works.
        batch: images at a time; as many as suit the device if not given.
        precision: as in training.
        mirror: of the mirror images instead.
        file: where to keep them; what is there already is not computed again.
        progress: is told how many are done, of how many.
    """
    network.to(device).eval()

    def look(images: Tensor) -> Tensor:
        return network.features(store.modality.mirror(images) if mirror else images)

    def part(at: int) -> np.ndarray:
        some = rows[at : at + ROWS_AT_ONCE]
        return score(look, store, some, device=device, batch=batch, precision=precision).cpu().numpy()

    width = score(look, store, rows[:1], device=device, precision=precision).shape[1]
    with _alone(file):  # two that need the same features do not look at everything twice
        kept, done = _open(file, (len(rows), width))
        for at in range(done, len(rows), ROWS_AT_ONCE):
            kept[at : at + ROWS_AT_ONCE] = part(at)
            if file is not None:
                kept.flush()  # type: ignore[attr-defined]
                _write_note(file, min(len(rows), at + ROWS_AT_ONCE))
            if progress is not None:
                progress(min(len(rows), at + ROWS_AT_ONCE), len(rows))
        return torch.from_numpy(np.array(kept))


def kept_features(
    kept: Path,
    network: TagNet,
    dataset: Dataset,
    rows: np.ndarray,
    config: TrainConfig,
    device: torch.device,
    watcher: Watcher,
    *,
    mirror: bool = False,
) -> tuple[Tensor, Path]:
    """Return the features of these images of the dataset on the device, and the file in ``kept`` that has them."""
    precision = resolve_precision(device, config.precision)
    file = feature_file(kept, dataset, network, rows, mirror=mirror, precision=precision)
    seen = embed(
        network, dataset.store, rows, device, batch=config.score_batch, precision=precision, mirror=mirror,
        file=file, progress=watcher.embedding,
    )  # fmt: skip
    return seen.to(device), file


def feature_file(
    folder: Path, dataset: Dataset, network: TagNet, rows: np.ndarray, *, mirror: bool, precision: str
) -> Path:
    """Return where the features of these rows, in this order, by this network are kept."""
    digest = hashlib.sha256(f"{dataset.store.shape} {mirror} {precision}\0".encode())
    digest.update(repr(network.backbone).encode())  # the same tensors at other strides see something else
    digest.update(np.ascontiguousarray(rows, np.int64).tobytes())
    digest.update("\0".join(map(str, dataset.names)).encode("utf-8", "surrogateescape"))
    dataset.look_at(digest, times=True)
    for name, value in network.state_dict().items():
        if not name.startswith("head."):
            digest.update(value.cpu().contiguous().numpy().tobytes())
    return folder / f"features-{digest.hexdigest()[:DIGITS]}.npy"


def forget_others(files: Sequence[Path]) -> None:
    """In a run's folder, remove the features beside these, of images, networks or sizes that came before."""
    if not RunFolder(files[0].parent).is_run:  # a cache is for many
        return
    for other in files[0].parent.glob(f"features-{'[0-9a-f]' * DIGITS}.npy"):  # not any of the user's own
        if other not in files:
            for file in (other, _note(other), _lock(other)):
                file.unlink(missing_ok=True)


def _note(file: Path) -> Path:
    return file.with_suffix(".rows")


def _lock(file: Path) -> Path:
    return file.with_suffix(".lock")


def _write_note(file: Path, done: int) -> None:
    fresh = file.with_suffix(".writing")
    fresh.write_text(str(done), encoding="utf-8")
    fresh.replace(_note(file))


@contextmanager
def _alone(file: Path | None) -> Iterator[None]:
    with ExitStack() as held:
        if file is not None:
            try:
                held.enter_context(alone(_lock(file)))
            except OSError as error:
                raise _not_kept(file, error) from None
        yield


def _open(file: Path | None, shape: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Return an array for the features, and how many rows of it are filled."""
    if file is None:
        return np.empty(shape, np.float32), 0
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and _note(file).exists():
            kept = open_memmap(file, mode="r+")
            if kept.shape == shape and kept.dtype == np.float32:
                return kept, int(_note(file).read_text(encoding="utf-8"))
        return open_memmap(file, mode="w+", dtype=np.float32, shape=shape), 0
    except (OSError, ValueError) as error:
        raise _not_kept(file, error) from None


def _not_kept(file: Path, error: Exception) -> TagspreadError:
    return TagspreadError(f"features cannot be kept in {file} ({error}); remove it or give another @cache.", cache=...)
