"""Failures of the system while a command runs: full disks, too little memory, output that cannot be printed.

Each becomes one message, like bad input, because a traceback would not tell the user more.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tagspread.errors import TagspreadError

BROKEN_PIPE = 141  # exit code of a program that the system ends for the same reason: 128 + SIGPIPE
OUT_OF_MEMORY = ("allocate memory", "out of memory", "not enough memory", "bad_alloc", "could not create a primitive")
# these are the words of PyTorch, which has no type for it
NO_FILE = "unable to open file"  # of safetensors, without a type
NO_THREAD = "can't start new thread"
CLOSE_OTHERS = "close other programs, or use a machine with more memory"


class SystemFailure(TagspreadError):  # noqa: N818 - named for what it is, not for being an exception
    """Raised in place of an error of the system.

    Attributes:
        exit_code: exit code of the program.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def one_message() -> Iterator[None]:
    """Turn errors of the system into a :class:`SystemFailure`; errors of the program keep their traceback."""
    try:
        yield
        for file in filter(None, (sys.stdout, sys.stderr)):
            file.flush()  # what cannot be printed fails here, not when Python ends
    except OSError as error:
        raise _of_output(error) or SystemFailure(_words(error)) from None
    except MemoryError as error:
        raise SystemFailure(f"there is not enough memory{_detail(error)}; {CLOSE_OTHERS}.") from None
    except RuntimeError as error:
        text = str(error)
        if NO_THREAD in text:
            raise SystemFailure(f"the system starts no more threads ({text}); {CLOSE_OTHERS}.") from None
        if text.startswith(NO_FILE):
            raise SystemFailure(f"{text.splitlines()[0]}; check the limits of the system and the file.") from None
        if any(words in text.lower() for words in OUT_OF_MEMORY):
            raise SystemFailure(
                f"there is not enough memory{_detail(error)}; give a smaller batch or image size, or {CLOSE_OTHERS}."
            ) from None
        raise


def _of_output(error: OSError) -> SystemFailure | None:
    """Return the failure of output that cannot be printed; None if the error is about something else."""
    broken = error.errno == errno.EPIPE
    for file in filter(None, (sys.stdout, sys.stderr)):
        try:
            file.flush()  # what was not printed is still there, so that it fails again
        except OSError:
            broken = True
            _discard(file.fileno())
            with suppress(OSError):
                file.flush()
    if not broken:
        return None
    if error.errno == errno.EPIPE:
        return SystemFailure("the output was not printed, because its reader has ended (broken pipe).", BROKEN_PIPE)
    return SystemFailure(f"the output cannot be printed ({error.strerror}); print it elsewhere.")


def _discard(descriptor: int) -> None:
    """Send what is still printed to nowhere, so that Python can end without another error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _words(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno == errno.ENOMEM:
        return f"there is not enough memory ({reason}); {CLOSE_OTHERS}."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open ({reason}); raise the limit of the system, such as with ulimit -n."
    subject = f"{os.fsdecode(error.filename)} cannot be used" if error.filename is not None else "a file cannot be used"
    return f"{subject} ({reason}); free disk space, check the permissions, or choose another location."


def _detail(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f" ({lines[0][:200]})" if lines else ""
