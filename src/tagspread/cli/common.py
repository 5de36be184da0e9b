"""Shared by the commands: options of the same name and meaning, printing, and interruption by Ctrl-C."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tagspread.errors import TagspreadError

if TYPE_CHECKING:
    from tagspread.data.tables.options import GivenOptions

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")]
Delimiter = Annotated[str, typer.Option(help="Separator between the tags in a cell; '' if each cell is one tag.")]
RunDelimiter = Annotated[
    str | None, typer.Option(help="Separator between the tags in a cell; by default the one used in training.")
]
ImageColumn = Annotated[str | None, typer.Option(help="Column with the image paths; detected by default.")]
TagsColumn = Annotated[str | None, typer.Option(help="Column with the tags; detected by default.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Column to ignore; 'all' ignores every column that is not a tag. Repeatable."),
]
Outside = Annotated[bool, typer.Option("--allow-outside", help="Accept image paths outside the image folder.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
Device = Annotated[str, typer.Option(help="Device to run on: auto, cpu or cuda.")]
Mirror = Annotated[
    bool, typer.Option("--mirror", help="Average over each image and its mirror image; takes twice as long.")
]
TableImages = Annotated[
    Path | None,
    typer.Option(help="Image folder that the paths are relative to; by default the one used in training."),
]


def table_options(
    delimiter: str | None, image_column: str | None, tags_column: str | None, ignore: list[str] | None, outside: bool
) -> GivenOptions:
    """Return the given options for reading a table."""
    from tagspread.data.tables.options import GivenOptions

    columns: str | tuple[str, ...] = "all" if ignore == ["all"] else tuple(ignore or ())
    return GivenOptions(delimiter, image_column, tags_column, ignore=columns, allow_outside=outside)


def read_settings(pairs: list[str]) -> dict[str, object]:
    """Parse NAME=VALUE settings; a value that is not JSON is text."""
    from tagspread.train.config import TrainConfig

    settings: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise TagspreadError(f"--set {pair}: no '=' found; write NAME=VALUE.")
        TrainConfig.check_names([name])
        try:
            settings[name] = json.loads(text.lower() if text in ("True", "False") else text)
        except json.JSONDecodeError:
            settings[name] = text
    return settings


def say(text: str, error: bool = False) -> None:
    """Print a line unchanged: without wrapping, so that it can be copied, and without colors."""
    Console(stderr=error, soft_wrap=True).print(text, highlight=False, markup=False)


@contextmanager
def may_be_stopped(message: str, before_saving: str = "stopped") -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into one line, such as the command that resumes the run, and exit code 130.

    Args:
        message: printed if the run was saved; {} stands for its folder.
        before_saving: printed if nothing was saved.
    """
    from tagspread.run.folder import RunFolder
    from tagspread.train.interrupts import Interrupted

    before = signal.getsignal(signal.SIGTERM)
    in_main_thread = threading.current_thread() is threading.main_thread()  # the only one that may set handlers
    if in_main_thread:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the training loop sets its own
    try:
        yield
    except KeyboardInterrupt as stopped:
        say(message.format(stopped) if isinstance(stopped, Interrupted) else before_saving, error=True)
        if isinstance(stopped, Interrupted) and (where := RunFolder(str(stopped)).where_previous):
            say(where.strip(), error=True)
        raise typer.Exit(130) from None
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)
