"""The order of the images to review: the doubtful ones first, and among them a share drawn at random."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np

from tagspread.review.answers import Queued

RANDOM_SHARE = 0.2
DOUBTFUL, RANDOM = "doubtful", "random"
TAGS = 3  # to ask about first, of a doubtful image


def doubts(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return how close each probability is to its threshold: 1 on the threshold, 0 for a probability of 0 or 1.

    >>> doubts(np.array([[0.5, 0.2], [0.75, 1.0]]), np.array([0.5, 0.4])).tolist()
    [[1.0, 0.5], [0.5, 0.0]]
    """
    t = np.clip(thresholds, 1e-6, 1 - 1e-6)
    doubt = np.minimum(scores / t, (1 - scores) / (1 - t))
    return np.where(np.isfinite(thresholds), doubt, 0.0)  # a tag that is never predicted raises no doubt


def random_draws(digests: Sequence[str], run_id: str) -> list[str]:
    """Return different digests in random order, which depends on the run only."""
    seed = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8])
    different = sorted(set(digests))
    return [different[k] for k in np.random.default_rng(seed).permutation(len(different))]


def default_queue(
    digests: Sequence[str],
    rows: np.ndarray,
    scores: np.ndarray,
    thresholds: np.ndarray,
    classes: Sequence[str],
    draws: Sequence[str],
) -> list[tuple[str, Queued]]:
    """Return all images: the most doubtful first; every fifth one is the next of the random draws.

    Args:
        digests: digest of each image.
        rows: row of each image in ``split.csv``.
        scores: probabilities (images x tags).
        thresholds: decision threshold of each tag.
        classes: names of the tags.
        draws: the digests in random order.
    """
    doubt = doubts(scores, thresholds)
    by_doubt = np.argsort(-doubt.max(axis=1), kind="stable").tolist()
    first = {digest: k for k, digest in reversed(list(enumerate(digests)))}
    drawn = iter([first[digest] for digest in draws if digest in first])
    doubtful = iter([first[digests[k]] for k in by_doubt])
    queue: dict[int, str] = {}
    every = round(1 / RANDOM_SHARE)
    while len(queue) < len(first):
        strategy = RANDOM if (len(queue) + 1) % every == 0 else DOUBTFUL
        source = drawn if strategy == RANDOM else doubtful
        image = next(k for k in itertools.chain(source, doubtful) if k not in queue)
        queue[image] = strategy
    return [
        (digests[k], Queued(int(rows[k]), strategy, _doubtful_tags(doubt[k], classes) if strategy == DOUBTFUL else ()))
        for k, strategy in queue.items()
    ]


def _doubtful_tags(doubt: np.ndarray, classes: Sequence[str]) -> tuple[str, ...]:
    return tuple(classes[k] for k in np.argsort(-doubt, kind="stable")[:TAGS].tolist() if doubt[k] >= 0.2)
