"""The method on a feature matrix, as a scikit-learn estimator: embeddings, text, tables; no network, no GPU."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from tagspread.core.decision import Policy, choose_thresholds, decide
from tagspread.core.metrics import mean_average_precision
from tagspread.core.thresholds import class_counts
from tagspread.errors import TagspreadError
from tagspread.linear.labels import Labels, read_labels
from tagspread.linear.options import check_count, make_head, make_methods, make_search_space
from tagspread.linear.prepare import Scaling
from tagspread.linear.rounds import Fitted, probe, spread
from tagspread.linear.search import SearchResult, search_settings
from tagspread.methods import Method
from tagspread.methods.base import check_share
from tagspread.train.trainer import choose_device

NUMBERS = (np.float64, np.float32)


class TagSpreadClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Semi-supervised multi-label classifier: a few labeled rows, many unlabeled ones, several tags per row.

    Fits the labeled rows, scores the unlabeled set, lets the method label it (CAP by default), fits both, and again
    until the labels stop moving. Penalty, reliable interval and weight of the unlabeled set are chosen by
    cross-validation on the labeled rows; where the unlabeled set does not clearly help, it is left out
    (``unlabeled_weight_`` is 0).

    Args:
        method: name of a method that labels from scores (``"cap"``; ``"bce"`` for the labeled rows alone), whose
            settings are then chosen; or one made by :func:`tagspread.get_method`, which is taken as it is.
        head: ``"linear"``, or ``"mlp"`` for a small hidden layer.
        ridge: penalty on the weights, for features of unit variance; ``"auto"`` chooses it.
        unlabeled_weight: importance of an unlabeled row beside a labeled one; 0 leaves the unlabeled set out,
            ``"auto"`` chooses.
        hidden: units of the hidden layer.
        standardize: bring every feature to mean 0 and variance 1, as seen on all rows. Of sparse features nothing is
            taken off, and where all rows have one length, as TF-IDF makes them, they are left as they are.
        max_rounds: at most so many rounds with the unlabeled set.
        tol: the rounds end when at most this share of the unlabeled set's labels still moves.
        folds: of the cross-validation.
        policy: what the decision thresholds are to be good for: ``f1``, ``fbeta:2``, ``precision:0.9`` or ``match``.
        device: where the fitting is done, such as ``"cpu"`` or ``"cuda"``.
        random_state: seed of the folds and of the hidden layer.

    Attributes:
        classes_: the columns of ``Y``: their names if it is a data frame, else 0, 1, ...
        thresholds_: probability from which :meth:`predict` calls a class present; chosen on rows out of their fold.
        class_counts_: ``(positives, known)`` per class, of the labeled rows.
        transduction_: the labels of the last fit, for the rows of ``X`` and then of ``X_unlabeled``; -1 took no part.
        labeled_iter_: per row, 0 if it came with labels, else the round that last changed them; -1 if it got none.
        settings_: what was chosen: method, penalties, weight of the unlabeled set; also ``ridge_`` and
            ``unlabeled_weight_``.
        trials_: every setting that was tried, with its mean average precision on hidden rows.
        layers_: weights and biases for features as they come; ``coef_`` and ``intercept_`` of a linear head.
        log_: one entry per round with the unlabeled set; ``n_iter_`` of them.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 5))
    >>> Y = (X[:, :2] + X[:, 2:4] > 0).astype(int)
    >>> Y[40:] = -1  # unlabeled
    >>> TagSpreadClassifier().fit(X, Y).predict([[2.0, -2.0, 1.0, -1.0, 0.0]]).tolist()
    [[1, 0]]
    """

    def __init__(
        self,
        method: str | Method = "cap",
        *,
        head: str = "linear",
        ridge: float | str = "auto",
        unlabeled_weight: float | str = "auto",
        hidden: int = 64,
        standardize: bool = True,
        max_rounds: int = 5,
        tol: float = 0.001,
        folds: int = 4,
        policy: str = "f1",
        device: str = "cpu",
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.head = head
        self.ridge = ridge
        self.unlabeled_weight = unlabeled_weight
        self.hidden = hidden
        self.standardize = standardize
        self.max_rounds = max_rounds
        self.tol = tol
        self.folds = folds
        self.policy = policy
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, Y: Any, X_unlabeled: Any = None) -> TagSpreadClassifier:  # noqa: N803
        """Learn from labeled and unlabeled rows.

        Args:
            X: rows x features, dense or sparse.
            Y: rows x classes of 1 (present), 0 (absent) and -1 (unknown); a row of -1 is unlabeled.
            X_unlabeled: more unlabeled rows.
        """
        self._check_options()
        features = validate_data(self, X, accept_sparse="csr", dtype=NUMBERS)
        labels = read_labels(Y, features.shape[0])
        pieces = [(features, labels.unlabeled), *_more_rows(X_unlabeled, features, getattr(X, "columns", None))]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        head, device = make_head(self.head, self.hidden, seed), choose_device(self.device)
        scaling = Scaling.of([matrix for matrix, _ in pieces], standardize=self.standardize)
        known, unlabeled = scaling.rows([(features, labels.known)], device), scaling.rows(pieces, device)
        y = torch.from_numpy(labels.y[labels.known]).to(device)

        methods, space = make_methods(self.method), make_search_space(self.ridge, self.unlabeled_weight)
        choice = search_settings(
            known,
            y,
            unlabeled,
            methods,
            head=head,
            classes=labels.names,
            space=space,
            folds=self.folds,
            seed=seed,
            max_rounds=self.max_rounds,
        )
        start = probe(known, y, choice.settings.ridge, head)
        fitted = spread(
            known,
            y,
            unlabeled,
            choice.settings,
            start,
            head=head,
            classes=labels.names,
            max_rounds=self.max_rounds,
            tolerance=self.tol,
        )

        self._label_type = labels.dtype
        self.classes_, self.class_counts_ = labels.classes, class_counts(labels.y[labels.known])
        self.layers_ = scaling.undo(fitted.layers)
        if len(self.layers_) == 1:
            self.coef_, self.intercept_ = self.layers_[0]
        self.log_, self.n_iter_ = fitted.log, len(fitted.log)
        self.transduction_, self.labeled_iter_ = _transduction(labels, fitted, len(unlabeled))
        self.settings_, self.ridge_ = choice.settings, choice.settings.ridge
        self.unlabeled_weight_ = choice.settings.unlabeled_weight if self.log_ else 0.0
        self.trials_ = [trial.as_dict() for trial in choice.trials]
        self.thresholds_ = self._thresholds(choice)
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the log-odds of each class, rows x classes."""
        check_is_fitted(self)
        values = validate_data(self, X, accept_sparse="csr", dtype=NUMBERS, reset=False)
        for place, (weight, bias) in enumerate(self.layers_):
            values = (np.maximum(values, 0) if place else values) @ weight.T.astype(values.dtype)
            values += bias.astype(values.dtype)
        result: np.ndarray = values
        return result

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the probability of each class, rows x classes; the classes do not exclude each other."""
        probabilities: np.ndarray = expit(self.decision_function(X))
        return probabilities

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return 1 where a class's probability reaches its threshold, else 0."""
        decisions: np.ndarray = decide(self.predict_proba(X), self.thresholds_)
        return decisions.astype(self._label_type, copy=False)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Return the mean average precision over what is known of ``y``; unlabeled rows say nothing.

        Other than most classifiers' accuracy: that every tag of a row be right is too much to ask.
        """
        scores = self.decision_function(X)
        labels = read_labels(y, len(scores), "score by")
        numbered = np.array_equal(self.classes_, np.arange(len(self.classes_)))  # then nothing was named
        if hasattr(y, "columns") and not numbered and list(labels.classes) != list(self.classes_):
            raise TagspreadError("y has other columns than those learnt, or in another order; give y[model.classes_].")
        return mean_average_precision(scores, labels.y)

    def _check_options(self) -> None:
        check_count("max_rounds", self.max_rounds)
        check_count("folds", self.folds, least=2)
        check_share("tol", self.tol)
        Policy.parse(self.policy)

    def _thresholds(self, choice: SearchResult) -> np.ndarray:
        """Return where to cut, chosen on labeled rows out of their fold; a class nobody has seen is never chosen."""
        positives, _ = self.class_counts_
        if missing := [str(name) for name, count in zip(self.classes_, positives, strict=True) if not count]:
            warnings.warn(
                f"no labeled row carries {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}: such a class "
                "cannot be learnt and is never predicted; label at least a few.",
                UserWarning,
                stacklevel=3,
            )
        thresholds = np.full(len(self.classes_), 0.5)
        if choice.out_of_fold is not None and positives.any():
            thresholds = choose_thresholds(expit(choice.out_of_fold.numpy()), choice.labels, self.policy).thresholds
        thresholds[positives == 0] = np.inf
        return thresholds

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.classifier_tags.multi_label, tags.classifier_tags.multi_class = True, False
        return tags


def _more_rows(unlabeled: Any, features: Any, columns: Any) -> list[tuple[Any, np.ndarray]]:
    """Return the rows of ``X_unlabeled``, if there are any, checked against ``X``."""
    if unlabeled is None:
        return []
    checked = check_array(unlabeled, accept_sparse="csr", dtype=NUMBERS, input_name="X_unlabeled")
    if checked.shape[1] != features.shape[1]:
        raise TagspreadError(
            f"X_unlabeled has {checked.shape[1]} features but X has {features.shape[1]}; give the same ones."
        )
    if columns is not None and list(getattr(unlabeled, "columns", columns)) != list(columns):
        raise TagspreadError("X_unlabeled has other columns than X, or in another order; give X_unlabeled[X.columns].")
    if isinstance(checked, np.ndarray) != isinstance(features, np.ndarray):
        raise TagspreadError("one of X and X_unlabeled is sparse and the other is not; give both the same way.")
    return [(checked, np.arange(checked.shape[0]))]


def _transduction(labels: Labels, fitted: Fitted, unlabeled: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the last fit and the round they come from, for the rows of ``X`` and ``X_unlabeled``."""
    own, classes = labels.y.shape
    rows = own + unlabeled - len(labels.unlabeled)
    where = np.concatenate([labels.unlabeled, np.arange(own, rows)])
    targets = np.int8(-1) if fitted.targets is None else fitted.targets.labels.cpu().numpy()
    found = np.full((rows, classes), -1, targets.dtype)
    found[:own] = labels.y
    found[where] = targets
    rounds = np.zeros(rows, np.int64)
    rounds[where] = -1 if fitted.settled is None else fitted.settled.numpy()
    return found, rounds
