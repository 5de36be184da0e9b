"""TagSpreadClassifier: the scikit-learn contract, what it learns, and each kind of bad input."""

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tagspread as ts
from tagspread import TagSpreadClassifier, TagspreadError


def dataset(rows=240, labeled=60, seed=0, classes=3):
    rng = np.random.default_rng(seed)
    y = (rng.random((rows, classes)) < 0.4).astype(int)
    x = rng.normal(size=(rows, 20)) + 3
    x[:, :classes] += 2.5 * y
    given = y.copy()
    given[labeled:] = -1
    return x, given, y


@pytest.fixture(scope="module")
def fitted():
    x, given, y = dataset()
    return TagSpreadClassifier().fit(x, given), x, given, y


def test_attributes(fitted):
    model, _, given, _ = fitted
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.n_features_in_ == 20
    assert [counts.tolist() for counts in model.class_counts_] == [given[:60].sum(0).clip(0).tolist(), [60, 60, 60]]
    assert model.thresholds_.shape == (3,)
    assert model.settings_.ridge == model.ridge_
    assert len(model.trials_) > 5
    assert {"method", "ridge", "unlabeled_ridge", "unlabeled_weight", "calibration", "mAP", "per_fold"} == set(
        model.trials_[0]
    )
    assert (model.transduction_[:60] == given[:60]).all()
    assert (model.labeled_iter_[:60] == 0).all()


def test_scores_probabilities_and_decisions_agree(fitted):
    model, x, _, _ = fitted
    logits = model.decision_function(x)
    np.testing.assert_allclose(logits, x @ model.coef_.T + model.intercept_)
    np.testing.assert_allclose(model.predict_proba(x), expit(logits))
    assert (model.predict(x) == (model.predict_proba(x) >= model.thresholds_)).all()
    np.testing.assert_allclose(model.decision_function(x.astype(np.float32)), logits, atol=1e-3)


def test_the_unlabeled_is_labeled_by_the_method():
    x, given, _ = dataset()
    method = ts.get_method("cap", keep_pos=0.5)
    model = TagSpreadClassifier(method, unlabeled_weight=0.5, max_rounds=3, tol=0.0).fit(x, given)
    positives = given[:60].sum(0)
    assert ((model.transduction_[60:] == 1).sum(0) == positives * 180 // 120).all()
    assert (model.transduction_[60:] == -1).any()
    assert set(model.labeled_iter_[60:]) <= {1, 2, 3}
    assert model.labeled_iter_[60:].max() == model.n_iter_ == len(model.log_)
    assert model.unlabeled_weight_ == 0.5


def test_unlabeled_rows_inside_or_beside_are_the_same():
    x, given, _ = dataset()
    inside = TagSpreadClassifier(unlabeled_weight=1.0).fit(x, given)
    beside = TagSpreadClassifier(unlabeled_weight=1.0).fit(x[:60], given[:60], X_unlabeled=x[60:])
    both = TagSpreadClassifier(unlabeled_weight=1.0).fit(x[:100], given[:100], X_unlabeled=x[100:])
    for other in (beside, both):
        np.testing.assert_allclose(inside.coef_, other.coef_, atol=1e-5)
        assert (inside.transduction_ == other.transduction_).all()
        assert (inside.labeled_iter_ == other.labeled_iter_).all()


def test_order_of_the_unlabeled_does_not_matter():
    x, given, _ = dataset()
    order = np.concatenate([np.arange(60), 60 + np.random.default_rng(1).permutation(180)])
    plain, mixed = (TagSpreadClassifier(unlabeled_weight=1.0).fit(rows, given) for rows in (x, x[order]))
    np.testing.assert_allclose(plain.decision_function(x), mixed.decision_function(x), atol=0.02)
    assert (plain.transduction_[order] == mixed.transduction_).mean() > 0.99


def test_the_unlabeled_helps_where_it_shows_the_classes():
    """Two clusters per class in many dimensions: hard to separate from few rows, easy from many."""
    gains = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, size=(1000, 2))
        x = rng.normal(size=(1000, 40))
        x[:, :2] += 4.0 * (y - 0.5)
        given = np.where(np.arange(1000)[:, None] < 60, y, -1)
        both, alone = (TagSpreadClassifier(name).fit(x, given) for name in ("cap", "bce"))
        gains.append(both.score(x[60:], y[60:]) - alone.score(x[60:], y[60:]))
    assert min(gains) > -0.01
    assert np.mean(gains) > 0.02


def test_sparse_is_dense():
    x, given, _ = dataset()
    x[np.abs(x - 3) < 1] = 0
    # one round only: rounding in a score may change a label, and with it the chosen settings
    options: dict[str, Any] = {"standardize": False, "ridge": 0.1, "unlabeled_weight": 1.0, "max_rounds": 1}
    options["method"] = ts.get_method("cap")
    dense = TagSpreadClassifier(**options).fit(x, given)
    for kind in (sparse.csr_array, sparse.csc_matrix):
        thin = TagSpreadClassifier(**options).fit(kind(x), given)
        np.testing.assert_allclose(thin.decision_function(kind(x)), dense.decision_function(x), atol=2e-2)
    beside = TagSpreadClassifier(**options).fit(sparse.csr_array(x[:60]), given[:60], sparse.csr_array(x[60:]))
    np.testing.assert_allclose(beside.coef_, thin.coef_, atol=1e-5)


def test_sparse_features_of_unequal_scale_are_brought_to_one():
    """Sparse features give the same result as dense ones: the offset that is not subtracted is learned."""
    x, given, y = dataset()
    x = x * 10.0 ** np.arange(-3, -3 + x.shape[1])
    dense, thin = (TagSpreadClassifier().fit(kind(x), given) for kind in (np.asarray, sparse.csr_array))
    assert thin.score(sparse.csr_array(x), y) == pytest.approx(dense.score(x, y), abs=0.03)
    plain = TagSpreadClassifier(standardize=False).fit(sparse.csr_array(x), given)
    assert plain.score(sparse.csr_array(x), y) < thin.score(sparse.csr_array(x), y) - 0.05


def test_features_far_from_zero_and_constant_ones():
    x, given, y = dataset()
    moved = np.column_stack([x * 1e-3 + 1e6, np.full(len(x), 0.1)])
    near = TagSpreadClassifier(ridge=0.1, unlabeled_weight=1.0).fit(x, given)
    far = TagSpreadClassifier(ridge=0.1, unlabeled_weight=1.0).fit(moved, given)
    assert far.score(moved, y) == pytest.approx(near.score(x, y), abs=0.01)


def test_text_in_a_pipeline():
    words = [["goal", "match", "ball"], ["vote", "law", "party"]]
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=(120, 2))
    texts = [" ".join(rng.choice(sum([words[k] for k in np.flatnonzero(row)], ["the"]), 6)) for row in y]
    given = y.copy()
    given[40:] = -1
    model = make_pipeline(TfidfVectorizer(), TagSpreadClassifier()).fit(texts, given)
    assert model.score(texts[40:], y[40:]) > 0.95
    assert (model.predict(["goal ball match", "law vote party"]) == [[1, 0], [0, 1]]).all()


def test_names_of_classes_and_features():
    x, given, _ = dataset()
    frame = pd.DataFrame(x, columns=[f"f{i}" for i in range(20)])
    method = ts.get_method("cap", priors={"cat": 0.5})
    model = TagSpreadClassifier(method, unlabeled_weight=1.0).fit(
        frame, pd.DataFrame(given, columns=["cat", "dog", "owl"], index=range(7, 247))
    )
    assert model.classes_.tolist() == ["cat", "dog", "owl"]
    assert model.feature_names_in_[0] == "f0"
    assert (model.transduction_[60:, 0] == 1).sum() == 90
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"f0": "g0"}))


@pytest.mark.parametrize("priors", [{"cat": 0.5}, [0.5, np.nan, np.nan]])
def test_priors_are_the_frequencies_that_cap_labels_by(priors):
    x, given, _ = dataset()
    given = pd.DataFrame(given, columns=["cat", "dog", "owl"])
    model = TagSpreadClassifier(priors=priors, unlabeled_weight=1.0).fit(x, given)
    options = vars(model.settings_.method)
    assert options["priors"] == {"cat": 0.5}
    assert (model.transduction_[60:, 0] == 1).sum() == int(options["keep_pos"] * 0.5 * 180)
    with pytest.raises(TagspreadError, match="use method 'cap', or omit the priors"):
        TagSpreadClassifier("bce", priors=priors).fit(x, given)
    with pytest.raises(TagspreadError, match="2 numbers but there are 3 classes"):
        TagSpreadClassifier(priors=[0.1, 0.2]).fit(x, given)


def test_clone_pickle_grid_search_and_cross_validation(fitted):
    model, x, given, _ = fitted
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict(x) == model.predict(x)).all()
    made = TagSpreadClassifier(ts.get_method("iat", threshold=0.6), ridge=0.3)
    assert clone(made).get_params() == made.get_params()
    assert not hasattr(clone(model), "coef_")
    assert clone(model).set_params(ridge=0.5).ridge == 0.5
    mixed = np.random.default_rng(0).permutation(len(x))  # every fold of the search has labeled rows
    search = GridSearchCV(TagSpreadClassifier(folds=2), {"method": ["bce", "cap"], "ridge": [0.1]}, cv=2)
    search.fit(x[mixed], given[mixed])
    assert search.best_score_ > 0.8
    scores = cross_val_score(
        make_pipeline(StandardScaler(), TagSpreadClassifier(folds=2)), x[:60], given[:60], scoring="average_precision"
    )
    assert (scores > 0.7).all()


def test_hidden_layer():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = np.column_stack([x[:, 0] * x[:, 1] > 0, x[:, 0] > 0]).astype(int)
    given = np.where(np.arange(300)[:, None] < 150, y, -1)
    options: dict[str, Any] = {"hidden": 16, "ridge": 1e-3, "unlabeled_weight": 0.5, "folds": 2, "max_rounds": 1}
    model, again = (TagSpreadClassifier(head="mlp", **options).fit(x, given) for _ in range(2))
    assert model.score(x[150:], y[150:]) > 0.95
    assert TagSpreadClassifier(**options).fit(x, given).score(x[150:], y[150:]) < 0.85
    assert not hasattr(model, "coef_")
    np.testing.assert_array_equal(model.predict_proba(x), again.predict_proba(x))
    np.testing.assert_allclose(pickle.loads(pickle.dumps(model)).predict_proba(x), model.predict_proba(x))


def test_a_row_that_is_part_unknown_takes_part_with_what_is_known():
    x, given, _ = dataset()
    given[:20, 0] = -1
    model = TagSpreadClassifier().fit(x, given)
    assert model.class_counts_[1].tolist() == [40, 60, 60]
    assert (model.transduction_[:20, 0] == -1).all()
    other = given.copy()
    other[:20, 0] = 1
    assert not np.allclose(TagSpreadClassifier().fit(x, other).coef_[0], model.coef_[0])


def test_a_class_never_seen_is_named_and_never_predicted():
    x, given, _ = dataset()
    given[:60, 1] = 0
    with pytest.warns(UserWarning, match="no labeled row carries 1: .* label at least a few"):
        model = TagSpreadClassifier().fit(x, given)
    assert np.isinf(model.thresholds_[1])
    assert (model.predict(x)[:, 1] == 0).all()
    assert (model.predict_proba(x)[:, 1] < 0.05).all()
    assert (model.predict(x)[:, [0, 2]].sum(0) > 0).all()


def test_all_rows_labeled_and_a_method_without_a_unlabeled():
    x, given, y = dataset()
    whole = TagSpreadClassifier().fit(x, y)
    alone = TagSpreadClassifier("bce").fit(x, y)
    np.testing.assert_allclose(whole.coef_, alone.coef_)
    assert (whole.transduction_ == y).all()
    assert whole.unlabeled_weight_ == 0
    left_out = TagSpreadClassifier("bce").fit(x, given)
    assert (left_out.transduction_[60:] == -1).all()
    assert (left_out.labeled_iter_[60:] == -1).all()


def test_very_few_labeled_rows():
    x, given, _ = dataset()
    for labeled in (1, 2, 3):
        few = np.where(np.arange(len(x))[:, None] < labeled, given, -1)
        few[0] = [1, 0, 1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # classes without a positive
            model = TagSpreadClassifier().fit(x, few)
        assert np.isfinite(model.predict_proba(x)).all()


def test_same_answer_every_time():
    x, given, _ = dataset()
    first, second = (TagSpreadClassifier(random_state=3).fit(x, given) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)


X, Y, TRUTH = dataset(rows=30, labeled=20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Y": Y[:10]}, "X has 30 rows but Y has 10"),
        ({"Y": Y[:, 0]}, r"Y has shape \(30,\); give a matrix .* y.reshape"),
        ({"Y": np.full_like(Y, -1)}, "no row of Y is labeled: all 30 rows are -1"),
        ({"Y": np.where(Y == 1, 2, Y)}, "Unknown label type: Y holds 2 at row"),
        ({"Y": Y + 0.5}, "Unknown label type: Y holds"),
        ({"Y": np.where(Y == 1, np.nan, Y)}, "Unknown label type: Y holds nan"),
        ({"Y": np.full(Y.shape, "cat")}, "Unknown label type: Y holds <U3 entries"),
        ({"Y": Y[:, :0]}, "Y has no classes"),
        ({"Y": None}, "requires y to be passed"),
        ({"Y": pd.DataFrame(Y, columns=["a", "a", "b"])}, "two columns of the same name"),
        ({"Y": pd.DataFrame(Y).astype(float).replace(-1, np.nan)}, r"Y holds nan .* Y.fillna\(-1\)"),
        ({"Y": pd.DataFrame(Y).astype(object).replace(-1, pd.NA)}, r"Y.fillna\(-1\)"),
        ({"Y": [["cat"], ["cat", "dog"], []] * 10}, "rows of different lengths.*MultiLabelBinarizer"),
        ({"X": X[0]}, "Expected 2D array, got 1D array"),
        ({"X": np.where(X > 4, np.nan, X)}, "Input X contains NaN"),
        ({"X": np.where(X > 4, np.inf, X)}, "Input X contains infinity"),
        ({"X": np.full(X.shape, "a")}, "could not convert string to float|dtype"),
        ({"X": X[:, :0]}, r"0 feature\(s\)"),
        ({"X": X[:0], "Y": Y[:0]}, r"0 sample\(s\)"),
        ({"X_unlabeled": X[:, :3]}, "X_unlabeled has 3 features but X has 20"),
        ({"X_unlabeled": np.where(X > 4, np.nan, X)}, "Input X_unlabeled contains NaN"),
        ({"X_unlabeled": sparse.csr_array(X)}, "one of X and X_unlabeled is sparse"),
        ({"X": pd.DataFrame(X), "X_unlabeled": pd.DataFrame(X).iloc[:, ::-1]}, r"X_unlabeled\[X.columns\]"),
        ({"device": "gpu"}, "device 'gpu' cannot be used; give auto, cpu or cuda"),
        ({"method": ts.get_method("mat", apart=0.5)}, "MAT sets 0.5 of the labeled rows apart"),
        ({"method": "capp"}, "there is no method 'capp'. Did you mean 'cap'"),
        ({"method": 3}, "method is 3; give a name"),
        ({"method": "asl"}, "ASL is defined by the loss 'asl'"),
        ({"method": "d2l"}, "D2L trains the network in its own way"),
        ({"head": "deep"}, "head is 'deep'; it must be one of 'linear', 'mlp'"),
        ({"head": "mlp", "hidden": 0}, "hidden is 0; give a whole number of at least 1"),
        ({"ridge": 0}, "ridge is 0; give 'auto' or a number above 0"),
        ({"ridge": "small"}, "ridge is 'small'; give 'auto' or a number above 0"),
        ({"unlabeled_weight": -1}, "unlabeled_weight is -1; give 'auto' or a number from 0 on"),
        ({"max_rounds": 0}, "max_rounds is 0; give a whole number of at least 1"),
        ({"folds": 1}, "folds is 1; give a whole number of at least 2"),
        ({"tol": "x"}, "tol is 'x'; give a share"),
        ({"policy": "f2"}, "policy is 'f2'; it must be f1"),
    ],
    ids=str,
)
def test_bad_input(change, message):
    given = {"X": X, "Y": Y, "X_unlabeled": None} | {k: v for k, v in change.items() if k in ("X", "Y", "X_unlabeled")}
    options = {k: v for k, v in change.items() if k not in given}
    with pytest.raises(ValueError, match=message):
        TagSpreadClassifier(**options).fit(**given)


def test_predicting_with_other_features(fitted):
    with pytest.raises(ValueError, match="X has 3 features, but TagSpreadClassifier is expecting 20"):
        fitted[0].predict(X[:, :3])
    with pytest.raises(ValueError, match="not fitted"):
        TagSpreadClassifier().predict(X)


def test_numpys_whole_numbers_are_whole_numbers():
    search = GridSearchCV(
        TagSpreadClassifier(unlabeled_weight=0.0), {"folds": np.arange(2, 4), "max_rounds": [np.int32(2)]}, cv=KFold(2)
    )
    assert search.fit(X, np.maximum(Y, 0)).best_params_["folds"] in (2, 3)


def test_frames_are_scored_by_the_names_of_their_columns():
    frame = pd.DataFrame(np.maximum(Y, 0), columns=["a", "b", "c"])
    model = TagSpreadClassifier(unlabeled_weight=0.0).fit(X, frame)
    assert model.score(X, frame) == model.score(X, frame.to_numpy())
    with pytest.raises(ValueError, match=r"give y\[model.classes_\]"):
        model.score(X, frame[["c", "b", "a"]])
    unnamed = TagSpreadClassifier(unlabeled_weight=0.0).fit(X, frame.to_numpy())
    assert unnamed.score(X, frame) == model.score(X, frame)


def test_a_fold_without_labels_is_named(fitted):
    model, x, given, _ = fitted
    with pytest.raises(ValueError, match=r"nothing to score by.*shuffle"):
        model.score(x[60:], given[60:])


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_features_that_are_too_large_are_named(kind):
    """Squares of such features overflow; the learning rate, which other messages suspect, has nothing to do with it."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, (40, 2))
    wrong = x.copy()
    wrong[7, 2] = -1e300
    model = TagSpreadClassifier(ridge=1.0)
    for call in (lambda: model.fit(kind(wrong), y), lambda: model.fit(kind(x), y, X_unlabeled=kind(wrong))):
        with pytest.raises(ValueError, match=r"holds -1e\+300 in row 7, feature 2, which is too large to compute with"):
            call()
    with pytest.raises(ValueError, match=r"X holds -1e\+300 in row 7, feature 2"):
        model.fit(kind(x), y).predict(kind(wrong))


@pytest.mark.parametrize("dtype", ["Int8", "Int64", "boolean", "Float64"])
def test_missing_values_of_nullable_columns_are_unknown(dtype):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, (40, 2))
    y[20:] = -1
    y[3, 1] = -1
    frame = pd.DataFrame(y, columns=["sea", "sand"]).replace(-1, pd.NA).astype(dtype)
    model, plain = (TagSpreadClassifier(ridge=1.0).fit(x, labels) for labels in (frame, y))
    assert list(model.classes_) == ["sea", "sand"]
    np.testing.assert_array_equal(model.predict_proba(x), plain.predict_proba(x))
    np.testing.assert_array_equal(model.class_counts_, plain.class_counts_)
    assert model.score(x, frame) == plain.score(x, y)
    assert model.predict(x).dtype.kind in "if"


def test_verbose_says_how_long_each_step_took(capsys):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(60, 5)), rng.integers(0, 2, (60, 2))  # noqa: N806
    Y[30:] = -1
    quiet = ts.TagSpreadClassifier().fit(X, Y)
    assert capsys.readouterr().out == ""
    loud = ts.TagSpreadClassifier(verbose=True).fit(X, Y)
    said = capsys.readouterr().out
    assert said.startswith("choosing settings ")
    assert f"{len(loud.trials_)} settings tried" in said
    assert np.array_equal(loud.coef_, quiet.coef_)
