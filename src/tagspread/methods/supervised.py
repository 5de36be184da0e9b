r"""Supervised baselines: train on the labeled set only, with binary cross-entropy (BCE) or the asymmetric loss (ASL).

.. math:: L = \sum_{i \in \text{labeled}} \sum_k \ell(z_{ik}, y_{ik})

with :math:`\ell` binary cross-entropy (``bce``) or the asymmetric loss (``asl``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tagspread.methods.base import Method


@dataclass(frozen=True)
class BCE(Method):
    """Labeled-only baseline with binary cross-entropy."""

    summary: ClassVar[str] = "labeled set only, binary cross-entropy"
    uses_unlabeled: ClassVar[bool] = False
    labeled_loss: ClassVar[str | None] = "bce"
    shares_warmup: ClassVar[bool] = False


@dataclass(frozen=True)
class ASL(Method):
    """Labeled-only baseline with the asymmetric loss."""

    summary: ClassVar[str] = "labeled set only, asymmetric loss"
    uses_unlabeled: ClassVar[bool] = False
    labeled_loss: ClassVar[str | None] = "asl"
