"""The search uses labeled rows only, evaluates on held-out folds, and omits the unlabeled set if it does not help."""

import numpy as np
import pytest
import torch

from tagspread.core.metrics import average_precision
from tagspread.data.split import stratified_split
from tagspread.linear import search as search_module
from tagspread.linear.heads import DenseRows
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.perceptron import PerceptronHead
from tagspread.linear.rounds import Settings, probe, spread
from tagspread.linear.search import SearchSpace, Trial, intervals_of, search_settings
from tagspread.methods import get_method

HEAD = LogisticHead()
CLASSES = ("a", "b")


def clusters(labeled=40, unlabeled=800, seed=2):
    """Two classes, each with two clusters along its own direction; the unlabeled set shows the clusters."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, size=(labeled + unlabeled, 2)).astype(np.int8)
    x = rng.normal(size=(labeled + unlabeled, 60)).astype(np.float32)
    x[:, :2] += 3.0 * (y - 0.5)
    seen = torch.from_numpy(x)
    return DenseRows(seen[:labeled]), torch.from_numpy(y[:labeled]), DenseRows(seen[labeled:])


def run(known, y, unlabeled, methods=("cap",), **options):
    made = [get_method(name) for name in methods]
    return search_settings(known, y, unlabeled, made, head=HEAD, classes=CLASSES, **options)


def test_a_unlabeled_that_shows_the_classes_is_used_and_one_that_misleads_is_not():
    known, y, unlabeled = clusters()
    assert run(known, y, unlabeled).settings.unlabeled_weight > 0
    random = torch.Generator().manual_seed(0)  # all rows along one direction that has nothing to do with the classes
    noise = DenseRows(3 * torch.randn(800, 1, generator=random) * torch.randn(1, 60, generator=random))
    assert run(known, y, noise).settings.unlabeled_weight == 0
    assert (
        run(known, y, noise, space=SearchSpace(unlabeled_weights=(0.5,))).settings.unlabeled_weight == 0.5
    )  # requested explicitly


def test_the_default_grid_spans_two_decades_around_its_defaults():
    space = SearchSpace()
    for values, steps in ((space.ridges, 5), (space.unlabeled_weights[:-1], 3)):
        factors = np.diff(np.log10(sorted(values)))
        assert len(values) == steps
        assert ((factors > 0.45) & (factors < 0.55)).all()  # a factor of about 3
    assert space.ridges[0] == sorted(space.ridges)[2] == 0.3  # the middle is tried first, and kept in doubt
    assert space.unlabeled_weights == (1.0, 0.3, 0.1, 0.0)


def test_figures_are_those_of_heads_that_have_not_seen_the_rows():
    known, y, unlabeled = clusters(labeled=12)
    choice = run(known, y, unlabeled, ["bce"], space=SearchSpace(ridges=(0.3,)), folds=3, seed=5)
    (trial,) = choice.trials
    assert choice.out_of_fold is trial.out_of_fold
    parts = stratified_split(y.numpy(), [1 / 3] * 3, 5).parts
    for fold, part in enumerate(parts):
        rest = np.setdiff1d(np.arange(12), part)
        ((weight, bias),) = probe(known.take(torch.from_numpy(rest)), y[rest], 0.3, HEAD.coarse())
        found = known.features[0, part] @ weight.T + bias
        torch.testing.assert_close(trial.out_of_fold[part], found, atol=1e-4, rtol=0)
        assert trial.per_fold[fold].item() == pytest.approx(average_precision(found, y[part]).nanmean().item())


def test_labels_of_held_out_rows_do_not_leak_into_their_scores():
    """Inverting the labels of one fold changes the scores by the other folds' heads, but not by its own."""
    known, y, unlabeled = clusters(labeled=16)
    part = torch.from_numpy(stratified_split(y.numpy(), [0.5, 0.5], 0).parts[0])

    def scores_with(labels):
        folds = search_module._deal(known, y, 2, 0)
        relabeled = [
            search_module._Fold(f.rows, labels[_others(f.index)], f.held_out, labels[f.index], f.index, {})
            for f in folds
        ]
        settings = Settings(get_method("cap"))
        search = search_module._Search(relabeled, y, unlabeled, settings, HEAD, CLASSES, 5, 1.0)

        def fit(fold):
            start = probe(fold.rows, fold.y, 0.3, HEAD)
            return spread(fold.rows, fold.y, unlabeled, settings, start, head=HEAD, classes=CLASSES).layers

        return search._try(settings, fit).out_of_fold

    def _others(index):
        return np.setdiff1d(np.arange(16), index.numpy())

    turned = y.clone()
    turned[part] = 1 - turned[part]
    before, after = scores_with(y), scores_with(turned)
    torch.testing.assert_close(before[part], after[part])
    others = _others(part)
    assert (before[others] - after[others]).abs().max() > 0.1


def test_gains_are_measured_in_their_own_errors():
    settings, nothing = Settings(get_method("cap")), torch.zeros(0)
    base = Trial(settings, torch.full((4,), 0.5), nothing)
    sure = Trial(settings, torch.tensor([0.6, 0.62, 0.58, 0.6]), nothing)
    likely = Trial(settings, torch.tensor([0.5, 0.6, 0.5, 0.6]), nothing)  # 0.05 with an error of 0.029
    luck = Trial(settings, torch.tensor([0.9, 0.4, 0.5, 0.3]), nothing)
    assert [trial.above(base, 1) for trial in (sure, likely, luck, base)] == [True, True, False, False]
    assert [trial.above(base, 2) for trial in (sure, likely, luck, base)] == [True, False, False, False]
    assert not Trial(settings, torch.tensor([0.6, torch.nan, torch.nan, torch.nan]), nothing).above(base, 1)


def test_intervals_of_a_method_with_options_of_its_own_are_left_alone():
    assert [(vars(m)["keep_pos"], vars(m)["keep_neg"]) for m in intervals_of(get_method("cap"))] == [
        (0.5, 0.99),
        (0.5, 1),
        (0.8, 1),
    ]
    assert intervals_of(get_method("iat")) == (get_method("iat"),)


def test_a_gain_of_one_class_alone_is_not_clear():
    settings, nothing = Settings(get_method("cap")), torch.zeros(0)
    base = Trial(settings, torch.full((4,), 0.5), nothing, torch.full((4, 5), 0.5))
    one = torch.full((4, 5), 0.5)
    one[:, 0] = 0.9
    all_ = torch.full((4, 5), 0.55) + torch.tensor([0.0, 0.01, 0.0, -0.01, 0.0])
    assert not Trial(settings, one.nanmean(1), nothing, one).above(base, 2)  # the folds agree, the classes do not
    assert Trial(settings, one.nanmean(1), nothing, one).above(base, 2, least=0.02)  # by more than two points
    assert not Trial(settings, one.nanmean(1), nothing, one).above(base, 2, least=0.2)
    assert Trial(settings, all_.nanmean(1), nothing, all_).above(base, 2)
    all_[:, 4] = torch.nan  # without a labeled positive
    assert Trial(settings, all_.nanmean(1), nothing, all_).above(base, 2)


@pytest.mark.parametrize(("alone", "weight"), [(0.55, 1.0), (0.599, 1.0), (0.601, 0.0)])
def test_the_unlabeled_set_is_used_if_it_helps_on_average(monkeypatch, alone, weight):
    """The labeled-only head scores ``alone``, all others 0.6; the folds differ by 0.1."""
    known, y, unlabeled = clusters()

    def scored(search, settings, fit):
        base = 0.6 if settings.unlabeled_weight else alone
        noise = torch.tensor([0.05, -0.05, 0.05, -0.05]) * (settings.unlabeled_weight == 0)
        return Trial(settings, base + noise, torch.zeros(y.shape))

    monkeypatch.setattr(search_module._Search, "_try", scored)
    assert run(known, y, unlabeled).settings.unlabeled_weight == weight


def test_the_calibration_is_one_logistic_regression_on_the_held_out_scores():
    known, y, unlabeled = clusters()
    choice = run(known, y, unlabeled, space=SearchSpace(by_confidence=True))
    slope, intercept = choice.settings.calibration
    (alone,) = [
        t for t in choice.trials if not t.settings.unlabeled_weight and t.settings.ridge == choice.settings.ridge
    ]
    z, labels = alone.out_of_fold.flatten().double().numpy(), y.flatten().double().numpy()
    residual = 1 / (1 + np.exp(-(slope * z + intercept)))
    smoothed = np.where(labels == 1, (labels.sum() + 1) / (labels.sum() + 2), 1 / ((1 - labels).sum() + 2))
    assert abs((residual - smoothed).mean()) < 1e-6  # the gradient vanishes
    assert abs(((residual - smoothed) * z).mean()) < 1e-6
    assert run(known, y, unlabeled).settings.calibration is None


def test_a_large_unlabeled_and_many_labeled_rows_are_represented_by_a_sample():
    known, y, unlabeled = clusters(labeled=80)
    choice = run(known, y, unlabeled, most_rows=40)
    assert choice.out_of_fold.shape == choice.labels.shape == (40, 2)
    assert choice.settings == run(known, y, unlabeled, most_rows=40).settings


@pytest.mark.parametrize(("most", "times"), [(1000, 1), (80, 10), (40, 10)])
def test_a_sample_of_the_unlabeled_weighs_as_much_as_all_of_it(monkeypatch, most, times):
    known, y, unlabeled = clusters(labeled=80)
    weights = []

    def watched(*rows_and, **options):
        weights.append(rows_and[3].unlabeled_weight)
        return spread(*rows_and, **options)

    monkeypatch.setattr(search_module, "spread", watched)
    run(known, y, unlabeled, most_rows=most, space=SearchSpace(unlabeled_weights=(0.5,)))
    assert weights
    assert set(weights) == {0.5 * times}


def test_too_few_rows_to_hide_any():
    known, y, unlabeled = clusters(labeled=1)
    choice = run(known, y, unlabeled)
    assert (choice.trials, choice.out_of_fold, choice.settings.unlabeled_weight) == ((), None, 0.0)


def test_no_positive_in_any_fold():
    known, y, unlabeled = clusters()
    assert run(known, torch.zeros_like(y), unlabeled).settings.unlabeled_weight == 0


@pytest.mark.parametrize("bad", [{"ridges": ()}, {"ridges": (-1.0,)}, {"unlabeled_weights": (float("nan"),)}])
def test_bad_grid(bad):
    with pytest.raises(ValueError, match="give at least one number, none below 0"):
        SearchSpace(**bad)


def test_settings_of_a_head_that_is_not_convex_are_compared_after_equal_training():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 12)).astype(np.float32)
    y = torch.from_numpy((x[:, :2] * x[:, 2:4] > 0).astype(np.int8))
    noise = torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    head = PerceptronHead(hidden=16, steps=90)
    space = SearchSpace(ridges=(0.01, 0.010001, 0.010002), unlabeled_weights=(1e-6, 0.0))
    choice = search_settings(
        DenseRows(torch.from_numpy(x)),
        y,
        DenseRows(noise),
        [get_method("cap")],
        head=head,
        classes=CLASSES,
        space=space,
    )
    alone = [trial.mean for trial in choice.trials if not trial.settings.unlabeled_weight]
    (together,) = [trial.mean for trial in choice.trials if trial.settings.unlabeled_weight]
    assert alone == pytest.approx([alone[0]] * 3, abs=0.02)
    assert together == pytest.approx(alone[0], abs=0.02)
