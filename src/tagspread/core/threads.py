"""Number of threads by the size of the work: small computations use one thread.

PyTorch divides each operation among its threads and waits for all of them. For an operation of a millisecond this wait
costs little on an idle machine. On a machine that other processes use, a thread that waits for its turn holds up all
others, which spin meanwhile: a fit of 3 s took 95 s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 2**22  # numbers read by one pass over the data (16 MB): a few milliseconds of work for one thread


class _OneThread:
    """Limits PyTorch to one thread in the Python threads that use it.

    PyTorch stores the number for each Python thread, and a default for those that have not used it yet. A Python thread
    that starts to use PyTorch during the limit of another one would take 1 for its own number, and restore that. All
    users therefore restore the number that the first one found.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 1
        self._depth = threading.local()

    def __enter__(self) -> None:
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if depth == 0:
            with self._lock:
                if self._users == 0:
                    self._before = torch.get_num_threads()
                self._users += 1
                torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        self._depth.value -= 1
        if self._depth.value == 0:
            with self._lock:
                self._users -= 1
                torch.set_num_threads(self._before)


_ONE_THREAD = _OneThread()  # one per process: all users share the number to restore


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Use one thread if one pass over the data reads at most ``SMALL`` numbers; otherwise, all threads.

    Args:
        numbers: size of the data, such as rows x features.

    >>> with threads_for(30 * 1280):
    ...     torch.get_num_threads()
    1
    """
    if numbers > SMALL:
        yield
        return
    with _ONE_THREAD:
        yield
