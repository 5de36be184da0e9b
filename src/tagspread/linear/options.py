"""Estimator options: validate them and create methods, search space and head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real

from tagspread.errors import TagspreadError, check_choice
from tagspread.linear.heads import Head
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.perceptron import PerceptronHead
from tagspread.linear.rounds import check_method
from tagspread.linear.search import SearchSpace, intervals_of
from tagspread.methods import Method, get_method
from tagspread.methods.cap import CAP


def make_methods(
    method: str | Method, priors: Mapping[str, float] | Sequence[float] | None = None, classes: Sequence[str] = ()
) -> tuple[Method, ...]:
    """Return the methods to try: the variants of a named method, or only the given method object.

    Args:
        method: name or method object.
        priors: frequency of classes in the unlabeled rows, for CAP: by name, or one number per class (NaN: unknown).
        classes: names of the classes.

    >>> [m.keep_pos for m in make_methods("cap")]
    [0.5, 0.5, 0.8]
    >>> make_methods(get_method("cap"), [0.2, float("nan")], ["0", "1"])[0].priors
    {'0': 0.2}
    """
    if not isinstance(method, str | Method):
        raise TagspreadError(f"method is {method!r}; give a name such as 'cap', or what get_method returns.")
    instance = get_method(method) if isinstance(method, str) else method
    check_method(instance)
    if priors is not None:
        if not isinstance(instance, CAP):
            raise TagspreadError(
                f"priors are the class frequencies that CAP labels by, but the method is {type(instance).__name__}; "
                "use method 'cap', or omit the priors."
            )
        instance = replace(instance, priors=_by_name(priors, classes))
    if instance.share_apart:
        raise TagspreadError(
            f"{type(instance).__name__} sets {instance.share_apart:g} of the labeled rows apart, which the estimator "
            "does not support; give apart=0."
        )
    return intervals_of(instance) if isinstance(method, str) else (instance,)


def _by_name(priors: Mapping[str, float] | Sequence[float], classes: Sequence[str]) -> dict[str, float]:
    if isinstance(priors, Mapping):
        return {str(name): value for name, value in priors.items()}
    if len(priors) != len(classes):
        raise TagspreadError(
            f"priors has {len(priors)} numbers but there are {len(classes)} classes; give one for each."
        )
    return {name: float(value) for name, value in zip(classes, priors, strict=True) if not math.isnan(value)}


def make_search_space(ridge: float | str, unlabeled_weight: float | str, methods: Sequence[Method] = ()) -> SearchSpace:
    """Return the settings to try: all of them where an option is ``"auto"``, otherwise the given value.

    Pseudo-labels are weighted by their confidence if variants of a method are compared; a method object is used as it
    is.
    """
    space = SearchSpace(by_confidence=len(methods) > 1)
    if ridge != "auto":
        space = replace(space, ridges=(_number("ridge", ridge),))
    if unlabeled_weight != "auto":
        space = replace(space, unlabeled_weights=(_number("unlabeled_weight", unlabeled_weight, zero=True),))
    return space


def make_head(name: str, hidden: int, seed: int) -> Head:
    """Create the head of that name."""
    check_choice("head", name, ("linear", "mlp"))
    if name == "linear":
        return LogisticHead()
    check_count("hidden", hidden)
    return PerceptronHead(hidden=hidden, seed=seed)


def check_count(option: str, value: int, least: int = 1) -> None:
    """Raise unless an option is an integer of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise TagspreadError(f"{option} is {value!r}; give a whole number of at least {least}.")


def _number(option: str, value: float | str, *, zero: bool = False) -> float:
    valid = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not valid or float(value) < 0 or (float(value) == 0 and not zero):
        raise TagspreadError(f"{option} is {value!r}; give 'auto' or a number {'from 0 on' if zero else 'above 0'}.")
    return float(value)
