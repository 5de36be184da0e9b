r"""The labeled part alone: what every other method has to beat.

.. math:: L = \sum_{i \in \text{labeled}} \sum_k \ell(z_{ik}, y_{ik})

with :math:`\ell` binary cross-entropy (``bce``) or the asymmetric loss (``asl``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tagspread.methods.base import Method


@dataclass(frozen=True)
class BCE(Method):
    """Binary cross-entropy on the labeled part."""

    summary: ClassVar[str] = "labeled part only, binary cross-entropy"
    uses_unlabeled: ClassVar[bool] = False
    labeled_loss: ClassVar[str | None] = "bce"
    shares_warmup: ClassVar[bool] = False


@dataclass(frozen=True)
class ASL(Method):
    """Asymmetric loss on the labeled part."""

    summary: ClassVar[str] = "labeled part only, asymmetric loss"
    uses_unlabeled: ClassVar[bool] = False
    labeled_loss: ClassVar[str | None] = "asl"
