"""Exceptions and error messages: ``TagspreadError`` for bad input, "did you mean" suggestions, choice checks.

Every message states the value that was given, where it was found, and the remedy.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Blank(str):
    """Placeholder for a value that the user fills in, such as ``DIR``."""

    __slots__ = ()


class Both(NamedTuple):
    """An option that is written differently in Python and on the command line."""

    python: str
    shell: str


class TagspreadError(ValueError):
    """Raised for bad input. The command line prints the message without a traceback and exits with code 2.

    Where the remedy is an option, the message contains ``@name``, and the option's value is given as a keyword. Python
    users then read the option in Python syntax, command-line users in shell syntax.

    >>> error = TagspreadError("too many columns; leave some out with @ignore.", ignore=["width", "taken by"])
    >>> print(error)
    too many columns; leave some out with ignore=['width', 'taken by'].
    >>> print(error.on_command_line)
    too many columns; leave some out with --ignore width --ignore 'taken by'.

    Args:
        message: one sentence: the value given, where it was found, and the remedy.
        options: the options named in the message, by name; ``...`` for an option without a value.
    """

    def __init__(self, message: str, **options: object) -> None:
        super().__init__(_render(message, options, _in_python))
        self.on_command_line = _render(message, options, _in_shell)

    def extended(self, words: str) -> TagspreadError:
        """Return the error with more words at its end, for both kinds of users."""
        error = TagspreadError(f"{self}{words}")
        error.on_command_line = self.on_command_line + words
        return error


def _render(message: str, options: dict[str, object], render: Callable[[str, object], str]) -> str:
    for name, value in options.items():
        # use a function as replacement, because a replacement text may contain backslashes
        message = re.sub(rf"@{name}\b", lambda _, name=name, value=value: render(name, value), message)  # type: ignore[misc]
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
        return " ".join(f"{option} {shlex.quote(str(item))}" for item in value)
    return f"{option} {shlex.quote('' if value is None else str(value))}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest known name, or an empty string.

    >>> did_you_mean("exakt", ["exact", "hoeffding"])
    " Did you mean 'exact'?"
    >>> did_you_mean("zebra", ["exact", "hoeffding"])
    ''
    """
    names = list(known)
    lowered = {name.lower(): name for name in reversed(names)}  # of names that differ by case only, the first
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    close = close or [lowered[key] for key in difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)]
    return f" Did you mean {close[0]!r}?" if close else ""


def check_choice(argument: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``choices``; the message lists them and suggests the closest one.

    >>> check_choice("absent", "skip", ["skip", "zero"])
    """
    options = list(choices)
    if value not in options:
        listed = ", ".join(map(repr, options))
        raise TagspreadError(f"{argument} is {value!r}; it must be one of {listed}.{did_you_mean(str(value), options)}")
