"""Number formatting for messages and reports."""

from __future__ import annotations

MINUS = "\u2212"  # the minus sign is as wide as the plus; a hyphen is hard to see next to a digit


def counted(number: int, what: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    >>> counted(1, "image"), counted(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{number:,} {what}" + "s" * (number != 1)


def points(share: float) -> str:
    """Return a difference of shares in percentage points, with a minus sign; a value that rounds to 0 has no sign.

    >>> points(0.0712), points(-0.0004), points(-0.004) == MINUS + "0.4"
    ('7.1', '0.0', True)
    """
    text = f"{100 * share:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", MINUS)
