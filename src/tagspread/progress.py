"""Progress output: a progress bar on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import errno
import os
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from tagspread.aliases import JsonObject


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


class Output(Console):
    """A console that raises if nobody reads its output; rich would end the program without a word."""

    def on_broken_pipe(self) -> None:
        """Raise ``BrokenPipeError``."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Watcher:
    """Shows progress. It is told what happens and never affects it."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Output(highlight=False)
        self.quiet = quiet
        self._progress: Progress | None = None
        self._bar: Any = None

    def note(self, text: str) -> None:
        """Print a message."""
        if self.quiet:
            return
        console = self._progress.console if self._progress else self.console
        try:
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        except OSError:  # a full disk, or nobody reads: no reason to stop hours of training
            self.quiet = True

    def decoding(self, done: int, total: int) -> None:
        """Show how many images are decoded."""
        self._show("decoding", done, total)

    def tagging(self, done: int, total: int) -> None:
        """Show how many images are tagged."""
        self._show("tagging", done, total)

    def embedding(self, done: int, total: int) -> None:
        """Show for how many images features are computed."""
        self._show("computing features", done, total)

    def step(self, epoch: int, seen: int, total: int) -> None:
        """Show how many images have been trained on, of all epochs."""
        self._show(f"training, epoch {epoch + 1}", seen, total)

    def epoch(self, line: JsonObject) -> None:
        """Print the metrics of an epoch."""
        self.note(epoch_line(line))

    def _show(self, what: str, done: int, total: int) -> None:
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
            self._bar = self._progress.add_task(what, total=total)
        if self._progress.tasks[0].total != total:  # another task: restart its rate
            self._progress.reset(self._bar, description=what, total=total)
        self._progress.update(self._bar, completed=done, description=what, total=total)

    def close(self) -> None:
        """Remove the progress bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


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
    parts.append(f"{line['seconds']:.1f} s, {line['img_per_s']:,.0f} img/s")
    return " | ".join(parts)
