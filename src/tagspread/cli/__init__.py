"""The ``tagspread`` command line: one file per command. It parses options, calls the package and prints results."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Annotated

import typer

from tagspread._version import __version__
from tagspread.cli import (
    audit,
    bench,
    check,
    compare,
    demo,
    embed,
    evaluate,
    export,
    methods,
    predict,
    pseudo_labels,
    report,
    review,
    suggest,
    thresholds,
    train,
)
from tagspread.cli.common import Command, Group, say
from tagspread.cli.failures import one_message
from tagspread.errors import TagspreadError

app = typer.Typer(cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def _print_version(requested: bool) -> None:
    if requested:
        say(f"tagspread {__version__}")
        raise typer.Exit


@app.callback()
def tagspread(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train an image tagger on a few labeled and many unlabeled images (semi-supervised multi-label learning).

    The usual order: check, train, report, predict. To improve the result: review, then train again with --answers.
    'train' writes a run: a folder with the trained model, its settings and its metrics. Most other commands take the
    path of a run as RUN. Each command explains itself with --help.
    """


for command in (  # in the order of their use
    demo.demo,
    check.check,
    train.train,
    report.report,
    evaluate.evaluate,
    predict.predict,
    suggest.suggest,
    review.review,
    audit.audit,
    compare.compare,
    thresholds.thresholds,
    pseudo_labels.pseudo_labels,
    export.export,
    embed.embed,
    methods.methods,
):
    app.command(cls=Command)(command)
app.command(cls=bench.ManyValues)(bench.bench)


def main() -> None:
    """Run the command line. Bad input, and failures of the system, end with one message and without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: file names need not be UTF-8
    try:
        with one_message():  # also for --help, which Group does not see
            app()
    except TagspreadError as error:
        with contextlib.suppress(OSError):  # nobody can read the message
            say(f"error: {error.on_command_line}", error=True)
        sys.exit(getattr(error, "exit_code", 2))
