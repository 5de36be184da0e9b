"""Slow, literal reference implementations that the fast code is compared with."""

from fractions import Fraction
from math import floor

import numpy as np


def quota(keep, count, total, rows):
    """Return floor(keep * count * rows / total), computed on exact decimals."""
    return floor(Fraction(str(keep)) * Fraction(int(count), int(total)) * rows) if total else 0


def cat_targets(scores, positives, labeled, keep_pos=1.0, keep_neg=1.0):
    """Sort each class with Python's sort: highest score first, lower row first among equals."""
    rows, classes = scores.shape
    labeled = [labeled] * classes if np.ndim(labeled) == 0 else labeled
    targets = np.full((rows, classes), -1, dtype=np.int8)
    for k in range(classes):
        order = sorted(range(rows), key=lambda j: (-float(scores[j, k]), j))
        n_pos = quota(keep_pos, positives[k], labeled[k], rows)
        n_neg = quota(keep_neg, labeled[k] - positives[k], labeled[k], rows)
        for j in order[:n_pos]:
            targets[j, k] = 1
        for j in order[rows - n_neg :]:
            assert targets[j, k] == -1, "positives and negatives overlap"
            targets[j, k] = 0
    return targets


def asl(f, y, gamma_pos, gamma_neg, margin):
    """The ASL formula, applied to a probability, in double precision."""
    shifted = max(f - margin, 0.0)
    return -((1 - f) ** gamma_pos) * np.log(f) if y == 1 else -(shifted**gamma_neg) * np.log(1 - shifted)
