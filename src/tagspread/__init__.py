"""tagspread: semi-supervised multi-label learning with class-distribution-aware pseudo-labeling (CAP).

A few labeled images and many unlabeled ones become one good tagger.
"""

from typing import TYPE_CHECKING, Any

from tagspread._version import __version__
from tagspread.api import train
from tagspread.core.calibration import Calibration, fit_calibration
from tagspread.core.decision import Decision, choose_thresholds
from tagspread.core.losses import asl_loss, bce_loss
from tagspread.core.metrics import (
    average_precision,
    mean_average_precision,
    mean_average_precision_interval,
    multilabel_report,
)
from tagspread.core.theory import (
    ExcessRiskBound,
    labels_needed,
    proportion_interval,
    pseudo_label_error,
    theorem1_bound,
    theorem2_bound,
)
from tagspread.core.thresholds import cat_targets, cat_thresholds, class_counts, quotas
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS, Method, Targets, get_method
from tagspread.predict.predictions import Predictions
from tagspread.predict.tagger import Tagger, load
from tagspread.train.config import PRESETS, TrainConfig, make_config
from tagspread.train.trainer import Run

if TYPE_CHECKING:
    from tagspread.estimator import TagSpreadClassifier

__all__ = [
    "METHODS",
    "PRESETS",
    "Calibration",
    "Decision",
    "ExcessRiskBound",
    "Method",
    "Predictions",
    "Run",
    "TagSpreadClassifier",
    "Tagger",
    "TagspreadError",
    "Targets",
    "TrainConfig",
    "__version__",
    "asl_loss",
    "average_precision",
    "bce_loss",
    "cat_targets",
    "cat_thresholds",
    "choose_thresholds",
    "class_counts",
    "fit_calibration",
    "get_method",
    "labels_needed",
    "load",
    "make_config",
    "mean_average_precision",
    "mean_average_precision_interval",
    "multilabel_report",
    "proportion_interval",
    "pseudo_label_error",
    "quotas",
    "theorem1_bound",
    "theorem2_bound",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import the estimator on first access, because importing scikit-learn takes a second."""
    if name == "TagSpreadClassifier":
        from tagspread.estimator import TagSpreadClassifier

        return TagSpreadClassifier
    raise AttributeError(f"module 'tagspread' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names only, so that completion does not offer submodules and private imports."""
    return sorted(__all__)
