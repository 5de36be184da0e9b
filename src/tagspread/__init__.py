"""tagspread: semi-supervised multi-label learning with class-distribution-aware pseudo-labeling (CAP).

A few labeled images and many unlabeled ones become one good tagger.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import tagspread.train  # noqa: F401 - importing the package later would rebind the name of the function ts.train
from tagspread._version import __version__

# Threads of PyTorch that wait for each other sleep. Threads that spin take the cores that the others need: on a busy
# machine, training steps took ten times the CPU time. Read once, when PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from tagspread.api import train
    from tagspread.core.calibration import Calibration, fit_calibration
    from tagspread.core.decision import Decision, choose_thresholds
    from tagspread.core.expected import ExpectedRates, expected_rates
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
    from tagspread.estimator import TagSpreadClassifier
    from tagspread.methods import METHODS, Method, Targets, get_method
    from tagspread.predict.predictions import Predictions
    from tagspread.predict.tagger import Tagger, load
    from tagspread.train.config import PRESETS, TrainConfig, make_config
    from tagspread.train.trainer import Run

__all__ = [
    "METHODS",
    "PRESETS",
    "Calibration",
    "Decision",
    "ExcessRiskBound",
    "ExpectedRates",
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
    "expected_rates",
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

_MODULES = {
    "api": ("train",),
    "core.calibration": ("Calibration", "fit_calibration"),
    "core.decision": ("Decision", "choose_thresholds"),
    "core.expected": ("ExpectedRates", "expected_rates"),
    "core.losses": ("asl_loss", "bce_loss"),
    "core.metrics": (
        "average_precision", "mean_average_precision", "mean_average_precision_interval", "multilabel_report",
    ),
    "core.theory": (
        "ExcessRiskBound", "labels_needed", "proportion_interval", "pseudo_label_error", "theorem1_bound",
        "theorem2_bound",
    ),
    "core.thresholds": ("cat_targets", "cat_thresholds", "class_counts", "quotas"),
    "errors": ("TagspreadError",),
    "estimator": ("TagSpreadClassifier",),
    "methods": ("METHODS", "Method", "Targets", "get_method"),
    "predict.predictions": ("Predictions",),
    "predict.tagger": ("Tagger", "load"),
    "train.config": ("PRESETS", "TrainConfig", "make_config"),
    "train.trainer": ("Run",),
}  # fmt: skip
_MODULE_OF = {name: f"tagspread.{module}" for module, names in _MODULES.items() for name in names}

globals().pop("train")  # the package that was imported above: __getattr__ finds the function


def __getattr__(name: str) -> Any:
    """Import a public name on first access: PyTorch and scikit-learn take seconds to import."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tagspread' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names only, so that completion does not offer submodules and private imports."""
    return sorted(__all__)
