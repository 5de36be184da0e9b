"""One small file per method, its equation on top. Adding one touches its own file and one line of ``METHODS``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tagspread.errors import TagspreadError, did_you_mean
from tagspread.methods.adsh import ADSH
from tagspread.methods.base import Labeled, Method, State, Targets
from tagspread.methods.cap import CAP
from tagspread.methods.d2l import D2L
from tagspread.methods.dicap import DiCaP
from tagspread.methods.drml import DRML
from tagspread.methods.freematch import FreeMatch
from tagspread.methods.from_file import method_of_file
from tagspread.methods.iat import IAT
from tagspread.methods.large_loss import LLR, LLCp, LLCt
from tagspread.methods.mat import MAT
from tagspread.methods.plc import PLC
from tagspread.methods.supervised import ASL, BCE
from tagspread.methods.top import Top1, TopK

__all__ = ["METHODS", "Labeled", "Method", "State", "Targets", "find_method", "get_method"]

METHODS: dict[str, type[Method]] = {
    "bce": BCE,
    "asl": ASL,
    "llr": LLR,
    "llct": LLCt,
    "llcp": LLCp,
    "plc": PLC,
    "top1": Top1,
    "topk": TopK,
    "iat": IAT,
    "adsh": ADSH,
    "freematch": FreeMatch,
    "drml": DRML,
    "cap": CAP,
    "mat": MAT,
    "d2l": D2L,
    "dicap": DiCaP,
}


def find_method(name: str) -> type[Method]:
    """Return the class of a method: a name of ``METHODS``, or ``FILE.py:CLASS`` for one of your own.

    >>> find_method("freemach")
    Traceback (most recent call last):
    tagspread.errors.TagspreadError: there is no method 'freemach'. Did you mean 'freematch'? Known: bce, asl, ...
    """
    if name in METHODS:
        return METHODS[name]
    if ".py" in name:
        return method_of_file(name)
    raise TagspreadError(
        f"there is no method {name!r}.{did_you_mean(name, METHODS)} Known: {', '.join(METHODS)}; or FILE.py:CLASS for "
        "one of your own."
    )


def get_method(name: str, **options: Any) -> Method:
    """Return the method of that name with the options given.

    >>> get_method("cap", keep_pos=0.8)
    CAP(keep_pos=0.8, keep_neg=1.0, priors=None)
    """
    kind = find_method(name)
    known = [field.name for field in fields(kind)]
    for option in options:
        if option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise TagspreadError(f"method {name!r} has no option {option!r}; {has}.{did_you_mean(option, known)}")
    return kind(**options)
