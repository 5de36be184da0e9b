r"""Multi-label losses: binary cross-entropy (BCE) and asymmetric loss (ASL), masked for unknown and ignored entries.

With :math:`f = \sigma(z)` the predicted probability of a class,

.. math::
    \text{BCE:}\quad & \ell_1 = -\log f, & \ell_0 &= -\log(1 - f) \\
    \text{ASL:}\quad & \ell_1 = -(1 - f)^{\gamma_+} \log f, & \ell_0 &= -f_m^{\gamma_-} \log(1 - f_m),
    \qquad f_m = \max(f - \mu, 0)

The asymmetric loss (ASL) down-weights the many easy negatives; negatives with a probability below the margin
:math:`\mu` have no loss at all. The focal factors are treated as constants: no gradient flows through them. An entry
whose target is -1 has loss 0 and gradient 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tagspread.errors import TagspreadError, check_choice

WHAT_TARGETS_ARE = "give 1 (present), 0 (absent), -1 (ignored) or a soft target between 0 and 1."
REDUCTIONS = ("sum", "mean", "none")


def bce_loss(logits: Tensor, targets: Tensor, weight: Tensor | None = None, reduction: str = "sum") -> Tensor:
    """Compute the binary cross-entropy over the entries that are not ignored.

    Args:
        logits: scores before the sigmoid, any float type; computed in float32 (float64 stays float64).
        targets: 1 present, 0 absent, -1 ignored; a soft target between 0 and 1 mixes both losses.
        weight: weight of each entry, of the logits' shape or broadcastable to it; 0 ignores the entry.
        reduction: ``"sum"``, ``"mean"`` (the weighted mean over the entries not ignored) or ``"none"``.

    >>> bce_loss(torch.tensor([[0.0, 9.0]]), torch.tensor([[1, -1]])).item()
    0.6931...
    """
    z, y, w = _prepare(logits, targets, weight, reduction)
    return _reduce(functional.binary_cross_entropy_with_logits(z, y, reduction="none"), w, reduction)


def asl_loss(
    logits: Tensor,
    targets: Tensor,
    gamma_pos: float = 0.0,
    gamma_neg: float = 4.0,
    margin: float = 0.05,
    weight: Tensor | None = None,
    reduction: str = "sum",
) -> Tensor:
    """Compute the asymmetric loss (Ridnik et al., 2021) over the entries that are not ignored.

    The defaults are those of CAP's released code. ``margin=0`` gives the formula of its paper, which states no values
    for the exponents.

    Args:
        logits: scores before the sigmoid, any float type; computed in float32 (float64 stays float64).
        targets: 1 present, 0 absent, -1 ignored; a soft target between 0 and 1 mixes both losses.
        gamma_pos: focusing exponent for positives; larger values down-weight easy positives more.
        gamma_neg: focusing exponent for negatives; larger values down-weight easy negatives more.
        margin: a negative with a probability up to this value has loss 0.
        weight: weight of each entry, of the logits' shape or broadcastable to it; 0 ignores the entry.
        reduction: ``"sum"``, ``"mean"`` (the weighted mean over the entries not ignored) or ``"none"``.

    >>> asl_loss(torch.zeros(1, 1), torch.tensor([[0]])).item()  # 0.45**4 * -log(0.55)
    0.02451...
    """
    if not (gamma_pos >= 0 and gamma_neg >= 0):
        raise TagspreadError(f"gamma_pos is {gamma_pos} and gamma_neg is {gamma_neg}; give exponents of at least 0.")
    if not 0 <= margin < 1:
        raise TagspreadError(f"margin is {margin}; it is a probability, so give a number from 0 up to below 1.")
    z, y, w = _prepare(logits, targets, weight, reduction)
    # log-sigmoid stays finite where log(sigmoid) does not; with a margin, the argument of the logarithm is above 0
    positive = functional.logsigmoid(z)
    negative = ((z.neg().sigmoid() + margin).clamp(max=1.0)).log() if margin > 0 else functional.logsigmoid(-z)
    with torch.no_grad():
        f = z.sigmoid()
        focal_pos = (1 - f) ** gamma_pos
        focal_neg = (f - margin).clamp(min=0.0) ** gamma_neg
    return _reduce(-(y * focal_pos * positive + (1 - y) * focal_neg * negative), w, reduction)


def invalid_targets(values: Tensor) -> Tensor:
    """Return where values are not valid targets: neither -1 nor between 0 and 1."""
    return ~((values == -1) | ((values >= 0) & (values <= 1)))


def _prepare(logits: Tensor, targets: Tensor, weight: Tensor | None, reduction: str) -> tuple[Tensor, Tensor, Tensor]:
    """Validate and widen; return logits and targets with 0 in place of ignored entries, and the weights."""
    check_choice("reduction", reduction, REDUCTIONS)
    for argument, value in (("logits", logits), ("targets", targets), ("weight", weight)):
        if not isinstance(value, Tensor) and (argument != "weight" or value is not None):
            raise TagspreadError(f"{argument} is a {type(value).__name__}; give a torch tensor.")
    if logits.shape != targets.shape:
        raise TagspreadError(
            f"logits have shape {tuple(logits.shape)} but targets {tuple(targets.shape)}; give one target per logit."
        )
    if targets.device.type == "cpu":  # on an accelerator this check would wait for the device at every step
        invalid = invalid_targets(targets)
        if bool(invalid.any()):
            index = tuple(invalid.nonzero()[0].tolist())
            raise TagspreadError(f"targets hold {targets[invalid][0].item()} at {index}; {WHAT_TARGETS_ARE}")
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    w = (targets >= 0).to(dtype)
    if weight is not None:
        try:
            w = w * weight.to(dtype).broadcast_to(logits.shape)
        except RuntimeError:
            raise TagspreadError(
                f"weight has shape {tuple(weight.shape)}, which does not fit logits of shape {tuple(logits.shape)}; "
                "give one weight per entry, row (n x 1) or class."
            ) from None
    counts = w != 0
    # replace ignored entries before the arithmetic: multiplying an infinite loss by 0 afterwards would give NaN
    z = torch.where(counts, logits.to(dtype), 0.0)
    return z, torch.where(counts, targets.to(dtype), 0.0), w


def _reduce(entries: Tensor, w: Tensor, reduction: str) -> Tensor:
    entries = entries * w
    if reduction == "none":
        return entries
    if reduction == "sum":
        return entries.sum()
    total = w.sum()
    return entries.sum() / torch.where(total > 0, total, 1.0)
