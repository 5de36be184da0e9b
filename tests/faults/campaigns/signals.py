"""Signals: commands that write are stopped at every file operation, and at random moments."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

from tests.faults.campaigns.faults import Operations
from tests.faults.campaigns.harness import Case, Flaw, Result, command, contents
from tests.faults.campaigns.work import WORKS, Aftermath
from tests.faults.campaigns.world import World

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OPERATIONS = 40  # most commands have fewer; a training has about a hundred
SECONDS = 0.6  # most commands take less


class Signals:
    """Kill, terminate or interrupt a command; the old or the new result is there, and a second try works."""

    name = "signals"
    count = 300
    quick = 6
    trains = True

    def __init__(self, world: World, number: int) -> None:
        del number
        self._world, self._aftermath = world, Aftermath(world)

    def case(self, rng: random.Random, folder: Path) -> Case:
        """Return one case."""
        work, sent, top = rng.choice((*WORKS[:3], *WORKS)), rng.choice(SIGNALS), folder / "work"
        new = self._aftermath.new(work)
        del new
        work.begin(self._world, top)
        inputs = contents(self._world.images)
        at = rng.randrange(OPERATIONS * (3 if work.name.startswith("train") else 1))
        after = rng.uniform(0, SECONDS * (3 if work.name.startswith("train") else 1))
        by_operation = rng.random() < 0.6

        def job() -> None:
            if by_operation:
                Operations(top, at, lambda: os.kill(os.getpid(), sent)).start()
            else:
                threading.Thread(target=_send_later, args=(after, sent), daemon=True).start()
            command(*work.words(self._world, top))()

        def check(result: Result) -> Flaw | None:
            del result
            return self._aftermath.check(work, top, inputs)

        when = f"operation {at}" if by_operation else f"{after:.3f} s"
        return Case(f"{work.name}: {sent.name} at {when}", job, check, stopped=True)


def _send_later(seconds: float, sent: signal.Signals) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), sent)
