"""The ``tagspread`` command: thin, it only parses, calls and prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from tagspread._version import __version__
from tagspread.errors import TagspreadError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"tagspread {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def tagspread(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """A few tagged pictures, a large pile of untagged ones, one good tagger."""


@app.command()
def demo() -> None:
    """Show semi-supervised tagging on data that needs no download."""
    Console().print("coming: the demo trains a tagger, and training is not built yet.")


def main() -> None:
    """Run the command line; bad input ends with one message and exit code 2, never with a traceback."""
    try:
        app()
    except TagspreadError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(2)
