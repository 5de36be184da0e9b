"""What several commands share: options of the same name and meaning, and how things are said."""

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
    from tagspread.data.tables.given_options import GivenOptions

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already there.")]
Delimiter = Annotated[str, typer.Option(help="What separates tags in one cell; '' if each is one tag.")]
RunDelimiter = Annotated[
    str | None, typer.Option(help="What separates tags in one cell; by default as in the table that was trained on.")
]
ImageColumn = Annotated[str | None, typer.Option(help="Column with the images, if it is not found.")]
TagsColumn = Annotated[str | None, typer.Option(help="Column with the tags, if it is not found.")]
Ignore = Annotated[list[str] | None, typer.Option(help="Column about something else; 'all' for all such.")]
Outside = Annotated[bool, typer.Option("--allow-outside", help="Accept paths that leave the folder.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Mirror = Annotated[bool, typer.Option("--mirror", help="Average with the mirror image, at twice the time.")]
TableImages = Annotated[
    Path | None,
    typer.Option(help="Folder the table's paths start from, or the run's images were moved to; by default the run's."),
]


def table_options(
    delimiter: str | None, image_column: str | None, tags_column: str | None, ignore: list[str] | None, outside: bool
) -> GivenOptions:
    """Return the options of reading a table that were given."""
    from tagspread.data.tables.given_options import GivenOptions

    columns: str | tuple[str, ...] = "all" if ignore == ["all"] else tuple(ignore or ())
    return GivenOptions(delimiter, image_column, tags_column, ignore=columns, allow_outside=outside)


def read_settings(pairs: list[str]) -> dict[str, object]:
    """Read NAME=VALUE, the value as JSON where it is JSON, else as text."""
    from tagspread.train.config import TrainConfig

    settings: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise TagspreadError(f"--set {pair}: write NAME=VALUE.")
        TrainConfig.check_names([name])
        try:
            settings[name] = json.loads(text.lower() if text in ("True", "False") else text)
        except json.JSONDecodeError:
            settings[name] = text
    return settings


def say(text: str, error: bool = False) -> None:
    """Print a line as it is: not wrapped, so that it can be copied, and without guessing at colors."""
    Console(stderr=error, soft_wrap=True).print(text, highlight=False, markup=False)


@contextmanager
def may_be_stopped(words: str, before_saving: str = "stopped") -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into one line that says how to go on, and exit code 130.

    Args:
        words: what to say of a run that was saved; {} stands for its folder.
        before_saving: what to say where nothing of a run was saved.
    """
    from tagspread.run.folder import RunFolder
    from tagspread.train.interrupts import Interrupted

    before = signal.getsignal(signal.SIGTERM)
    mine = threading.current_thread() is threading.main_thread()  # no other may mind signals
    if mine:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the training loop minds it itself
    try:
        yield
    except KeyboardInterrupt as stopped:
        say(words.format(stopped) if isinstance(stopped, Interrupted) else before_saving, error=True)
        if isinstance(stopped, Interrupted) and (where := RunFolder(str(stopped)).where_previous):
            say(where.strip(), error=True)
        raise typer.Exit(130) from None
    finally:
        if mine:
            signal.signal(signal.SIGTERM, before)
