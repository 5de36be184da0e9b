"""Semi-supervised multi-label methods: one small file per method, with its equation on top.

To add a method, write its file and add one line to ``METHODS``.
"""

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
from tagspread.methods.from_file import load_method
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
    """Return the class of a method by its name in ``METHODS``, or by ``FILE.py:CLASS`` for a method of your own.

    >>> find_method("freemach")
    Traceback (most recent call last):
    tagspread.errors.TagspreadError: there is no method 'freemach'. Did you mean 'freematch'? Known: bce, asl, ...
    """
    if name in METHODS:
        return METHODS[name]
    if ".py" in name:
        return load_method(name)
    raise TagspreadError(
        f"there is no method {name!r}.{did_you_mean(name, METHODS)} Known: {', '.join(METHODS)}; or FILE.py:CLASS for "
        "one of your own."
    )


def get_method(name: str, **options: Any) -> Method:
    """Create a method by name, with the given options.

    >>> get_method("cap", keep_pos=0.8)
    CAP(keep_pos=0.8, keep_neg=1.0, priors=None)
    """
    method_class = find_method(name)
    names = [field.name for field in fields(method_class)]
    for option in options:
        if option not in names:
            listed = f"its options are {', '.join(names)}" if names else "it has none"
            raise TagspreadError(f"method {name!r} has no option {option!r}; {listed}.{did_you_mean(option, names)}")
    return method_class(**options)
