"""The audit of class frequencies against scipy, brute force, and simulated samples."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import betabinom, binomtest, hypergeom

from tagspread.core.audit import (
    STRENGTHS,
    audit_frequencies,
    audit_pseudo_labels,
    exact_share,
    labels_worth,
    remaining_frequencies,
    shrunk_frequencies,
)
from tagspread.errors import TagspreadError


@pytest.mark.parametrize(("count", "of"), [(0, 10), (10, 10), (3, 200), (1, 1)])
def test_intervals_are_those_of_the_binomial_test(count, of):
    share = exact_share(count, of, 0.9)
    expected = binomtest(count, of).proportion_ci(0.9, method="exact")
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high))
    assert share.value == count / of


def test_a_share_of_nothing_is_unknown():
    assert all(np.isnan([exact_share(0, 0).value, exact_share(0, 0).low, exact_share(0, 0).high]))


def test_p_values_are_those_of_the_hypergeometric_distribution():
    (found,) = audit_frequencies([8], 200, [31], 285)
    table = hypergeom(485, 39, 200)
    chances = table.pmf(np.arange(40))
    assert found.p_value == pytest.approx(chances[chances <= table.pmf(8) * (1 + 1e-7)].sum())
    assert (found.unlabeled.part, found.labeled.part) == (8, 31)


def test_contradictions_are_those_of_closed_testing():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        audited, labeled = rng.binomial(100, 0.2, 5), rng.binomial(100, rng.choice([0.2, 0.45], 5))
        found = audit_frequencies(audited, 100, labeled, 100)
        p = [one.p_value for one in found]
        for k in range(5):
            others = [i for i in range(5) if i != k]
            groups = [(k, *more) for size in range(5) for more in combinations(others, size)]
            rejected = all(min(p[i] for i in group) * len(group) <= 0.05 for group in groups)
            assert found[k].contradicts == rejected
            seen.add(rejected)
    assert seen == {True, False}


def test_a_class_without_answers_contradicts_nothing():
    asked, never = audit_frequencies([1, 0], [100, 0], [60, 50], [100, 100])
    assert asked.contradicts
    assert not never.contradicts
    assert never.p_value == 1


def test_precision_and_recall_are_counted_on_known_answers():
    targets = np.array([[1, 1], [1, 0], [0, -1], [-1, 1], [1, 0]])
    truth = np.array([[1, -1], [0, 1], [1, 1], [1, 1], [-1, 0]])
    first, second = audit_pseudo_labels(targets, truth)
    assert (first.precision.part, first.precision.of) == (1, 2)  # the last positive has no known answer
    assert (first.recall.part, first.recall.of) == (1, 3)  # an ignored row is missed
    assert (second.precision.part, second.precision.of) == (1, 1)
    assert (second.recall.part, second.recall.of) == (1, 3)


def test_estimates_are_posterior_means_of_the_most_likely_mixture_of_strengths():
    audited, asked = np.array([20, 55, 9, 14]), np.array([200, 200, 150, 200])
    labeled, known = np.array([40, 150, 22, 20]), np.array([285, 285, 100, 285])
    mean = (labeled + 0.5) / (known + 1)
    strengths = np.array([np.geomspace(1, one, STRENGTHS) for one in known])
    chance = np.exp([
        [betabinom(asked[k], s * mean[k], s * (1 - mean[k])).logpmf(audited[k]) for s in strengths[k]] for k in range(4)
    ])  # fmt: skip

    def penalized(logits):
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        return -(np.log(chance @ weights).sum() + np.log(weights).mean())

    best = minimize(penalized, np.zeros(STRENGTHS), method="BFGS").x
    weights = np.exp(best - best.max())
    posterior = chance * weights / (chance @ weights)[:, None]
    expected = (posterior * (audited[:, None] + strengths * mean[:, None]) / (asked[:, None] + strengths)).sum(1)
    assert shrunk_frequencies(audited, asked, labeled, known) == pytest.approx(expected, abs=2e-4)
    assert labels_worth(audited, asked, labeled, known) == pytest.approx((posterior * strengths).sum(1), rel=0.05)


def test_a_random_sample_of_labels_is_worth_more_than_a_selected_one():
    rng = np.random.default_rng(1)
    true = rng.uniform(0.02, 0.4, 20)
    audited, fair = rng.binomial(200, true), rng.binomial(285, true)
    selected = rng.binomial(285, np.clip(true * rng.choice([0.3, 3], 20), 0, 0.9))
    assert labels_worth(audited, 200, fair, 285).mean() > 3 * labels_worth(audited, 200, selected, 285).mean()


def test_shrinking_makes_frequencies_better():
    errors = {"audit": 0.0, "labels": 0.0, "shrunk": 0.0}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        true = rng.uniform(0.01, 0.3, 20)
        audited, labeled = rng.binomial(100, true), rng.binomial(200, np.clip(true * rng.uniform(0.7, 1.4, 20), 0, 1))
        shrunk = shrunk_frequencies(audited, 100, labeled, 200)
        for name, estimate in (("audit", audited / 100), ("labels", labeled / 200), ("shrunk", shrunk)):
            errors[name] += float(((estimate - true) ** 2).sum())
    assert errors["shrunk"] < min(errors["audit"], errors["labels"])


def test_a_class_without_an_audited_row_has_no_estimate_and_one_without_labels_the_audits():
    estimate = shrunk_frequencies([5, 0, 4], [50, 0, 40], [30, 10, 0], [100, 100, 0])
    assert np.isnan(estimate[1])
    assert estimate[2] == pytest.approx(0.1)
    assert 0.1 <= estimate[0] <= 0.31


def test_one_class_that_was_selected_takes_its_frequency_from_the_audit_and_the_others_share_with_the_labels():
    audited, labeled = np.array([10, 20, 40, 60, 80, 30]), np.array([60, 21, 41, 58, 82, 29])
    estimate = shrunk_frequencies(audited, 200, labeled, 200)
    assert estimate[0] < 0.07
    assert estimate[1:] == pytest.approx((audited + labeled)[1:] / 400, abs=0.003)


def test_what_remains_is_the_population_without_the_answered_rows():
    rng = np.random.default_rng(2)
    y = rng.random((500, 3)) < [0.5, 0.1, 0.02]
    answered = np.argsort(rng.random(500) - y[:, 1])[:120]  # answers that were asked for on purpose
    left = np.delete(y, answered, axis=0)
    found = remaining_frequencies(y.mean(0), 500, y[answered].sum(0), 120)
    assert found == pytest.approx(left.mean(0))
    assert remaining_frequencies([0.01, np.nan], 100, [50, 1], 60)[0] == 0  # an estimate below what was found


def test_impossible_counts_are_refused_by_class():
    with pytest.raises(TagspreadError, match="labeled_positives is 9 for class 1 of 5 rows"):
        audit_frequencies([1, 1], 10, [1, 9], [5, 5])
    with pytest.raises(TagspreadError, match="at least one class"):
        shrunk_frequencies([], 10, [], 10)
