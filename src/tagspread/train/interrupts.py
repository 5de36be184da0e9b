"""Interrupts: after SIGTERM or SIGINT, training saves a checkpoint between steps and stops, so that it can resume."""

from __future__ import annotations

import signal
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """Training was interrupted and saved a checkpoint. Like Ctrl-C, it is not an ``Exception``."""


class StopSignal:
    """Context manager: the first SIGTERM or SIGINT sets ``asked``; a second one raises ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._ask)
            except ValueError:  # not in the main thread, where signals are handled
                break
        return self

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
