"""Interrupts: after SIGTERM or SIGINT, training saves a checkpoint between steps and stops, so that it can resume."""

from __future__ import annotations

import signal
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """Raised when training was interrupted after saving a checkpoint; its argument is the run folder.

    Like ``KeyboardInterrupt``, it is not an ``Exception``.
    """


class StopSignal:
    """Context manager that catches SIGTERM and SIGINT, so that training can stop between steps.

    The first signal sets ``received``; a second one raises ``KeyboardInterrupt``.

    Attributes:
        received: whether a signal has arrived.
    """

    def __init__(self) -> None:
        self.received = False
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._previous_handlers[number] = signal.signal(number, self._receive)
            except ValueError:  # not in the main thread: Python cannot set handlers here
                break
        return self

    def _receive(self, number: int, frame: object) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True

    def __exit__(self, *details: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
