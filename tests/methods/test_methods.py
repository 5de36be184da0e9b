import math
import re
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tagspread as ts
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS, Labeled, Method, Targets, get_method
from tagspread.methods.top import top_targets
from tests.core import reference
from tests.methods.helpers import highest, named, problems


def tags_on_average(y):
    """Sum the class proportions exactly."""
    total = Fraction(0)
    for column in y.T.tolist():
        known = [value for value in column if value >= 0]
        total += Fraction(sum(known), len(known)) if known else 0
    return total


def check(method, scores, labeled, expected):
    before = scores.clone()
    found = method.targets(scores, labeled, method.start(labeled))
    assert found.weight is None
    assert found.labels.dtype == torch.int8
    np.testing.assert_array_equal(found.labels.numpy(), expected)
    assert torch.equal(scores, before)  # the scores are not changed in place


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(1, 7))
def test_top1_and_topk_equal_a_literal_sort(dataset, count):
    scores, labeled = dataset
    classes = scores.shape[1]
    check(get_method("top1"), scores, labeled, highest(scores, 1))
    check(get_method("topk", k=count), scores, labeled, highest(scores, count))  # more than classes: all of them
    average = tags_on_average(labeled.y.numpy())
    assert labeled.tags_per_item == pytest.approx(float(average))
    check(get_method("topk"), scores, labeled, highest(scores, min(classes, max(1, math.ceil(average)))))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_ties_never_add_a_tag(count):
    found = top_targets(torch.zeros(50, 5), count)
    assert found.sum(1).tolist() == [count] * 50
    assert found[:, :count].all()


@pytest.mark.parametrize(
    ("y", "k"),
    [
        ([[1, 1, 0, 0], [1, 0, 0, 0]], 2),  # 1.5 tags
        ([[1, 1, 0, 0], [0, 0, 1, 1]], 2),  # 2 exactly
        ([[1, 1, 1, 0]] * 49 + [[0, 0, 0, 0]] * 49, 2),  # three halves
        ([[1, -1, 0, 0], [-1, 1, 0, 0], [1, 0, -1, -1]], 2),  # 2/2 + 1/2 + 0 + 0, not 3 tags in 3 rows
        ([[-1, -1, -1, 1], [-1, -1, -1, 1]], 1),  # three classes without a known label
        ([[0, 0, 0, 0]], 1),  # an image gets at least one tag
        ([[1, 1, 1, 1]], 4),
        ([[int(j == k) for k in range(4)] for j in range(4)] * 3, 1),
    ],
)
def test_k_is_the_average_number_of_tags_rounded_up(y, k):
    labeled = Labeled(torch.tensor(y), named(4))
    targets = get_method("topk").targets(torch.randn(6, 4), labeled, {}).labels
    assert targets.sum(1).tolist() == [k] * 6


def test_an_average_that_is_whole_but_for_rounding_is_not_rounded_up():
    y = torch.zeros(49, 4, dtype=torch.int8)
    for k, count in enumerate((9, 46, 46, 46)):  # 3 * 49 tags in all
        y[:count, k] = 1
    labeled = Labeled(y, named(4))
    assert labeled.tags_per_item > 3  # 3.0000000000000004
    assert get_method("topk").targets(torch.randn(2, 4), labeled, {}).labels.sum(1).tolist() == [3, 3]


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]))
def test_iat_compares_probabilities(dataset, threshold):
    scores, labeled = dataset
    method = get_method("iat", threshold=threshold)
    probabilities = 1 / (1 + np.exp(-scores.double().numpy()))
    clear = np.abs(probabilities - threshold) > 1e-6  # float32 may round to the threshold
    found = method.targets(scores, labeled, {}).labels.numpy()
    np.testing.assert_array_equal(found[clear], (probabilities >= threshold)[clear])


def test_iat_counts_the_threshold_itself_as_present():
    labeled = Labeled(torch.tensor([[1, 0, 1]]), named(3))
    check(get_method("iat"), torch.tensor([[0.0, -0.01, 0.01]]), labeled, [[1, 0, 1]])
    check(get_method("iat", threshold=0), torch.tensor([[-200.0, 0.0, 3.0]]), labeled, [[1, 1, 1]])


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.6, 1.0]), st.sampled_from([0.0, 0.98, 1.0]))
def test_cap_equals_cat_targets_and_a_literal_sort(dataset, keep_pos, keep_neg):
    scores, labeled = dataset
    positives, known = ts.class_counts(labeled.y)
    method = get_method("cap", keep_pos=keep_pos, keep_neg=keep_neg)
    expected = reference.cat_targets(scores.numpy(), positives.tolist(), known.tolist(), keep_pos, keep_neg)
    check(method, scores, labeled, expected)
    check(method, scores, labeled, ts.cat_targets(scores, positives, known, keep_pos, keep_neg))


def test_cap_takes_priors_by_name():
    scores = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    labeled = Labeled(torch.tensor([[1, 1, -1], [0, 1, -1]]), ("sea", "sand", "gull"))
    method = get_method("cap", priors={"gull": 0.07, "sea": 0.2})
    check(method, scores, labeled, ts.cat_targets(scores, priors=[0.2, 1.0, 0.07]))
    positives = (method.targets(scores, labeled, {}).labels == 1).sum(0)
    assert positives.tolist() == [20, 100, 7]  # sand as often as in the labeled set
    counted = get_method("cap").targets(scores, labeled, {}).labels
    assert (counted == 1).sum(0).tolist() == [50, 100, 0]
    assert (counted[:, 2] == -1).all()  # gulls have no known label
    check(get_method("cap", priors={}), scores, labeled, counted)


def test_labeled_counts():
    labeled = Labeled(torch.tensor([[1, 0, -1], [1, 1, -1], [0, -1, -1]]), ("a", "b", "c"))
    assert (labeled.positives, labeled.known, labeled.epoch) == ([2, 1, 0], [3, 2, 0], 0)
    assert labeled.tags_per_item == pytest.approx(2 / 3 + 1 / 2)
    later = replace(labeled, epoch=3)
    assert (later.positives, later.known, later.epoch) == ([2, 1, 0], [3, 2, 0], 3)
    with pytest.raises(FrozenInstanceError):
        labeled.epoch = 1  # type: ignore[misc]


def test_the_register():
    order = "bce asl llr llct llcp plc top1 topk iat adsh freematch drml cap mat d2l dicap"
    assert list(METHODS) == order.split()
    for name, kind in METHODS.items():
        method = get_method(name)
        assert type(method) is kind
        assert issubclass(kind, Method)
        assert method.summary
        assert method == get_method(name)

    def which(fact):
        return [name for name, kind in METHODS.items() if fact(kind)]

    assert which(lambda kind: not kind.uses_unlabeled) == ["bce", "asl"]
    assert which(lambda kind: kind.labeled_loss) == ["bce", "asl"]
    assert which(lambda kind: kind.per_step) == ["freematch", "d2l"]
    assert which(lambda kind: kind.reads_labeled) == ["mat", "d2l", "dicap"]
    assert which(lambda kind: kind.on_features) == ["drml"]
    assert which(lambda kind: not kind.shares_warmup) == ["bce", "drml", "d2l", "dicap"]
    assert repr(get_method("iat", threshold=0.7)) == "IAT(threshold=0.7)"


def test_defaults_pass_everything_through():
    method, labeled = Method(), Labeled(torch.tensor([[1]]), ("a",))
    assert method.uses_unlabeled
    assert method.start(labeled) == {}
    given_targets = Targets(torch.tensor([[1]]), torch.tensor([[0.5]]))
    assert method.step_targets(torch.tensor([[3.0]]), given_targets, labeled, {}) is given_targets
    seen = []

    def entry_loss(*arguments):
        seen.append(arguments)
        return torch.tensor([[7.0]])

    logits = torch.tensor([[2.0]])
    assert method.loss(logits, given_targets, entry_loss, {}).item() == 7
    assert all(a is b for a, b in zip(seen[0], (logits, *given_targets[:2]), strict=True))
    method.loss(logits, Targets(given_targets.labels), entry_loss, {})
    assert seen[1][2] is None


SEA = Labeled(torch.tensor([[1, 0]]), ("sea", "sand"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: get_method("capp"), "no method 'capp'. Did you mean 'cap'? Known: bce, asl, llr"),
        (lambda: ts.get_method("freemach"), "no method 'freemach'. Did you mean 'freematch'?"),
        (lambda: get_method("CAP"), "Did you mean 'cap'?"),
        (lambda: get_method("zebra"), "no method 'zebra'. Known"),
        (lambda: get_method("cap", keep_poss=1), "'cap' has no option 'keep_poss'; its options are keep_pos, keep_neg"),
        (lambda: get_method("cap", keep_poss=1), "priors. Did you mean 'keep_pos'?"),
        (lambda: get_method("bce", k=1), "'bce' has no option 'k'; it has none"),
        (lambda: get_method("iat", summary="x"), "'iat' has no option 'summary'; its options are threshold"),
        (lambda: get_method("cap", keep_pos=1.5), "keep_pos is 1.5; give a share from 0 to 1"),
        (lambda: get_method("cap", keep_neg=-0.1), "keep_neg is -0.1; give a share"),
        (lambda: get_method("cap", keep_neg=math.nan), "keep_neg is nan; give a share"),
        (lambda: get_method("cap", keep_pos="0.8"), "keep_pos is '0.8'; give a share"),
        (lambda: get_method("cap", keep_pos=None), "keep_pos is None; give a share"),
        (lambda: get_method("cap", priors={"sea": 1.2}), "the prior of 'sea' is 1.2; give a share"),
        (lambda: get_method("cap", priors=[0.1, 0.2]), "priors is [0.1, 0.2]; give a dict of frequencies by class"),
        (lambda: get_method("cap", priors={"see": 0.2}).start(SEA), "priors names 'see', which is not a class"),
        (lambda: get_method("cap", priors={"z": 0, "y": 0}).targets(torch.zeros(1, 2), SEA, {}), "priors names 'y'"),
        (lambda: get_method("cap").targets(torch.full((1, 2), math.nan), SEA, {}), "scores holds NaN at row 0"),
        (lambda: get_method("iat", threshold=2), "threshold is 2; give a share"),
        (lambda: get_method("iat", threshold=math.inf), "threshold is inf; give a share"),
        (lambda: get_method("topk", k=0), "k is 0; give a whole number of tags per image, at least 1"),
        (lambda: get_method("topk", k=-3), "k is -3; give a whole number"),
        (lambda: get_method("topk", k=2.5), "k is 2.5; give a whole number of tags"),
        (lambda: get_method("topk", k="2"), "k is '2'; give a whole number of tags"),
        (lambda: Method().targets(torch.zeros(1, 2), SEA, {}), "Method does not define how to label the unlabeled set"),
        (lambda: Labeled(torch.tensor([[2]]), ("a",)), "y holds 2 at row 0, class 0"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        call()
