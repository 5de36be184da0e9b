"""What to label next: each strategy against a slow, literal definition, and the rules of the mixture."""

import numpy as np
import pytest

from tagspread.errors import TagspreadError
from tagspread.review.strategies import LEAST_RANDOM, MIXTURE, STRATEGIES, Evidence, possible_mixture, suggest


@pytest.fixture
def evidence():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(300, 4)) * [1, 2, 5, 1] + [0, -3, 1, 2]
    return Evidence(
        scores,
        positives=np.array([30, 10, 2, 6]),
        known=np.array([100, 100, 100, 50]),
        baseline=scores + rng.normal(size=scores.shape),
        mirror=scores + 0.1 * rng.normal(size=scores.shape),
        features=rng.normal(size=(300, 8)),
        labeled_features=rng.normal(size=(20, 8)),
    )


@pytest.fixture
def draws():
    return np.random.default_rng(1).permutation(300)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_different_images_that_are_not_done(strategy, evidence, draws):
    done = np.random.default_rng(2).random(300) < 0.3
    chosen = suggest(evidence, 60, strategy, draws=draws, done=done)
    images = [one.image for one in chosen]
    assert len(images) == len(set(images)) == 60
    assert not done[images].any()
    assert chosen == suggest(evidence, 60, strategy, draws=draws, done=done)  # the same again
    everything = suggest(evidence, 1000, strategy, draws=draws, done=done)
    assert sorted(one.image for one in everything) == np.flatnonzero(~done).tolist()


def test_border_takes_turns_between_classes_and_starts_closest_to_each_quota(evidence, draws):
    chosen = suggest(evidence, 40, "border", draws=draws)
    distances = []
    for k, quota in enumerate(evidence.quotas):
        column = np.sort(evidence.scores[:, k])[::-1]
        distances.append(np.abs(evidence.scores[:, k] - (column[quota - 1] + column[quota]) / 2))
    left = set(range(300))
    for place, one in enumerate(chosen):
        k = place % 4
        assert one.classes == (k,)
        assert distances[k][one.image] == pytest.approx(min(distances[k][image] for image in left))
        left.remove(one.image)


def test_rare_asks_for_the_class_with_fewest_positives(evidence, draws):
    chosen = suggest(evidence, 3, "rare", draws=draws)
    assert chosen[0].classes == (2,)
    assert chosen[0].image == int(evidence.scores[:, 2].argmax())
    without = Evidence(evidence.scores, np.array([90, 90, 90, 0]), np.array([100] * 4))
    assert [one.classes for one in suggest(without, 5, "rare", draws=draws)] == [(3,)] * 5


def test_disagree_starts_with_the_image_whose_scores_moved_most(draws):
    scores = np.random.default_rng(3).normal(size=(300, 2))
    baseline = scores.copy()
    baseline[[17, 40], 1] = -scores[[17, 40], 1] * [5, 0.2]
    evidence = Evidence(scores, np.array([5, 5]), np.array([10, 10]), baseline=baseline)
    (first,) = suggest(evidence, 1, "disagree", draws=draws)
    assert first.image == 17
    assert first.classes[0] == 1


def test_diverse_is_greedy_k_center(evidence, draws):
    unit = evidence.features / np.linalg.norm(evidence.features, axis=1, keepdims=True)
    centers = list(evidence.labeled_features / np.linalg.norm(evidence.labeled_features, axis=1, keepdims=True))
    expected = []
    for _ in range(10):
        distances = np.array([min(((row - center) ** 2).sum() for center in centers) for row in unit])
        expected.append(int(distances.argmax()))
        centers.append(unit[expected[-1]])
    assert [one.image for one in suggest(evidence, 10, "diverse", draws=draws)] == expected


def test_the_random_share_is_the_beginning_of_the_draws_whatever_else_is_asked(evidence, draws):
    chosen = suggest(evidence, 100, draws=draws)
    drawn = [one.image for one in chosen if one.strategy == "random"]
    assert drawn == draws[: len(drawn)].tolist()
    assert len(drawn) == pytest.approx(100 * MIXTURE["random"], abs=1)
    done = np.zeros(300, bool)
    done[[one.image for one in chosen]] = True
    later = [one.image for one in suggest(evidence, 50, draws=draws, done=done) if one.strategy == "random"]
    left = [image for image in draws.tolist() if not done[image]]
    assert later == left[: len(later)]
    # every beginning of the queue has about the same share
    assert sum(one.strategy == "random" for one in chosen[:50]) == pytest.approx(len(drawn) / 2, abs=2)


def test_a_mixture_always_has_random_images_and_omits_what_is_not_possible(evidence):
    bare = Evidence(evidence.scores, evidence.positives, evidence.known)
    shares = possible_mixture(bare, {"disagree": 0.5, "rare": 0.5})
    assert shares == {"rare": pytest.approx(1 - LEAST_RANDOM), "random": LEAST_RANDOM}
    assert sum(possible_mixture(evidence).values()) == pytest.approx(1)
    assert possible_mixture(bare, {"diverse": 1.0}) == {"random": 1.0}


def test_what_is_not_possible_is_said(evidence, draws):
    bare = Evidence(evidence.scores, evidence.positives, evidence.known)
    with pytest.raises(TagspreadError, match="labeled-only model or of mirror images"):
        suggest(bare, 3, "disagree", draws=draws)
    with pytest.raises(TagspreadError, match="'diverse' needs features"):
        suggest(bare, 3, "diverse", draws=draws)
    with pytest.raises(TagspreadError, match="Did you mean 'border'"):
        suggest(bare, 3, "boarder", draws=draws)


def test_one_image_and_classes_without_positives_are_no_problem():
    lonely = Evidence(np.zeros((1, 2)), np.array([0, 0]), np.array([0, 0]))
    for strategy in ("border", "rare", "mixture"):
        assert [one.image for one in suggest(lonely, 5, strategy, draws=np.arange(1))] == [0]
