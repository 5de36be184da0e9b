"""Number formatting for messages and reports."""

from __future__ import annotations

MINUS = "\u2212"  # the minus sign is as wide as the plus; a hyphen is hard to see next to a digit


def counted(number: int, what: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    >>> counted(1, "image"), counted(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{number:,} {what}" + "s" * (number != 1)


def duration(seconds: float) -> str:
    """Return a duration for people, in its two largest units.

    >>> [duration(seconds) for seconds in (0.4, 42.4, 60, 119.6, 125, 3600, 7384, 200_000)]
    ['1 s', '42 s', '1 min', '2 min', '2 min 5 s', '1 h', '2 h 3 min', '55 h 33 min']
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    large, small, names = (whole // 60, whole % 60, ("min", "s")) if whole < 3600 else (
        whole // 3600, whole % 3600 // 60, ("h", "min")
    )  # fmt: skip
    return f"{large} {names[0]}" + (f" {small} {names[1]}" if small else "")


def points(share: float) -> str:
    """Return a difference of shares in percentage points, with a minus sign; a value that rounds to 0 has no sign.

    >>> points(0.0712), points(-0.0004), points(-0.004) == MINUS + "0.4"
    ('7.1', '0.0', True)
    """
    text = f"{100 * share:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", MINUS)
