"""Run a function in a child process that is killed at the n-th file operation below a folder.

A child is a fork of the process that has torch and tagspread imported, so that a point costs no start. Counted is what
Python does: opening for writing, renaming, linking, removing, making and removing folders, truncating, and waiting for
the disk. A kill comes before the operation; what happens between two of them changes only bytes of files that are open.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Counter:
    """Counts file operations below a folder, and kills the process at one of them."""

    def __init__(self, folder: Path, at: int | None) -> None:
        self.folder, self.at, self.count = str(folder.resolve()), at, 0

    def start(self) -> None:
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
        if isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(self.folder):  # noqa: PTH100
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1


def count_operations(job: Callable[[], object], folder: Path) -> int:
    """Run ``job`` in a fork; return how many operations it did."""
    count = _in_child(job, folder, None)
    assert count is not None
    return count


def kill(job: Callable[[], object], folder: Path, at: int) -> bool:
    """Run ``job`` in a fork; return whether it was killed at operation ``at``, or ended before."""
    return _in_child(job, folder, at) is None


def _in_child(job: Callable[[], object], folder: Path, at: int | None) -> int | None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _run(job, Counter(folder, at), writing)
    os.close(writing)
    with os.fdopen(reading) as said:
        words = said.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(words)
    return int(words)


def _run(job: Callable[[], object], counter: Counter, writing: int) -> NoReturn:
    """Run the job in the child process and exit, so that the child never returns into the test."""
    try:
        counter.start()
        job()
        counter.at = None
        os.write(writing, str(counter.count).encode())
        os._exit(0)
    except BaseException:
        counter.at = None
        os.write(writing, traceback.format_exc().encode())
        os._exit(1)


@contextmanager
def paused_child(job: Callable[[], object], owner: object, name: str) -> Iterator[int]:
    """Run ``job`` in a fork that stops when it first calls ``owner.name``; yield its number, then let it end.

    It must end well.
    """
    stopped, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        waits = [True]
        usual = getattr(owner, name)

        def wait(*args: Any, **more: Any) -> Any:
            if waits:
                waits.clear()
                os.write(stopped[1], b"x")
                os.read(go[0], 1)
            return usual(*args, **more)

        setattr(owner, name, wait)
        _run(job, Counter(Path("/nowhere"), None), stopped[1])
    os.close(stopped[1])
    words = ""
    try:
        with os.fdopen(stopped[0]) as said:
            words = said.read(1)
            try:
                if words == "x":
                    yield child
            finally:
                os.write(go[1], b"x")
                words += said.read()
    finally:
        os.close(go[0])
        os.close(go[1])
        status = os.waitpid(child, 0)[1]
    if words[0] != "x" or os.waitstatus_to_exitcode(status):
        raise RuntimeError(words)
