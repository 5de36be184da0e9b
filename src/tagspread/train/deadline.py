"""Time budgets: durations as people write them, and the deadline that training keeps to."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from numbers import Real
from time import perf_counter

from tagspread.errors import TagspreadError

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?")


def seconds_of(duration: str | float) -> float:
    """Return a duration in seconds.

    Args:
        duration: a text such as ``"90s"``, ``"10m"`` or ``"1h30m"``, or a number of seconds.

    >>> [seconds_of(duration) for duration in ("90s", "10m", "1h30m", "1.5h", 45)]
    [90.0, 600.0, 5400.0, 5400.0, 45.0]
    >>> seconds_of("ten minutes")
    Traceback (most recent call last):
    tagspread.errors.TagspreadError: time is 'ten minutes'; give a duration above 0 such as 90s, 10m or 1h30m.
    """
    seconds = math.nan
    if isinstance(duration, Real) and not isinstance(duration, bool):
        seconds = float(duration)
    elif isinstance(duration, str) and (match := _DURATION.fullmatch(duration.replace(" ", "").lower())):
        try:
            seconds = sum(
                float(part) * unit for part, unit in zip(match.groups(), _UNITS.values(), strict=True) if part
            )
        except ValueError:  # such as 1.2.3
            seconds = math.nan
    if not 0 < seconds < math.inf:
        raise TagspreadError(f"@time is {duration!r}; give a duration above 0 such as 90s, 10m or 1h30m.", time=...)
    return seconds


@dataclass(frozen=True)
class Deadline:
    """The time at which a run must be finished.

    Attributes:
        at: the time, on the clock of ``time.perf_counter``.
        reserve: seconds that the steps after training need.

    >>> Deadline(perf_counter() + 60, reserve=50).is_near(), Deadline(perf_counter() + 60).is_near(seconds=90)
    (False, True)
    """

    at: float = math.inf
    reserve: float = 0.0

    def is_near(self, seconds: float = 0.0) -> bool:
        """Return whether another step of so many seconds would leave too little time for the end of the run."""
        return perf_counter() + seconds + self.reserve >= self.at
