r"""Which unlabeled images to label next: pure functions on the scores and features of the unlabeled images.

==========  ============================================================================================================
border      images whose rank in a class is closest to the class's quota, where CAP's pseudo-labels are most often wrong
rare        images with the highest scores in the classes whose frequency is least known
disagree    images on which the model and the labeled-only baseline, or the image and its mirror image, disagree most
diverse     images whose features are farthest from all labeled and all chosen images (k-center)
random      images in random order: an unbiased sample, on which class frequencies can be audited
mixture     border, disagree and random, by the shares in ``MIXTURE``, which were chosen by simulation
==========  ============================================================================================================

Each strategy returns an order of images, and the classes to ask about first. A class is asked about because the
strategy chose the image for it; the person is expected to answer all classes of the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tagspread.errors import TagspreadError, did_you_mean

MIXTURE: Mapping[str, float] = {"border": 0.4, "disagree": 0.3, "random": 0.3}
STRATEGIES = ("mixture", "border", "rare", "disagree", "diverse", "random")
LEAST_RANDOM = 0.1  # of every mixture: class frequencies can only be estimated from random images
MOST_CENTERS = 2000  # labeled images that k-center keeps away from; more take time and change little


class Suggestion(NamedTuple):
    """An image to label next.

    Attributes:
        image: index of the image in the unlabeled set.
        strategy: the strategy that chose it; ``random`` marks the unbiased sample.
        classes: classes that it was chosen for; none for ``diverse`` and ``random``.
    """

    image: int
    strategy: str
    classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What is known about the unlabeled images.

    Attributes:
        scores: logits of the model, images x classes.
        positives: labeled positives of each class.
        known: labeled images with a known label of each class.
        frequencies: estimated frequency of each class in the unlabeled set; by default that of the labeled images.
        baseline: logits of the labeled-only model.
        mirror: logits of the model for the mirror images.
        features: features of the images.
        labeled_features: features of the labeled images.
    """

    scores: np.ndarray
    positives: np.ndarray
    known: np.ndarray
    frequencies: np.ndarray | None = None
    baseline: np.ndarray | None = None
    mirror: np.ndarray | None = None
    features: np.ndarray | None = None
    labeled_features: np.ndarray | None = None

    @property
    def quotas(self) -> np.ndarray:
        """Expected number of positives of each class in the unlabeled set."""
        frequencies = self.frequencies
        if frequencies is None:
            frequencies = self.positives / np.maximum(self.known, 1)
        quotas: np.ndarray = np.rint(np.asarray(frequencies) * len(self.scores)).astype(np.int64)
        return quotas

    def missing(self, strategy: str) -> str:
        """Return what a strategy needs and is not known; an empty string if it is possible."""
        if strategy == "disagree" and self.baseline is None and self.mirror is None:
            return "scores of the labeled-only model or of mirror images"
        if strategy == "diverse" and self.features is None:
            return "features of the images"
        return ""


def suggest(
    evidence: Evidence,
    count: int,
    strategy: str = "mixture",
    *,
    draws: np.ndarray,
    done: np.ndarray | None = None,
    mixture: Mapping[str, float] | None = None,
) -> list[Suggestion]:
    """Return the images to label next, in order.

    Args:
        evidence: what is known about the unlabeled images.
        count: number of images.
        strategy: one of ``STRATEGIES``.
        draws: a random order of all images, the same for all calls of a run, so that its beginning is a random sample.
        done: whether each image was answered before; such images are not suggested again.
        mixture: share of each strategy in the mixture.

    >>> scores = np.array([[2.0], [1.0], [0.1], [-0.1], [-1.0], [-2.0]])
    >>> evidence = Evidence(scores, positives=np.array([1]), known=np.array([2]))
    >>> [chosen.image for chosen in suggest(evidence, 2, "border", draws=np.arange(6))]
    [2, 3]
    >>> [chosen.image for chosen in suggest(evidence, 2, "random", draws=np.array([5, 0, 1, 2, 3, 4]))]
    [5, 0]
    """
    check_strategy(strategy)
    if strategy != "mixture" and (missing := evidence.missing(strategy)):
        raise TagspreadError(f"the strategy {strategy!r} needs {missing}, which this run does not have.")
    shares = {strategy: 1.0} if strategy != "mixture" else possible_mixture(evidence, mixture)
    free = np.ones(len(evidence.scores), bool) if done is None else ~done
    count = min(count, int(free.sum()))
    # random images first: whether another strategy wants an image must not change whether it is drawn
    drawn = draws[free[draws]][: _part(shares.get("random", 0.0), count)]
    chosen = {"random": [Suggestion(int(image), "random") for image in drawn]}
    free[drawn] = False
    orders = {name: ORDERS[name](evidence, free) for name in shares if name != "random"}
    for name, order in orders.items():
        wanted, chosen[name] = _part(shares[name], count), []
        for image, classes in order:
            if len(chosen[name]) == wanted:
                break
            if free[image]:
                free[image] = False
                chosen[name].append(Suggestion(image, name, classes))
    merged = _interleaved([chosen[name] for name in shares])[:count]
    for image in np.flatnonzero(free)[: count - len(merged)]:  # a strategy may run out of images
        merged.append(Suggestion(int(image), next(iter(shares))))
    return merged


def check_strategy(strategy: str) -> None:
    """Raise unless there is a strategy of that name."""
    if strategy not in STRATEGIES:
        hint = did_you_mean(strategy, STRATEGIES)
        raise TagspreadError(f"there is no strategy {strategy!r}; the strategies are {', '.join(STRATEGIES)}.{hint}")


def possible_mixture(evidence: Evidence, mixture: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the shares of the strategies that the evidence allows, which sum to 1; random images are always among."""
    possible = {name: share for name, share in (mixture or MIXTURE).items() if not evidence.missing(name) and share > 0}
    rest = sum(share for name, share in possible.items() if name != "random")
    if not rest:
        return {"random": 1.0}
    random = max(LEAST_RANDOM, possible.get("random", 0.0) / sum(possible.values()))
    shares = {name: (1 - random) * share / rest for name, share in possible.items() if name != "random"}
    return shares | {"random": random}


def _part(share: float, count: int) -> int:
    return int(np.ceil(share * count - 1e-9))


def _interleaved(lists: list[list[Suggestion]]) -> list[Suggestion]:
    """Merge lists so that each beginning of the result has about the same share of each."""
    places = [((at + 0.5) / len(part), which) for which, part in enumerate(lists) for at in range(len(part))]
    taken = [iter(part) for part in lists]
    return [next(taken[which]) for _, which in sorted(places)]


Order = Iterator[tuple[int, tuple[int, ...]]]  # images with the classes that they are chosen for


def by_border(evidence: Evidence, free: np.ndarray) -> Order:
    """Yield, class by class in turn, the images whose ranks are closest to the quota of the class."""
    images = np.flatnonzero(free)
    quotas = evidence.quotas
    classes = [k for k in range(evidence.scores.shape[1]) if quotas[k]]
    order = {}
    for k in classes:
        distance = np.abs(evidence.scores[images, k] - _border(evidence.scores[:, k], int(quotas[k])))
        order[k] = images[np.argsort(distance, kind="stable")]
    yield from _in_turn(order)


def _border(scores: np.ndarray, quota: int) -> float:
    """Return the score in the middle between the last positive and the first negative of a class."""
    quota = min(max(quota, 1), len(scores) - 1)
    if quota < 1:
        return float(scores[0])
    parted = np.partition(scores, (len(scores) - quota - 1, len(scores) - quota))
    return float(parted[len(scores) - quota - 1] + parted[len(scores) - quota]) / 2


def _in_turn(order: Mapping[int, np.ndarray]) -> Order:
    """Yield the next image of each class in turn, each image once."""
    waiting = {k: iter(images.tolist()) for k, images in order.items()}
    taken = set[int]()
    while waiting:
        for k in list(waiting):
            image = next((image for image in waiting[k] if image not in taken), None)
            if image is None:
                del waiting[k]
            else:
                taken.add(image)
                yield image, (k,)


def by_rarity(evidence: Evidence, free: np.ndarray) -> Order:
    """Yield the images with the highest scores of the class whose frequency is least known at the time.

    The relative width of a frequency's interval is about one over the square root of the positives, so the class with
    the fewest labeled positives is next. Each image counts as the positives that are to be expected of it.
    """
    images, quotas = np.flatnonzero(free), evidence.quotas
    expected = evidence.positives.astype(float)
    order = {k: images[np.argsort(-evidence.scores[images, k], kind="stable")] for k in range(len(expected))}
    borders = np.array([_border(column, int(quota)) for column, quota in zip(evidence.scores.T, quotas, strict=True)])
    at, taken = np.zeros(len(expected), np.int64), np.zeros(len(free), bool)
    for _ in range(len(images)):
        k = int(expected.argmin())
        while taken[order[k][at[k]]]:
            at[k] += 1
        image = int(order[k][at[k]])
        taken[image] = True
        likely = evidence.scores[image] > borders
        likely[k] = True  # so that a class without positives does not take every image
        expected += likely
        yield image, (k,)


def by_disagreement(evidence: Evidence, free: np.ndarray) -> Order:
    """Yield the images on which scores disagree most, in units of the spread of the class's scores."""
    spread = np.maximum(evidence.scores.std(0), 1e-9)
    quotas = evidence.quotas
    total = np.zeros(evidence.scores.shape)
    here = _probability(evidence.scores, quotas, spread)
    for other in (evidence.baseline, evidence.mirror):
        if other is not None:
            total += np.abs(here - _probability(other, quotas, np.maximum(other.std(0), 1e-9)))
    images = np.flatnonzero(free)
    for image in images[np.argsort(-total[images].sum(1), kind="stable")]:
        yield int(image), tuple(np.argsort(-total[image], kind="stable")[:2].tolist())


def _probability(scores: np.ndarray, quotas: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return scores as numbers from 0 to 1, with 1/2 at the border of each class."""
    borders = np.array([_border(column, int(quota)) for column, quota in zip(scores.T, quotas, strict=True)])
    return np.asarray(1 / (1 + np.exp(-4 * (scores - borders) / spread)))


def by_diversity(evidence: Evidence, free: np.ndarray) -> Order:
    """Yield the image that is farthest from all labeled images and all images before it (greedy k-center)."""
    if evidence.features is None:
        raise TagspreadError("the strategy 'diverse' needs features of the images; give them.")
    features = np.asarray(evidence.features, np.float32)
    features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-9)
    nearest = np.full(len(features), np.inf, np.float32)
    if evidence.labeled_features is not None:
        labeled = np.asarray(evidence.labeled_features, np.float32)[:MOST_CENTERS]
        labeled = labeled / np.maximum(np.linalg.norm(labeled, axis=1, keepdims=True), 1e-9)
        for at in range(0, len(features), 8192):  # of unit length: the closest has the largest product
            nearest[at : at + 8192] = 2 - 2 * (features[at : at + 8192] @ labeled.T).max(1, initial=-1.0)
    nearest[~free] = -np.inf
    for _ in range(int(free.sum())):
        image = int(nearest.argmax())
        nearest = np.minimum(nearest, 2 - 2 * features @ features[image])
        nearest[image] = -np.inf
        yield image, ()


ORDERS = {"border": by_border, "rare": by_rarity, "disagree": by_disagreement, "diverse": by_diversity}
