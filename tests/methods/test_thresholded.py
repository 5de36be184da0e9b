"""PLC and ADSH, compared with loops over entries."""

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tagspread.errors import TagspreadError
from tagspread.methods import Labeled, get_method
from tests.methods.helpers import in_single_precision, logit, named, probabilities, problems

# --- PLC ---


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from([0.5, 0.6, 0.75, 0.9, 1.0]))
def test_plc_believes_the_two_ends(dataset, threshold):
    scores, labeled = dataset
    expected = [[1 if f >= threshold else 0 if f < 1 - threshold else -1 for f in row] for row in probabilities(scores)]
    found = get_method("plc", threshold=threshold).targets(scores, labeled, {})
    assert found.labels.tolist() == expected
    assert found.weight is None


def test_plc_at_its_borders():
    labeled = Labeled(torch.tensor([[1, 0, 1, 1]]), named(4))
    scores = torch.tensor([[0.0, -0.01, 200.0, -200.0]])
    assert get_method("plc", threshold=0.5).targets(scores, labeled, {}).labels.tolist() == [[1, 0, 1, 0]]
    assert get_method("plc").targets(scores, labeled, {}).labels.tolist() == [[-1, -1, 1, 0]]
    assert get_method("plc", threshold=1).targets(scores, labeled, {}).labels.tolist() == [[-1, -1, 1, -1]]


# --- ADSH ---


def adsh_thresholds(f, reference, tau, before):
    """Apply the published rule class by class, on lists of probabilities."""
    columns = list(zip(*f, strict=True))
    sure = [sorted((p for p in column if p >= 0.5), reverse=True) for column in columns]
    share = sum(p >= tau for p in sure[reference]) / max(1, len(sure[reference])) or 1.0
    found = []
    for k, known in enumerate(sure):
        if k == reference:
            found.append(tau)
        elif known:
            found.append(min(tau, known[max(0, round(len(known) * share - 1))]))
        else:
            found.append(before[k])
    return found


def most_frequent(y):
    """Return the class with the highest share of positives among its known labels; the first among equals."""
    shares = []
    for column in y.T.tolist():
        known = [value for value in column if value >= 0]
        shares.append(sum(known) / len(known) if known else 0.0)
    return shares.index(max(shares))


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([0.5, 0.75, 0.875, 0.95]), st.sampled_from(["all", "symmetric", "complement"]))
def test_adsh_equals_a_loop_over_classes_for_two_epochs(dataset, tau, negatives):
    scores, labeled = dataset
    method = get_method("adsh", threshold=tau, negatives=negatives)
    state, reference = method.start(labeled), most_frequent(labeled.y.numpy())
    tau = in_single_precision(tau)
    present = absent = [tau] * scores.shape[1]
    for epoch in range(2):
        now = scores - 1.5 * epoch  # lower scores: some classes no longer reach 1/2
        f = probabilities(now)
        gone = (1 - now.sigmoid()).tolist()
        present = adsh_thresholds(f, reference, tau, present)
        absent = adsh_thresholds(gone, reference, tau, absent) if negatives == "symmetric" else absent
        expected = []
        for row, without in zip(f, gone, strict=True):
            line = []
            for k, p in enumerate(row):
                is_absent = {"all": p < 0.5, "symmetric": without[k] >= absent[k] and p < 0.5, "complement": True}
                line.append(1 if p >= present[k] else 0 if is_absent[negatives] else -1)
            expected.append(line)
        found = method.targets(now, replace(labeled, epoch=epoch), state)
        assert state["present"].tolist() == present
        assert state["absent"].tolist() == absent
        assert found.labels.tolist() == expected
        assert max(present) <= tau


def test_adsh_takes_the_most_frequent_class_as_reference_wherever_it_stands():
    """The third class is the most frequent; half of its finds reach 0.9, so every class selects half of its finds."""
    labeled = Labeled(torch.tensor([[0, 1, 1], [1, 0, 1], [0, 0, 1]]), named(3))
    columns = [logit(0.9, 0.8, 0.7, 0.6), logit(0.55, 0.54, 0.53, 0.1), logit(0.95, 0.94, 0.6, 0.55)]
    method = get_method("adsh", threshold=0.9)
    state = method.start(labeled)
    found = method.targets(torch.stack(columns, 1), labeled, state)
    assert state["present"].tolist() == pytest.approx([0.8, 0.55, 0.9])  # ranks 1, round(0.5) = 0, reference class
    assert found.labels.T.tolist() == [[1, 1, -1, -1], [1, -1, -1, 0], [1, 1, -1, -1]]


def test_adsh_without_a_sure_reference_keeps_every_find():
    """The original starts with a share of 1 and lowers it only for a reference class that reaches the threshold."""
    labeled = Labeled(torch.tensor([[1, 1, 0], [1, 0, 1]]), named(3))
    columns = [logit(0.7, 0.6, 0.9, 0.8), logit(0.7, 0.51, 0.9, 0.6), logit(0.4, 0.3, 0.2, 0.1)]
    method = get_method("adsh")
    state = method.start(labeled)
    found = method.targets(torch.stack(columns, 1), labeled, state)
    assert state["present"].tolist() == pytest.approx([0.95, 0.51, 0.95])  # the last class does not reach 1/2
    assert found.labels.T.tolist() == [[-1, -1, -1, -1], [1, 1, 1, 1], [0, 0, 0, 0]]
    nobody = method.targets(torch.full((1, 3), -3.0), labeled, state)  # the reference class does not reach 1/2
    assert nobody.labels.tolist() == [[0, 0, 0]]
    assert state["present"].tolist() == pytest.approx([0.95, 0.51, 0.95])


@pytest.mark.parametrize("score", [0.97, 0.6])
def test_adsh_with_one_find_in_the_reference_class(score):
    """A single find reaches the threshold, or none does: every other class then keeps all of its finds."""
    labeled = Labeled(torch.tensor([[1, 1], [1, 0]]), named(2))
    columns = [logit(score, 0.2, 0.2, 0.2), logit(0.9, 0.8, 0.7, 0.6)]
    found = get_method("adsh").targets(torch.stack(columns, 1), labeled, get_method("adsh").start(labeled))
    assert int((found.labels[:, 1] == 1).sum()) == 4


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("plc", {"threshold": 0.4}, "threshold is 0.4; give a share from 0.5 to 1."),
        ("plc", {"threshold": 1.1}, "threshold is 1.1; give a share from 0.5 to 1."),
        ("plc", {"threshold": "0.6"}, "threshold is '0.6'; give a share from 0.5 to 1."),
        ("plc", {"tau": 0.6}, "method 'plc' has no option 'tau'; its options are threshold."),
        ("adsh", {"threshold": 0.3}, "threshold is 0.3; give a share from 0.5 to 1."),
        ("adsh", {"threshold": math.nan}, "threshold is nan; give a share from 0.5 to 1."),
        ("adsh", {"negatives": "some"}, "negatives is 'some'; it must be one of 'all', 'symmetric', 'complement'."),
        ("adsh", {"negative": "all"}, "has no option 'negative'; its options are threshold, negatives. Did you mean"),
    ],
)
def test_bad_options(name, options, words):
    with pytest.raises(TagspreadError, match=re.escape(words)):
        get_method(name, **options)
