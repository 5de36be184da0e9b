"""Run one case in a fork of this process, with a time limit, and judge how it ended.

The fork has torch and tagspread imported, so that a case costs milliseconds. A case cannot harm another one: its
memory, its signals and its crashes are its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from tagspread.errors import TagspreadError

SECONDS = 10  # of computing: a case that takes longer is counted; other processes of the machine do not count
PATIENCE = 6  # times that limit, then the case is killed: it hangs
MEMORY = 2 * 2**30  # bytes that a case may need beyond the package's own
GUARD = 8 * 2**30  # bytes of address space beyond which a case gets no more: protects the machine
KINDS = ("fine", "refused", "traceback", "slow", "lost", "stuck", "executed", "memory")
MOST_SAID = 2**20  # bytes of output that are kept
GOOD = ("fine", "refused")
STOPPED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 130)
NOISE = re.compile(r"Traceback \(most recent|^Exception ignored|Fatal Python error|\b[A-Z]\w+Warning: ", re.MULTILINE)


class Result(NamedTuple):
    """How the process of a case ended.

    Attributes:
        code: its exit code; minus the number of the signal that ended it.
        said: its output and its error messages.
        seconds: seconds of computing.
        waited: its duration.
        peak: its largest memory, in bytes.
    """

    code: int
    said: str
    seconds: float
    waited: float
    peak: int


class Flaw(NamedTuple):
    """What a check found wrong after a case: one of ``KINDS``, and the words for it."""

    kind: str
    words: str


def nothing_wrong(result: Result) -> Flaw | None:
    """Find nothing, whatever the result."""
    del result
    return None


@dataclass
class Case:
    """One fault or bad input.

    Attributes:
        words: what is done, for the table of bad cases.
        job: runs in the process of the case; a command of the program, or a call of the package.
        check: looks at what is left afterwards.
        seconds: limit of this case.
        stopped: whether a signal may end it.
        codes: exit codes of a refusal.
        silent: whether its messages cannot be seen.
    """

    words: str
    job: Callable[[], object]
    check: Callable[[Result], Flaw | None] = nothing_wrong
    seconds: float = SECONDS
    stopped: bool = False
    codes: tuple[int, ...] = (2,)
    silent: bool = False


class Outcome(NamedTuple):
    """The verdict on a case."""

    kind: str
    words: str
    seconds: float
    peak: int


@dataclass
class Harness:
    """Runs cases below a folder.

    Attributes:
        top: a folder for output; a file ``executed`` in it says that a case executed code that it should not.
    """

    top: Path
    _own: int = field(default=0, init=False)

    @property
    def canary(self) -> Path:
        """The file that code in a damaged run writes if it is executed."""
        return self.top / "executed"

    def run(self, case: Case) -> Outcome:
        """Run a case and judge it."""
        if not self._own:
            self._own = self.process(_nothing, SECONDS).peak
        self.canary.unlink(missing_ok=True)
        result = self.process(case.job, case.seconds * PATIENCE)
        beyond = max(0, result.peak - self._own)
        kind, words = self._judge(case, result, beyond)
        return Outcome(kind, words, result.seconds, beyond)

    def _judge(self, case: Case, result: Result, beyond: int) -> tuple[str, str]:
        if self.canary.exists():
            return "executed", "code of a stranger was executed"
        if result.waited >= case.seconds * PATIENCE:
            return "slow", f"ended after {result.waited:.1f} s"
        if result.seconds > case.seconds:
            return "slow", f"{result.seconds:.1f} s"
        kind = "fine"
        if result.code and not (case.stopped and result.code in STOPPED):
            if result.code not in case.codes:
                return "traceback", f"exit code {result.code}: {result.said[-1500:]}"
            kind = "refused"
        if NOISE.search(result.said):
            return "traceback", result.said[-1500:]
        if kind == "refused" and not case.silent and (count := messages(result.said)) != 1:
            return "traceback", f"{count} messages: {result.said[-1500:]}"
        if beyond > MEMORY:
            return "memory", f"{beyond / 2**20:.0f} MB"
        flaw = case.check(result)
        return flaw or (kind, result.said[-300:])

    def process(self, job: Callable[[], object], seconds: float) -> Result:
        """Run a function in a fork, and kill it after some seconds."""
        reading, writing = os.pipe()  # not a file, whose size a case may limit
        started = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
            child = os.fork()
        if not child:
            os.close(reading)
            _run(job, writing)
        os.close(writing)
        ended, said = os.pidfd_open(child), bytearray()
        try:
            while True:
                left = seconds - (time.monotonic() - started)
                ready, _, _ = select.select([reading, ended], [], [], max(0, left))
                data = os.read(reading, 65536) if reading in ready else b""
                said += data[: MOST_SAID - len(said)]
                if not ready:
                    os.kill(child, signal.SIGKILL)
                if ended in ready and not data:
                    break
                if reading in ready and not data:  # closed by the case
                    select.select([ended], [], [], max(0.0, left))
            _, status, used = os.wait4(child, 0)
        finally:
            os.close(ended)
            os.close(reading)
        code, text = os.waitstatus_to_exitcode(status), said.decode(errors="replace")
        computing, waited = used.ru_utime + used.ru_stime, time.monotonic() - started
        return Result(code, text, computing, waited, _peak_bytes(used.ru_maxrss))


def _nothing() -> None:
    """Do nothing: measures the memory of the package itself."""


def _peak_bytes(maxrss: int) -> int:
    return maxrss if sys.platform == "darwin" else 1024 * maxrss


def _run(job: Callable[[], object], output: int) -> NoReturn:
    """Run a job in the process of a case, with its output in a pipe, and exit."""
    code = 1
    try:
        faulthandler.disable()  # of the tests, which would print their own state
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        sys.stdout, sys.stderr = (
            open(number, "w", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            for number, errors in ((1, "strict"), (2, "backslashreplace"))  # as Python opens them
        )
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GUARD,) * 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _exit_code(job)
    finally:
        os._exit(code)


def _exit_code(job: Callable[[], object]) -> int:
    try:
        job()
        for file in filter(None, (sys.stdout, sys.stderr)):
            file.flush()
        return 0
    except SystemExit as stop:
        for file in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except TagspreadError as error:  # of a call of the package
        os.write(2, f"error: {error}\n".encode(errors="backslashreplace"))
        return 2
    except KeyboardInterrupt:
        return 130
    except BaseException:
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
        return 1


def messages(said: str) -> int:
    """Count the messages of a refusal; a list of findings of ``check`` is one."""
    if "Not ready to train" in said or said.startswith("{"):  # the report of check, also as JSON
        return 1
    return sum(line.startswith(("error: ", "Usage: ")) for line in said.splitlines())


def command(*words: object) -> Callable[[], object]:
    """Return a job that runs a command of the program."""

    def job() -> None:
        from tagspread.cli import main

        sys.argv = ["tagspread", *map(str, words)]
        main()

    return job


def contents(top: Path) -> dict[str, str]:
    """Return a digest of each file below a folder."""
    return {
        path.relative_to(top).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(top.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
