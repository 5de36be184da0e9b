"""Exceptions and error messages: ``TagspreadError`` for bad input, errors of rows, suggestions, choice checks.

Every message states the value that was given, where it was found, and the remedy.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable
from typing import NamedTuple

MOST_ERRORS = 1000  # that are kept, of a table that is wrong throughout


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


class NoLabelsError(TagspreadError):
    """A table has no labels, at least not in the rows that could be read."""


class RowErrors:
    """Receives the errors of rows: raises the first one, or collects all so that the other rows are still read.

    >>> errors = RowErrors(collect=True)
    >>> for line in (2, 3, 4):
    ...     errors.add(TagspreadError(f"line {line}, column 'width' holds 640."), kind="width")
    >>> [str(error) for error in errors.found]
    ["line 2, column 'width' holds 640. (And 2 more rows like this.)"]
    """

    def __init__(self, collect: bool = False) -> None:
        self.collect = collect
        self._first: dict[str, TagspreadError] = {}
        self._counts: dict[str, int] = {}
        self._omitted = 0

    def add(self, error: TagspreadError, kind: str | None = None) -> None:
        """Raise an error, or collect it.

        Args:
            error: the error of a row.
            kind: errors of the same kind are counted, and only the first one is kept; None if each is to be shown.
        """
        if not self.collect:
            raise error
        key = str(error) if kind is None else kind
        if key not in self._first and len(self._first) >= MOST_ERRORS:
            self._omitted += 1
            return
        self._first.setdefault(key, error)
        self._counts[key] = self._counts.get(key, 0) + 1

    @property
    def found(self) -> list[TagspreadError]:
        """The collected errors, in the order of the rows."""
        errors = []
        for key, error in self._first.items():
            more = self._counts[key] - 1
            rows = "row" if more == 1 else "rows"
            errors.append(error.extended(f" (And {more:,} more {rows} like this.)") if more else error)
        if self._omitted:
            errors.append(TagspreadError(f"{self._omitted:,} more rows have errors; correct the ones above first."))
        return errors


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
