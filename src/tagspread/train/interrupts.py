"""Being asked to stop: SIGTERM and SIGINT become a question that the loop asks between steps."""

from __future__ import annotations

import signal
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop and has saved where it was; like Ctrl-C, nothing catches it by accident."""


class StopSignal:
    """While it is entered, the first signal sets ``asked``; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._ask)
            except ValueError:  # not in the main thread: whoever called us minds the signals
                break
        return self

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
