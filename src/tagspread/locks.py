"""One process at a time: a file that whoever works on something holds on to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """Wait until no other process holds this file, and hold it; where the system knows no locks, just go on.

    Args:
        file: an empty file, made if it is not there; it stays, as deleting it would let two in at once.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            import fcntl

            with contextlib.suppress(OSError):  # some network drives know no locks; most users are alone there
                fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed
        except ImportError:
            pass
        yield
