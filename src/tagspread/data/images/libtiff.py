"""Keep libtiff from printing the errors of damaged TIFF files.

libtiff writes them to the screen itself, without the name of the file. Pillow raises an exception for the same errors,
from which the messages of this package are made, with the name.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import PIL


@cache
def silence_libtiff() -> None:
    """Remove the error and warning handlers of libtiff, once per process; where it cannot be found, do nothing."""
    for library in _libraries():
        with suppress(OSError, AttributeError):
            loaded = ctypes.CDLL(library)
            for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
                set_handler = getattr(loaded, name)
                set_handler.restype, set_handler.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
                set_handler(None)


def _libraries() -> Iterator[str]:
    """Yield the libtiff that the wheels of Pillow contain, or that of the system, which other builds use."""
    package = Path(PIL.__file__).parent
    own = [file for folder in (package.parent / "pillow.libs", package / ".dylibs") for file in folder.glob("libtiff*")]
    if own:
        yield from map(str, own)
    elif (name := ctypes.util.find_library("tiff")) is not None:
        yield name
