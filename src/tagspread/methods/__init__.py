"""One small file per method, its equation on top. Adding one touches its own file and one line of ``METHODS``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tagspread.errors import TagspreadError, did_you_mean
from tagspread.methods.base import Labelled, Method, State, Targets
from tagspread.methods.cap import CAP
from tagspread.methods.iat import IAT
from tagspread.methods.supervised import ASL, BCE
from tagspread.methods.top import Top1, TopK

__all__ = ["METHODS", "Labelled", "Method", "State", "Targets", "get_method"]

METHODS: dict[str, type[Method]] = {
    "bce": BCE,
    "asl": ASL,
    "top1": Top1,
    "topk": TopK,
    "iat": IAT,
    "cap": CAP,
}


def get_method(name: str, **options: Any) -> Method:
    """Return the method of that name with the options given.

    >>> get_method("cap", keep_pos=0.8)
    CAP(keep_pos=0.8, keep_neg=1.0, priors=None)
    >>> get_method("capp")
    Traceback (most recent call last):
    tagspread.errors.TagspreadError: there is no method 'capp'. Did you mean 'cap'? Known: bce, asl, ...
    """
    if name not in METHODS:
        raise TagspreadError(f"there is no method {name!r}.{did_you_mean(name, METHODS)} Known: {', '.join(METHODS)}.")
    known = [field.name for field in fields(METHODS[name])]
    for option in options:
        if option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise TagspreadError(f"method {name!r} has no option {option!r}; {has}.{did_you_mean(option, known)}")
    return METHODS[name](**options)
