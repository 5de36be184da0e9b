"""Scikit-learn estimator: semi-supervised multi-label classification on a feature matrix (embeddings, text, tables)."""

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
from tagspread.core.expected import ExpectedRates, expected_rates
from tagspread.core.metrics import mean_average_precision
from tagspread.core.thresholds import class_counts
from tagspread.errors import TagspreadError
from tagspread.linear.heads import Rows
from tagspread.linear.labels import Labels, read_labels
from tagspread.linear.options import check_count, make_head, make_methods, make_search_space
from tagspread.linear.prepare import Scaling, check_magnitude, check_memory_map
from tagspread.linear.rounds import Fitted, probe, spread
from tagspread.linear.row_space import RowSpace
from tagspread.linear.search import SearchResult, search_settings
from tagspread.linear.stored import check_stored, spread_stored
from tagspread.methods import Method, get_method
from tagspread.methods.base import check_share
from tagspread.progress import Watcher
from tagspread.train.preflight import choose_device
from tagspread.wording import counted, duration

NUMBERS = (np.float64, np.float32)


class TagSpreadClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Semi-supervised multi-label classifier: few labeled rows, many unlabeled rows, several labels per row.

    The classifier fits the labeled rows, scores the unlabeled rows, and lets the method label them (CAP by default). It
    then fits both, and repeats until the pseudo-labels stop changing. It chooses the penalty, the reliable interval of
    CAP and the weight of the unlabeled set by cross-validation on the labeled rows, and weights each pseudo-label by
    its confidence. If the unlabeled set does not help, it is not used (``unlabeled_weight_`` is 0).

    Args:
        method: name of a method that needs scores only (``"cap"``, or ``"bce"`` for the labeled rows only); its
            options are then chosen. A method object from :func:`tagspread.get_method` is used as it is.
        head: ``"linear"`` for logistic regression, or ``"mlp"`` for one small hidden layer.
        ridge: L2 penalty on the weights, for features of unit variance; ``"auto"`` chooses it.
        unlabeled_weight: weight of an unlabeled row relative to a labeled one; 0 omits the unlabeled set, ``"auto"``
            chooses it.
        hidden: number of units of the hidden layer.
        standardize: scale every feature to mean 0 and variance 1, measured on all rows. Sparse features are scaled but
            not centered; if all sparse rows have the same length, as TF-IDF vectors do, features are not scaled
            separately.
        max_rounds: maximal number of rounds with the unlabeled set.
        tol: stop when at most this share of the pseudo-labels changes.
        folds: number of cross-validation folds.
        policy: criterion for the decision thresholds: ``f1``, ``fbeta:2``, ``precision:0.9`` or ``match``.
        priors: frequency of the classes in the unlabeled rows, for CAP, where you know it better than the labeled rows
            do: a dict by class, or one number per class (NaN: unknown).
        device: device to fit on, such as ``"cpu"`` or ``"cuda"``.
        random_state: seed of the folds and of the hidden layer.
        verbose: show progress bars on a terminal, and print how long each step took.

    Attributes:
        classes_: columns of ``Y``: their names if it is a data frame, otherwise 0, 1, ...
        thresholds_: decision thresholds on the probabilities for :meth:`predict`, chosen on out-of-fold predictions.
        expected_rates_: precision and recall to expect on new rows with these thresholds, with 90 % intervals, see
            :class:`~tagspread.core.expected.ExpectedRates`; None if there were too few labeled rows.
        class_counts_: ``(positives, known)`` per class, of the labeled rows.
        transduction_: labels of the last fit, for the rows of ``X`` and then of ``X_unlabeled``; -1 was ignored. Empty
            if unlabeled rows are memory-mapped.
        labeled_iter_: per row, 0 if it was labeled in ``Y``, otherwise the round that last changed its pseudo-labels;
            -1 if it got none. Empty if unlabeled rows are memory-mapped.
        settings_: the chosen method, penalties and weight of the unlabeled set; also ``ridge_`` and
            ``unlabeled_weight_``.
        trials_: all settings that were tried, with their mean average precision on held-out rows.
        layers_: weights and biases for unscaled features; a linear head also has ``coef_`` and ``intercept_``.
        log_: one entry per round with the unlabeled set; their number is ``n_iter_``.

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
        priors: Any = None,
        device: str = "cpu",
        random_state: Any = 0,
        verbose: bool = False,
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
        self.priors = priors
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, Y: Any, X_unlabeled: Any = None) -> TagSpreadClassifier:  # noqa: N803
        """Fit the classifier on labeled and unlabeled rows.

        Args:
            X: rows x features, dense or sparse. A memory map (``np.load(file, mmap_mode="r")``) of ``X`` or
                ``X_unlabeled`` is never loaded: its unlabeled rows are read block by block in every pass, so that they
                may be larger than memory. This takes longer, and needs method ``"cap"`` or ``"bce"`` and head
                ``"linear"``.
            Y: rows x classes of 1 (present), 0 (absent) and -1 (unknown); a row of only -1 is unlabeled. In a data
                frame of nullable columns (``Int8``, ``boolean``), missing values are unknown.
            X_unlabeled: more unlabeled rows.

        Returns:
            The fitted classifier.
        """
        self._check_options()
        features = self._check_features(X)
        labels = read_labels(Y, features.shape[0])
        pieces = [(features, labels.unlabeled), *_more_rows(X_unlabeled, features, getattr(X, "columns", None))]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        head, device = make_head(self.head, self.hidden, seed), choose_device(self.device)
        scaling = Scaling.of([matrix for matrix, _ in pieces], standardize=self.standardize)
        labeled_rows: Rows = scaling.rows([(features, labels.labeled)], device)
        is_stored = any(isinstance(matrix, np.memmap) for matrix, _ in pieces)
        if is_stored:
            check_stored(self.method if isinstance(self.method, Method) else get_method(self.method), self.head)
        unlabeled_rows: Rows = (scaling.stored_rows if is_stored else scaling.rows)(pieces, device)
        span = RowSpace.of(labeled_rows, unlabeled_rows) if head.convex else None
        if span is not None:
            labeled_rows, unlabeled_rows = span.reduce(labeled_rows), span.reduce(unlabeled_rows)
        y = torch.from_numpy(labels.y[labels.labeled]).to(device)

        methods = make_methods(self.method, self.priors, labels.names)
        space = make_search_space(self.ridge, self.unlabeled_weight, methods)
        watcher = Watcher(quiet=not self.verbose)
        choice = search_settings(
            labeled_rows,
            y,
            unlabeled_rows,
            methods,
            head=head,
            classes=labels.names,
            space=space,
            folds=self.folds,
            seed=seed,
            max_rounds=self.max_rounds,
            progress=watcher.begin("choosing settings"),
        )
        progress = watcher.begin("fitting")
        start = probe(labeled_rows, y, choice.settings.ridge, head)
        fitted = (spread_stored if is_stored else spread)(
            labeled_rows,
            y,
            unlabeled_rows,
            choice.settings,
            start,
            head=head,
            classes=labels.names,
            max_rounds=self.max_rounds,
            tolerance=self.tol,
            watch=lambda number, *_: progress(number, self.max_rounds),
        )
        watcher.close()

        self._label_type = labels.dtype
        self.classes_, self.class_counts_ = labels.classes, class_counts(labels.y[labels.labeled])
        self.layers_ = scaling.undo(fitted.layers if span is None else span.expand(fitted.layers))
        if len(self.layers_) == 1:
            self.coef_, self.intercept_ = self.layers_[0]
        self.log_, self.n_iter_ = fitted.log, len(fitted.log)
        self.transduction_, self.labeled_iter_ = np.empty((0, y.shape[1]), np.int8), np.empty(0, np.int64)
        if not is_stored:
            self.transduction_, self.labeled_iter_ = _transduction(labels, fitted, len(unlabeled_rows))
        self.settings_, self.ridge_ = choice.settings, choice.settings.ridge
        self.unlabeled_weight_ = choice.settings.unlabeled_weight if self.log_ else 0.0
        self.trials_ = [trial.as_dict() for trial in choice.trials]
        self.thresholds_, self.expected_rates_ = self._thresholds(choice)
        steps = (f"{step} {duration(seconds)}" for step, seconds in list(watcher.stopwatch.seconds().items())[1:])
        rounds = f"{counted(self.n_iter_, 'round')} with the unlabeled rows"
        watcher.note(f"{', '.join(steps)}; {counted(len(self.trials_), 'setting')} tried, {rounds}")
        return self

    def _check_features(self, X: Any) -> Any:  # noqa: N803
        """Check the features to fit on; a memory map is not copied."""
        if not isinstance(X, np.memmap):
            return check_magnitude("X", validate_data(self, X, accept_sparse="csr", dtype=NUMBERS))
        self.n_features_in_ = check_memory_map("X", X).shape[1]
        return X

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the log-odds of each class, rows x classes."""
        check_is_fitted(self)
        values = check_magnitude("X", validate_data(self, X, accept_sparse="csr", dtype=NUMBERS, reset=False))
        for layer, (weight, bias) in enumerate(self.layers_):
            values = (np.maximum(values, 0) if layer else values) @ weight.T.astype(values.dtype)
            values += bias.astype(values.dtype)
        result: np.ndarray = values
        return result

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the probability of each class, rows x classes. Classes are not mutually exclusive."""
        probabilities: np.ndarray = expit(self.decision_function(X))
        return probabilities

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return 1 where the probability of a class reaches its threshold, otherwise 0."""
        decisions: np.ndarray = decide(self.predict_proba(X), self.thresholds_)
        return decisions.astype(self._label_type, copy=False)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Return the mean average precision over the known labels of ``y``; unlabeled rows are ignored.

        Most classifiers return the accuracy. For several labels per row, accuracy would require all of them to be
        correct.
        """
        scores = self.decision_function(X)
        labels = read_labels(y, len(scores), "score by")
        unnamed = np.array_equal(self.classes_, np.arange(len(self.classes_)))  # fit got no column names
        if hasattr(y, "columns") and not unnamed and list(labels.classes) != list(self.classes_):
            raise TagspreadError("y has other columns than Y in fit, or in another order; give y[model.classes_].")
        return mean_average_precision(scores, labels.y)

    def _check_options(self) -> None:
        check_count("max_rounds", self.max_rounds)
        check_count("folds", self.folds, least=2)
        check_share("tol", self.tol)
        Policy.parse(self.policy)

    def _thresholds(self, choice: SearchResult) -> tuple[np.ndarray, ExpectedRates | None]:
        """Choose decision thresholds on out-of-fold predictions; a class without labeled positives gets ``inf``."""
        positives, _ = self.class_counts_
        if missing := [str(name) for name, count in zip(self.classes_, positives, strict=True) if not count]:
            warnings.warn(
                f"no labeled row carries {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}: such a class "
                "cannot be learned and is never predicted; label at least a few rows of it.",
                UserWarning,
                stacklevel=3,
            )
        thresholds, rates = np.full(len(self.classes_), 0.5), None
        if choice.out_of_fold is not None and choice.labels is not None and positives.any():
            probabilities = expit(choice.out_of_fold.numpy())
            thresholds = choose_thresholds(probabilities, choice.labels, self.policy).thresholds
            rates = expected_rates(probabilities, choice.labels, self.policy)
        thresholds[positives == 0] = np.inf
        return thresholds, rates

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.classifier_tags.multi_label, tags.classifier_tags.multi_class = True, False
        return tags


def _more_rows(unlabeled: Any, features: Any, columns: Any) -> list[tuple[Any, np.ndarray]]:
    """Return the rows of ``X_unlabeled``, checked against ``X``; an empty list if there are none."""
    if unlabeled is None:
        return []
    if isinstance(unlabeled, np.memmap):
        checked = check_memory_map("X_unlabeled", unlabeled, features.shape[1])
        return [(checked, np.arange(len(checked), dtype=np.int64))]
    checked = check_array(unlabeled, accept_sparse="csr", dtype=NUMBERS, input_name="X_unlabeled")
    check_magnitude("X_unlabeled", checked)
    if checked.shape[1] != features.shape[1]:
        raise TagspreadError(
            f"X_unlabeled has {checked.shape[1]} features but X has {features.shape[1]}; give the same features."
        )
    if columns is not None and list(getattr(unlabeled, "columns", columns)) != list(columns):
        raise TagspreadError("X_unlabeled has other columns than X, or in another order; give X_unlabeled[X.columns].")
    if isinstance(checked, np.ndarray) != isinstance(features, np.ndarray):
        raise TagspreadError("one of X and X_unlabeled is sparse and the other is dense; give both in the same form.")
    return [(checked, np.arange(checked.shape[0]))]


def _transduction(labels: Labels, fitted: Fitted, unlabeled: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the last fit and the round they come from, for the rows of ``X`` and ``X_unlabeled``."""
    n_given, classes = labels.y.shape
    rows = n_given + unlabeled - len(labels.unlabeled)
    unlabeled_index = np.concatenate([labels.unlabeled, np.arange(n_given, rows)])
    targets = np.int8(-1) if fitted.targets is None else fitted.targets.labels.cpu().numpy()
    transduction = np.full((rows, classes), -1, targets.dtype)
    transduction[:n_given] = labels.y
    transduction[unlabeled_index] = targets
    rounds = np.zeros(rows, np.int64)
    rounds[unlabeled_index] = -1 if fitted.settled is None else fitted.settled.numpy()
    return transduction, rounds
