"""Fixtures for benchmark tests: a grid with few images and epochs."""

import pytest

from tagspread.bench import run as run_module
from tagspread.bench.run import Request, run_bench
from tagspread.bench.runner import QuietBar
from tagspread.progress import Watcher

QUICK = {"warmup_epochs": 1, "epochs": 2, "batch": 32, "score_batch": 256}


class Listener(Watcher):
    """A watcher that records its notes."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def note(self, text):
        self.lines.append(text)

    @property
    def cells(self):
        return [line for line in self.lines if line.startswith("[")]


@pytest.fixture
def ask(tmp_path):
    """A request for a tiny demo grid, with changes."""

    def make(settings=None, **changes):
        usual = {"dataset": "demo", "out": tmp_path / "out", "methods": ("asl", "cap"), "shares": (0.2,), "seeds": (1,)}
        usual |= {"canvases": 120, "device": "cpu", "settings": QUICK | (settings or {})}
        return Request(**(usual | changes))

    return make


@pytest.fixture
def stop_at(monkeypatch):
    """Interrupt training at an epoch, as Ctrl-C does, until ``undo`` of monkeypatch."""

    def stop(at):
        def epoch_step(self, epoch, seen, total):
            if epoch == at:
                raise KeyboardInterrupt

        monkeypatch.setattr(QuietBar, "epoch_step", epoch_step)

    return stop


@pytest.fixture
def bench(monkeypatch):
    """Run a request without charts; return the number of failed cells and the watcher."""
    monkeypatch.setattr(run_module, "write_charts", lambda *_: [])

    def run(request):
        listener = Listener()
        return run_bench(request, listener), listener

    return run
