"""tagspread: a few tagged pictures, a large pile of untagged ones, one good tagger.

Semi-supervised multi-label learning by class-distribution-aware pseudo-labelling (CAP).
"""

from tagspread._version import __version__
from tagspread.api import train
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
from tagspread.train.config import PRESETS, TrainConfig, make_config
from tagspread.train.session import Run

__all__ = [
    "METHODS",
    "PRESETS",
    "ExcessRiskBound",
    "Method",
    "Run",
    "TagspreadError",
    "Targets",
    "TrainConfig",
    "__version__",
    "asl_loss",
    "average_precision",
    "bce_loss",
    "cat_targets",
    "cat_thresholds",
    "class_counts",
    "get_method",
    "labels_needed",
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
