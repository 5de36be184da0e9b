"""The targets of the unlabeled set: what changes, what is counted, and that a checkpoint brings all of it back."""

import pytest
import torch

from tagspread.methods.base import Targets
from tagspread.run.checkpoint import Checkpoint
from tagspread.train.pseudo_labels import PseudoLabels

CPU = torch.device("cpu")


def hard(*rows):
    return torch.tensor(rows, dtype=torch.int8)


def labeled(*rows, weight=None):
    """Pseudo-labels of the whole unlabeled set, with its row numbers for scores."""
    labels = PseudoLabels({}, CPU)
    scores = torch.arange(len(rows)).float()[:, None].expand(-1, len(rows[0]))
    labels.relabel(slice(None), Targets(hard(*rows), weight), scores)
    return labels


def test_there_are_none_before_the_first():
    labels = PseudoLabels({}, CPU)
    assert not labels.exist
    assert labels.total_flips == 0
    with pytest.raises(RuntimeError, match="has no pseudo-labels yet"):
        _ = labels.targets


def test_what_is_given_is_not_changed_in_place():
    given, scores = hard([1, 0], [0, 1]), torch.zeros(2, 2)
    labels = PseudoLabels({}, CPU)
    labels.relabel(slice(None), Targets(given), scores)
    labels.relabel(torch.tensor([0]), Targets(hard([0, 0])), torch.ones(1, 2))
    assert given.tolist() == [[1, 0], [0, 1]]
    assert not scores.any()


def test_flips_count_the_targets_that_changed():
    labels = labeled([1, 0], [0, -1], [1, 1])
    assert labels.total_flips == 0
    labels.relabel(torch.tensor([2, 0]), Targets(hard([1, 0], [1, -1])), torch.full((2, 2), 9.0))
    assert labels.targets.labels.tolist() == [[1, -1], [0, -1], [1, 0]]
    assert labels.flips.tolist() == [[0, 1], [0, 0], [0, 1]]
    labels.relabel(slice(None), Targets(hard([1, 0], [0, -1], [1, 0])), torch.zeros(3, 2))
    assert labels.flips.tolist() == [[0, 2], [0, 0], [0, 1]]
    assert labels.total_flips == 3


def test_scores_are_those_the_targets_came_from():
    labels = labeled([1, 0], [0, 1], [1, 1])
    labels.relabel(torch.tensor([1]), Targets(hard([0, 1])), torch.tensor([[7.0, 8.0]]))
    assert labels.scores.tolist() == [[0, 0], [7, 8], [2, 2]]


def test_soft_targets_may_come_after_hard_ones_and_hard_after_soft():
    labels = labeled([1, 0], [0, 1])
    labels.relabel(torch.tensor([1]), Targets(torch.tensor([[0.25, 1.0]])), torch.zeros(1, 2))
    assert labels.targets.labels.tolist() == [[1.0, 0.0], [0.25, 1.0]]
    assert labels.flips.tolist() == [[0, 0], [1, 0]]
    labels.relabel(torch.tensor([0]), Targets(hard([0, 0])), torch.zeros(1, 2))
    assert labels.targets.labels.tolist() == [[0.0, 0.0], [0.25, 1.0]]


def test_weights_are_one_where_none_were_given():
    labels = labeled([1, 0], [0, 1])
    assert labels.at(torch.tensor([0])).weight is None
    labels.relabel(torch.tensor([1]), Targets(hard([0, 1]), torch.tensor([[0.5, 0.0]])), torch.zeros(1, 2))
    assert labels.targets.weight is not None
    assert labels.targets.weight.tolist() == [[1, 1], [0.5, 0]]
    labels.relabel(torch.tensor([1]), Targets(hard([0, 1])), torch.zeros(1, 2))  # again without weights
    assert labels.targets.weight is not None
    assert labels.targets.weight.tolist() == [[1, 1], [1, 1]]


def test_the_targets_of_a_batch_come_with_their_places():
    labels = labeled([1, 0], [0, 1], [1, 1], weight=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    targets = labels.at(torch.tensor([2, 0, 2]))
    assert targets.labels.tolist() == [[1, 1], [1, 0], [1, 1]]
    assert targets.weight is not None
    assert targets.weight.tolist() == [[5, 6], [1, 2], [5, 6]]
    assert targets.places is not None
    assert targets.places.tolist() == [2, 0, 2]


@pytest.mark.parametrize("weight", [None, torch.rand(2, 2)])
def test_a_checkpoint_brings_all_of_it_back(weight):
    labels = labeled([1, 0], [0, 1], weight=weight)
    labels.method_state["thresholds"] = torch.rand(2)
    labels.relabel(torch.tensor([0]), Targets(hard([0, 0]), None if weight is None else weight[:1]), torch.ones(1, 2))
    labels.fresh = torch.rand(3, 1, 2)
    other = PseudoLabels({"thresholds": torch.zeros(2)}, CPU)
    held = other.method_state  # by the objective, which must see what was restored
    other.restore(Checkpoint(labels.tensors(), {}), (2, 2))
    assert held["thresholds"].equal(labels.method_state["thresholds"])
    assert other.tensors().keys() == labels.tensors().keys()
    for name, value in labels.tensors().items():
        assert torch.equal(other.tensors()[name], value), name


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("method.thresholds", torch.zeros(3), r"method.thresholds has shape \(3,\), not \(2,\)"),
        ("targets.labels", torch.zeros(2, 3), r"labels has shape \(2, 3\), not \(2, 2\)"),
        ("targets.labels", torch.full((2, 2), 7.0), "targets.labels has values that are no targets"),
        ("unlabeled.scores", torch.zeros(2), r"scores has shape \(2,\), not \(2, 2\)"),
        ("unlabeled.fresh", torch.zeros(1, 2, 5), r"unlabeled.fresh has shape \(1, 2, 5\), not \(1, 2, 2\)"),
    ],
)
def test_a_checkpoint_of_other_shapes_is_refused(name, value, words):
    labels = labeled([1, 0], [0, 1])
    labels.method_state["thresholds"] = torch.rand(2)
    other = PseudoLabels({"thresholds": torch.zeros(2)}, CPU)
    with pytest.raises(ValueError, match=words):
        other.restore(Checkpoint(labels.tensors() | {name: value}, {}), (2, 2))


def test_a_checkpoint_of_the_warm_up_has_none():
    other = PseudoLabels({}, CPU)
    other.restore(Checkpoint(PseudoLabels({}, CPU).tensors(), {}), (2, 2))
    assert not other.exist
