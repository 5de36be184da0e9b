"""Progress output: a progress bar on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from functools import partial
from time import perf_counter

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from tagspread.aliases import JsonObject
from tagspread.aliases import Progress as Callback
from tagspread.wording import duration

TRAINING = "training"


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


class Output(Console):
    """A console that raises if nobody reads its output; rich would end the program without a word."""

    def on_broken_pipe(self) -> None:
        """Raise ``BrokenPipeError``."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Stopwatch:
    """Divides elapsed time into named steps, one after the other, so that their times add up to the whole.

    >>> stopwatch = Stopwatch()
    >>> stopwatch.begin("decoding")
    >>> list(stopwatch.seconds())
    ['starting', 'decoding']
    """

    def __init__(self) -> None:
        self.step, self._since = "starting", perf_counter()
        self._seconds: dict[str, float] = {}

    def begin(self, step: str) -> None:
        """End the present step and begin another one, or continue one that was begun before."""
        now = perf_counter()
        self._seconds[self.step] = self._seconds.get(self.step, 0.0) + now - self._since
        self.step, self._since = step, now

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each step so far, in the order in which they began."""
        self.begin(self.step)
        return dict(self._seconds)

    def add(self, earlier: Mapping[str, float]) -> None:
        """Add the seconds of an earlier session, whose work is now continued."""
        present = self.seconds()
        names = dict.fromkeys((*earlier, *present))
        self._seconds = {name: earlier.get(name, 0.0) + present.get(name, 0.0) for name in names}


def times_in_words(seconds: Mapping[str, float]) -> str:
    """Describe how long the steps took together, and each step of at least a second.

    >>> times_in_words({"decoding": 2.2, "saving": 0.4, "training": 61.0})
    '1 min 4 s (decoding 2 s, training 1 min 1 s)'
    """
    steps = ", ".join(f"{step} {duration(spent)}" for step, spent in seconds.items() if spent >= 1)
    return duration(sum(seconds.values())) + (f" ({steps})" if steps else "")


class Watcher:
    """Shows progress. It is told what happens and never affects it.

    Attributes:
        stopwatch: how long each step took.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Output(highlight=False)
        self.quiet = quiet
        self.stopwatch = Stopwatch()
        self._progress: Progress | None = None
        self._bars: dict[str, tuple[TaskID, int]] = {}  # with their totals

    def note(self, text: str) -> None:
        """Print a message."""
        if self.quiet:
            return
        console = self._progress.console if self._progress else self.console
        try:
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        except OSError:  # a full disk, or nobody reads: no reason to stop hours of training
            self.quiet = True

    def begin(self, step: str) -> Callback:
        """Begin a step; return a function that shows how much of it is done, given that and the total.

        The bar of the step before disappears, except that of training, whose epochs contain other steps.
        """
        self.stopwatch.begin(step)
        for name in [name for name in self._bars if name not in (step, TRAINING)]:
            self._remove(name)
        return partial(self._show, step)

    def tagging(self, done: int, total: int) -> None:
        """Show how many images are tagged."""
        self._show("tagging", done, total)

    def epoch_step(self, epoch: int, seen: int, total: int) -> None:
        """Show how many images have been trained on, of all epochs."""
        if self.stopwatch.step != TRAINING:
            self.begin(TRAINING)
        self._show(TRAINING, seen, total, f"{TRAINING}, epoch {epoch + 1}")

    def epoch(self, line: JsonObject) -> None:
        """Print the metrics of an epoch."""
        self.note(epoch_line(line))

    def _show(self, step: str, done: int, total: int, words: str | None = None) -> None:
        if self.quiet or not self.console.is_terminal:
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                _Rate(),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._progress.start()
        if step in self._bars and self._bars[step][1] != total:
            self._remove(step)  # the same step on other data: restart its rate
        if step not in self._bars:
            self._bars[step] = self._progress.add_task(words or step, total=total), total
        self._progress.update(self._bars[step][0], completed=done, description=words or step)

    def _remove(self, step: str) -> None:
        bar, _ = self._bars.pop(step)
        if self._progress is not None:
            self._progress.remove_task(bar)

    def close(self) -> None:
        """Remove the progress bars."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._bars.clear()


def epoch_line(line: JsonObject) -> str:
    """Return the metrics of an epoch in one line; epochs are counted from 1 here and from 0 in ``log.jsonl``.

    >>> epoch_line({"epoch": 3, "stage": "main", "loss": 1.5, "test_map_raw": 0.5, "test_map_ema": 0.6, "seconds": 2.0,
    ...     "img_per_s": 900.0, "pseudo_positives": 12, "flips": 3})
    'epoch 4 main | loss 1.5 | test mAP 50.0 raw, 60.0 EMA | 12 positive pseudo-labels, 3 changed | 2.0 s,
    900 img/s'
    """
    parts = [f"epoch {line['epoch'] + 1} {line['stage']}", f"loss {line['loss']:.4g}"]
    for part in ("test", "held_out"):
        if f"{part}_map_ema" in line:
            raw, ema = 100 * line[f"{part}_map_raw"], 100 * line[f"{part}_map_ema"]
            parts.append(f"{part.replace('_', '-')} mAP {raw:.1f} raw, {ema:.1f} EMA")
    if "pseudo_positives" in line:
        flips = f", {line['flips']:,} changed" if "flips" in line else ""
        parts.append(f"{line['pseudo_positives']:,} positive pseudo-labels{flips}")
    sent = f", {line['sent_bytes'] / 1e6:,.0f} MB sent" if "sent_bytes" in line else ""
    parts.append(f"{line['seconds']:.1f} s, {line['img_per_s']:,.0f} img/s{sent}")
    return " | ".join(parts)
