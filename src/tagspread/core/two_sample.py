r"""Classifier two-sample test: do two sets of rows come from one distribution?

A linear classifier is trained to tell the sets apart and evaluated on rows that it was not trained on. If both come
from one distribution, its AUC (the probability that a row of the first set gets a higher score than one of the second)
is about 1/2. The p-value compares the AUC with those of random permutations of the set membership.

The classifier is ridge regression on the membership, because its out-of-fold scores are linear in the membership: one
factorization per fold serves all permutations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from tagspread.errors import TagspreadError

MOST_ROWS = 1000  # of each set; more rows find differences too small to matter
MOST_FEATURES = 128  # more are projected at random
FOLDS = 5
PERMUTATIONS = 199
LEAST_ROWS = 20  # of each set
SIGNIFICANCE = 0.01  # low, because every training tests
REMEDY = "review some images with 'tagspread review', then run 'tagspread audit'."


class TwoSample(NamedTuple):
    """Result of the test.

    Attributes:
        auc: out-of-fold AUC of the classifier; 1/2 if it cannot tell the sets apart.
        p_value: share of the permutations, and the data themselves, with an AUC at least as high.
    """

    auc: float
    p_value: float

    @property
    def differs(self) -> bool:
        """Whether the sets differ beyond chance."""
        return self.p_value <= SIGNIFICANCE

    def in_words(self, features: str) -> str:
        """Describe what the test says about labeled images (first set) and unlabeled ones (second set).

        >>> print(TwoSample(0.523, 0.31).in_words("thumbnails"))
        the labeled images look like a random sample: a classifier on thumbnails cannot tell them from the unlabeled
        ones (AUC 0.52, p = 0.31)
        """
        numbers = f"(AUC {self.auc:.2f}, p = {self.p_value:.2g})"
        if not self.differs:
            return (
                f"the labeled images look like a random sample: a classifier on {features} cannot tell them from the "
                f"unlabeled ones {numbers}"
            )
        return (
            f"the labeled images are not a random sample: a classifier on {features} tells them from the unlabeled "
            f"ones {numbers}. Their class frequencies may differ too, and CAP relies on them: {REMEDY}"
        )


def two_sample_test(
    first: np.ndarray, second: np.ndarray, *, permutations: int = PERMUTATIONS, seed: int = 0
) -> TwoSample | None:
    """Test whether two sets of rows come from one distribution; return None for sets too small to say.

    Args:
        first: rows x features.
        second: rows x features.
        permutations: number of permutations; the smallest possible p-value is 1 / (permutations + 1).
        seed: seed of the sample, the folds and the permutations.

    >>> rows = np.random.default_rng(2).normal(size=(1100, 5))
    >>> same, moved = two_sample_test(rows[:200], rows[200:]), two_sample_test(rows[:200] + 0.5, rows[200:])
    >>> same.p_value > 0.05, moved.p_value, moved.auc > 0.7
    (True, 0.005, True)
    """
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise TagspreadError(
            f"the sets have shapes {first.shape} and {second.shape}; give two matrices with the same number of columns."
        )
    if min(len(first), len(second)) < LEAST_ROWS:
        return None
    rng = np.random.default_rng(seed)
    features = np.concatenate([_sample(first, rng), _sample(second, rng)])
    membership = np.repeat([1.0, 0.0], [min(len(first), MOST_ROWS), min(len(second), MOST_ROWS)])
    features = _standardized(features, rng)
    permuted = np.stack([membership, *(rng.permutation(membership) for _ in range(permutations))], axis=1)
    # folds that do not depend on the membership, so that the data and the permutations are treated alike
    fold = rng.permutation(np.arange(len(features)) % FOLDS)
    aucs = np.mean([_held_out_aucs(features, permuted, fold == number) for number in range(FOLDS)], axis=0)
    return TwoSample(float(aucs[0]), float((aucs >= aucs[0] - 1e-12).mean()))


def _sample(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if len(rows) > MOST_ROWS:
        rows = rows[np.sort(rng.choice(len(rows), MOST_ROWS, replace=False))]
    return np.asarray(rows, np.float64)


def _standardized(features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    deviation = features.std(0)
    features = (features - features.mean(0)) / np.where(deviation > 1e-9, deviation, 1.0)
    if features.shape[1] > MOST_FEATURES:
        features = features @ rng.normal(size=(features.shape[1], MOST_FEATURES)) / MOST_FEATURES**0.5
    return features


def _held_out_aucs(features: np.ndarray, membership: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Return, for each column of ``membership``, the AUC on the held-out rows of a classifier fitted on the others."""
    x, y = features[~held_out], membership[~held_out]
    x_mean, width = x.mean(0), features.shape[1]
    gram = (x - x_mean).T @ (x - x_mean)
    ridge = 0.1 * len(x) + np.trace(gram) / max(1, width) * width / len(x)  # more for wide features on few rows
    weights = np.linalg.solve(gram + ridge * np.eye(width), (x - x_mean).T @ (y - y.mean(0)))
    return _aucs((features[held_out] - x_mean) @ weights, membership[held_out])


def _aucs(scores: np.ndarray, membership: np.ndarray) -> np.ndarray:
    """Return the AUC of each column."""
    ranks = rankdata(scores, axis=0)
    ones = membership.sum(0)
    zeros = len(scores) - ones
    pairs = np.maximum(ones * zeros, 1.0)
    above = (ranks * membership).sum(0) - ones * (ones + 1) / 2
    return np.asarray(np.where(ones * zeros > 0, above / pairs, 0.5))
