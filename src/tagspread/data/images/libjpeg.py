"""Keep libjpeg from printing warnings about damaged JPEG files.

Within torchvision, libjpeg writes them to C's standard error itself, without the name of the file. Files that cannot be
decoded are reported by this package, with their names. Python's own ``sys.stderr`` is not affected.
"""

from __future__ import annotations

import ctypes
from functools import cache


class QuietC:
    """Discards what C code writes to its standard error, between :meth:`begin` and :meth:`end`; only with glibc."""

    def __init__(self) -> None:
        self._before: int | None = None

    def begin(self) -> None:
        """Discard messages from now on."""
        streams = _streams()
        if streams is not None and self._before is None:
            stderr, nowhere = streams
            self._before, stderr.value = stderr.value, nowhere

    def end(self) -> None:
        """Print messages again."""
        streams = _streams()
        if streams is not None and self._before is not None:
            streams[0].value, self._before = self._before, None


@cache
def _streams() -> tuple[ctypes.c_void_p, int] | None:
    """Return C's variable ``stderr``, and a stream that discards everything; None where there is no such variable."""
    try:
        c = ctypes.CDLL(None)
        c.gnu_get_libc_version  # noqa: B018  # elsewhere the variable is a constant, or has another name
        c.fopen.restype, c.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
        nowhere = c.fopen(b"/dev/null", b"w")
        return (ctypes.c_void_p.in_dll(c, "stderr"), nowhere) if nowhere else None
    except (OSError, AttributeError, TypeError, ValueError):
        return None
