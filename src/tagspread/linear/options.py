"""Estimator options: validate them and create methods, search space and head."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral, Real

from tagspread.errors import TagspreadError, check_choice
from tagspread.linear.heads import Head
from tagspread.linear.logistic import LogisticHead
from tagspread.linear.perceptron import PerceptronHead
from tagspread.linear.rounds import check_method
from tagspread.linear.search import SearchSpace, intervals_of
from tagspread.methods import Method, get_method


def make_methods(method: str | Method) -> tuple[Method, ...]:
    """Return the methods to try: the variants of a named method, or only the given method object.

    >>> [m.keep_pos for m in make_methods("cap")]
    [0.5, 0.8, 1.0]
    """
    if not isinstance(method, str | Method):
        raise TagspreadError(f"method is {method!r}; give a name such as 'cap', or what get_method returns.")
    instance = get_method(method) if isinstance(method, str) else method
    check_method(instance)
    if instance.share_apart:
        raise TagspreadError(
            f"{type(instance).__name__} sets {instance.share_apart:g} of the labeled rows apart, which the estimator "
            "does not support; give apart=0."
        )
    return intervals_of(instance) if isinstance(method, str) else (instance,)


def make_search_space(ridge: float | str, unlabeled_weight: float | str) -> SearchSpace:
    """Return the settings to try: all of them where an option is ``"auto"``, otherwise the given value."""
    space = SearchSpace()
    if ridge != "auto":
        penalty = _number("ridge", ridge)
        space = replace(space, ridges=(penalty,), unlabeled_ridges=(penalty / 5, penalty))
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
