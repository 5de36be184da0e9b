"""Files that processes hold on to while they work on something: one at a time, or all who still need it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # where the system knows no locks, everybody just goes on
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def alone(file: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a file that no other process holds; yield whether it is held.

    Args:
        file: an empty file, made if it is not there; it stays, as deleting it would let two in at once.
        wait: until the other one lets go; otherwise False is yielded while it holds on.
    """
    with _opened(file) as lock:
        yield _lock(lock, "LOCK_EX", wait)


class Needed:
    """Something that several processes need, until the last of them lets go.

    Args:
        file: as in :func:`alone`.
    """

    def __init__(self, file: Path) -> None:
        self._file = _opened(file)
        _lock(self._file, "LOCK_SH", wait=True)

    @contextlib.contextmanager
    def let_go(self) -> Iterator[bool]:
        """Yield whether nobody else needs it; until the end of the block nobody begins to."""
        with self._file:
            yield _lock(self._file, "LOCK_EX", wait=False)

    def close(self) -> None:
        """Let go without a look at the others."""
        self._file.close()


def _opened(file: Path) -> IO[str]:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.open("w")


def _lock(file: IO[str], kind: str, wait: bool) -> bool:
    """Lock an open file, which lasts until it is closed; return False if another process has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, getattr(fcntl, kind) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # some network drives know no locks; most users are alone there
        pass
    return True
