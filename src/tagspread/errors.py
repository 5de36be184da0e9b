"""What tagspread raises when it is given something it cannot work with.

Every message says three things: what was found, where, and what to do about it.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Blank(str):
    """Stands for a value that is the user's to fill in, such as ``DIR``."""

    __slots__ = ()


class Both(NamedTuple):
    """An option that Python and the command line write in ways of their own."""

    python: str
    shell: str


class TagspreadError(ValueError):
    """Bad input. The command line prints its message, without a traceback, and exits with code 2.

    An option that is part of the remedy is written ``@name`` in the message, and its value is given beside it: so each
    reader is told what to write where the mistake was made.

    >>> error = TagspreadError("too many columns; leave some out with @ignore.", ignore=["width", "by whom"])
    >>> print(error)
    too many columns; leave some out with ignore=['width', 'by whom'].
    >>> print(error.on_command_line)
    too many columns; leave some out with --ignore width --ignore 'by whom'.

    Args:
        message: one sentence: what was found, where, what to do about it.
        options: the options named in it, by name; ``...`` where no value is meant.
    """

    def __init__(self, message: str, **options: object) -> None:
        super().__init__(_spelt(message, options, _in_python))
        self.on_command_line = _spelt(message, options, _in_shell)


def _spelt(message: str, options: dict[str, object], spell: Callable[[str, object], str]) -> str:
    for name, value in options.items():
        # a function, as the text to put in may hold backslashes
        message = re.sub(rf"@{name}\b", lambda _, name=name, value=value: spell(name, value), message)  # type: ignore[misc]
    return message


def _in_python(name: str, value: object) -> str:
    if isinstance(value, Both):
        return value.python
    if value is ...:
        return name
    return f"{name}={value}" if isinstance(value, Blank) else f"{name}={value!r}"


def _in_shell(name: str, value: object) -> str:
    option = "--" + name.replace("_", "-")
    if isinstance(value, Both):
        return value.shell
    if value is ... or value is True:
        return option
    if isinstance(value, list | tuple):
        return " ".join(f"{option} {shlex.quote(str(one))}" for one in value)
    return f"{option} {shlex.quote('' if value is None else str(value))}"


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
