"""What tagspread raises when it is given something it cannot work with.

Every message says three things: what was found, where, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TagspreadError(ValueError):
    """Bad input. The command line prints its message, without a traceback, and exits with code 2."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest known name, or an empty string.

    >>> did_you_mean("exakt", ["exact", "hoeffding"])
    " Did you mean 'exact'?"
    >>> did_you_mean("zebra", ["exact", "hoeffding"])
    ''
    """
    names = list(known)
    lowered = {one.lower(): one for one in reversed(names)}  # the first of those that differ by case only
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    close = close or [lowered[one] for one in difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)]
    return f" Did you mean {close[0]!r}?" if close else ""


def check_choice(argument: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``choices``; the message lists them and names the closest.

    >>> check_choice("absent", "skip", ["skip", "zero"])
    """
    known = list(choices)
    if value not in known:
        listed = ", ".join(map(repr, known))
        raise TagspreadError(f"{argument} is {value!r}; it must be one of {listed}.{did_you_mean(str(value), known)}")
