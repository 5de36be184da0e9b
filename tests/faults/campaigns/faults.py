"""Faults at the n-th file operation of a process: a signal, or an error of the system."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT)


class Operations:
    """Counts what Python does to files below a folder, and acts at one operation, or from there on.

    Args:
        folder: the folder.
        at: number of the operation.
        act: what happens before it.
        lasting: whether it happens at all later operations too.
    """

    def __init__(self, folder: Path, at: int, act: Callable[[], None], lasting: bool = False) -> None:
        self._folder, self._at, self._act, self._lasting = str(folder.resolve()), at, act, lasting
        self._count = 0

    def start(self) -> None:
        """Begin to count; there is no end but that of the process."""
        sys.addaudithook(self._hear)
        sync = os.fsync

        def fsync(descriptor: Any) -> None:
            self._see(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
            sync(descriptor)

        os.fsync = fsync  # type: ignore[assignment]

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS or (event == "open" and isinstance(args[2], int) and args[2] & WRITING):
            self._see(args[0])

    def _see(self, path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(self._folder):  # noqa: PTH100
            self._count += 1
            if self._count - 1 == self._at or (self._lasting and self._count > self._at):
                self._act()


def fail(number: int) -> Callable[[], None]:
    """Return a function that raises an error of the system."""

    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act
