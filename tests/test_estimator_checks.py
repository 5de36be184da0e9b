"""scikit-learn's estimator checks of TagSpreadClassifier; docs/guides/features.md explains the failing ones."""

import warnings
from pathlib import Path

import numpy as np
from sklearn.utils.estimator_checks import check_estimator

from tagspread import TagSpreadClassifier

ONE_COLUMN = "a column of yes and no is one class: one probability per row, where the check counts two"
CLASS_NUMBERS = "the check numbers its classes 1, 2, ...; a label here is 1, 0 or -1, and -1 means unknown"
A_MATRIX = "the check gives a vector of classes; several tags per row need a matrix"
EXPECTED = {
    "check_estimators_dtypes": CLASS_NUMBERS,
    "check_classifier_data_not_an_array": CLASS_NUMBERS,
    "check_fit2d_1feature": CLASS_NUMBERS,
    "check_estimator_sparse_array": CLASS_NUMBERS,
    "check_estimator_sparse_matrix": CLASS_NUMBERS,
    "check_classifier_not_supporting_multiclass": "the error speaks of tags; it need not speak of binary classes",
    "check_classifiers_classes": A_MATRIX,
    "check_classifiers_train": A_MATRIX,
    "check_decision_proba_consistency": A_MATRIX,
    "check_classifier_multioutput": "the check cuts at 0.5; predict() cuts where the F1 of hidden rows is best",
}


class OfClassNumbers(TagSpreadClassifier):
    """Convert a vector of class numbers to one binary column (is it the last class?), so that the checks can run."""

    def fit(self, X, Y, X_unlabeled=None):  # noqa: N803
        y = np.asarray(Y)
        numbers = y.ndim > 0 and y.size and y.dtype.kind in "iu" and (y.ndim == 1 or y.shape[1] == 1)
        return super().fit(X, (y == y.max()).astype(int).reshape(-1, 1) if numbers else Y, X_unlabeled)


def failed_checks(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks with one class warn, as they should
        results = check_estimator(estimator, expected_failed_checks=EXPECTED, on_fail=None, on_skip=None)
    return {result["check_name"] for result in results if result["status"] in ("failed", "xfail")}


def test_scikit_learns_checks():
    assert failed_checks(TagSpreadClassifier(ridge=0.3, folds=2)) == set(EXPECTED)


def test_what_the_labels_hid_from_the_checks_is_checked():
    """With binary labels it passes all checks except those that exclude one probability per class."""
    allowed = {
        "check_estimator_sparse_array": ONE_COLUMN,
        "check_estimator_sparse_matrix": ONE_COLUMN,
        "check_decision_proba_consistency": ONE_COLUMN,
    }
    failed = failed_checks(OfClassNumbers(ridge=0.3, folds=2))
    assert failed & {"check_estimators_dtypes", "check_classifier_data_not_an_array", "check_fit2d_1feature"} == set()
    assert set(allowed) <= failed


def test_the_page_lists_what_fails():
    page = (Path(__file__).parents[1] / "docs" / "guides" / "features.md").read_text(encoding="utf-8")
    assert {line.split("`")[1] for line in page.splitlines() if line.startswith("| `check_")} == set(EXPECTED)
