"""Say before training whether the labeled images look like a random sample, which CAP assumes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from tagspread.core.two_sample import MOST_ROWS, two_sample_test
from tagspread.train.dataset import Dataset

SIDE = 8  # of thumbnails, where no features are at hand


def sample_in_words(dataset: Dataset, views: Tensor | None = None) -> str | None:
    """Test whether labeled and unlabeled images come from one distribution; return None for too few images.

    Args:
        dataset: the data; its images are read only if no features are given.
        views: features (views x rows x features), labeled rows first, then unlabeled rows.
    """
    rng = np.random.default_rng(0)
    places = [_some(len(rows), rng) for rows in (dataset.labeled, dataset.unlabeled)]
    if views is not None:
        plain, n = views[0], len(dataset.labeled)
        sets = [plain[torch.from_numpy(where).to(plain.device)] for where in (places[0], n + places[1])]
    else:
        parts = (dataset.labeled[places[0]], dataset.unlabeled[places[1]])
        sets = [_thumbnails(dataset, rows) for rows in parts]
    found = two_sample_test(*(features.float().cpu().numpy() for features in sets))
    return None if found is None else found.in_words("thumbnails" if views is None else "the network's features")


def _some(count: int, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.permutation(count)[:MOST_ROWS])


def _thumbnails(dataset: Dataset, rows: np.ndarray) -> Tensor:
    if not len(rows):
        return torch.zeros(0, 1)
    parts = []
    for at in range(0, len(rows), 128):
        items = dataset.store.batch(rows[at : at + 128]).float()
        parts.append((adaptive_avg_pool2d(items, SIDE) if items.ndim == 4 else items).flatten(1).cpu())
    return torch.cat(parts)
