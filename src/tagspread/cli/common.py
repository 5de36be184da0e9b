"""Shared by the commands: options of the same name and meaning, help pages, printing, interruption by Ctrl-C."""

from __future__ import annotations

import inspect
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tagspread.cli.failures import one_message
from tagspread.errors import TagspreadError, check_choice
from tagspread.progress import Output

if TYPE_CHECKING:
    from tagspread.data.tables.options import GivenOptions

TABLE_PANEL = "Format of the label table"
TABLE_FORMATS = "CSV, TSV, Parquet, JSON lines or Label Studio export"
BLANK_HELP = (
    "What a row without a tag means: unlabeled (nobody has tagged the image yet) or negative (it has none of the tags)."
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Labels = Annotated[Path, typer.Option(metavar="FILE", help=f"Label table of the labeled images: {TABLE_FORMATS}.")]
TestLabels = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Label table of the test images, in any format that --labels accepts."),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Separator between the tags in a cell; use '' if each cell holds a single tag.",
        show_default="detected",
        rich_help_panel=TABLE_PANEL,
    ),
]
RunDelimiter = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Separator between the tags in a cell.",
        show_default="as in training",
        rich_help_panel=TABLE_PANEL,
    ),
]
ImageColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column with the image paths.",
        show_default="detected",
        rich_help_panel=TABLE_PANEL,
    ),
]
TagsColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Column with lists of tags.", show_default="detected", rich_help_panel=TABLE_PANEL
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Column to ignore. Repeatable. 'all' ignores every column that holds no labels: in a table with one "
        "column of tags, all columns but those of the images and the tags; in a table with one column per tag, all "
        "columns with values other than 1, 0 and blank.",
        rich_help_panel=TABLE_PANEL,
    ),
]
Outside = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Accept image paths in the table that lie outside the image folder.",
        rich_help_panel=TABLE_PANEL,
    ),
]
BlankRows = Annotated[
    str | None,
    typer.Option(
        "--blank",
        metavar="MEANING",
        help=BLANK_HELP,
        show_default="negative if fewer than 5, or fewer than 10 %, of the rows have no tag; otherwise required",
        rich_help_panel=TABLE_PANEL,
    ),
]
RunBlankRows = Annotated[
    str | None,
    typer.Option(
        "--blank", metavar="MEANING", help=BLANK_HELP, show_default="as in training", rich_help_panel=TABLE_PANEL
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, as written by 'tagspread train'.")]
ImagePaths = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGES", help="Image folder, image files, or a text file that lists images (.txt, .csv)."),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="Device to run on: auto (the GPU, if there is one), cpu or cuda.")
]
Mirror = Annotated[
    bool,
    typer.Option("--mirror", help="Average the probabilities of each image and its mirror image. Takes twice as long."),
]
TableImages = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Image folder. With --labels: the folder that its paths are relative to. Otherwise: the new path of the "
        "folder used in training, if it was moved.",
        show_default="the image folder used in training",
    ),
]


class Command(TyperCommand):
    """A command with a plain help page: flags have no type, the usage line has no braces, paragraphs are filled.

    The usage line also shows the required options. Examples, whose lines begin with ``$``, keep their lines.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of ``TyperCommand``; join the lines of each paragraph of the help text."""
        super().__init__(*args, **kwargs)
        self.help = _filled(self.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; if a required one is missing, name it and show an example."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # its type is private in some versions of typer, and part of click in others
            if type(error).__name__ != "MissingParameter" or (missing := getattr(error, "param", None)) is None:
                raise
            name = missing.metavar if isinstance(missing, TyperArgument) else f"{missing.opts[0]} {missing.metavar}"
            usage = f"{ctx.command_path} {' '.join(self.collect_usage_pieces(ctx)[1:])}"
            examples = [line[2:] for line in (self.help or "").splitlines() if line.startswith("$ ")]
            example = f", for example: {examples[0]}" if examples else ""
            raise TagspreadError(f"{name} is missing; write {usage}{example}") from None

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, without the types that say nothing to a reader."""
        return _plain(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line: options, arguments, required options."""
        pieces = [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]
        required = [param for param in self.params if isinstance(param, TyperOption) and param.required]
        return [*pieces, *(f"{param.opts[0]} {param.metavar}" for param in required)]


class Group(TyperGroup):
    """The program itself, with the same kind of help page. Failures of the system become one message."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of ``TyperGroup``; join the lines of each paragraph of the help text."""
        super().__init__(*args, **kwargs)
        self.help = _filled(self.help)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with one_message():  # here, because Typer ends the program in silence if nobody reads the output
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, without the types that say nothing to a reader."""
        return _plain(super().get_params(ctx))


def _filled(text: str | None) -> str:
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return escape("\n\n".join(part if "\n$ " in part else part.replace("\n", " ") for part in paragraphs))


def _plain(params: Any) -> Any:
    """Remove types that say nothing to a reader, and the parentheses that Typer puts around a default in words."""
    for param in params:
        if isinstance(getattr(param, "show_default", None), str):
            param._get_default_string = partial(_default_in_words, param.show_default)
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
        elif isinstance(param, TyperArgument):
            param.display_type_rich = _no_type  # type: ignore[method-assign]
    return params


def _default_in_words(words: str, **context: Any) -> str:
    del context
    return words


def _no_type(ctx: Any) -> str:
    del ctx
    return ""


def table_options(
    delimiter: str | None,
    image_column: str | None,
    tags_column: str | None,
    ignore: list[str] | None,
    outside: bool,
    blank: str | None,
) -> GivenOptions:
    """Return the given options for reading a table."""
    from tagspread.data.tables.options import BLANK, GivenOptions

    if blank is not None:
        check_choice("--blank", blank, BLANK)
    columns: str | tuple[str, ...] = "all" if ignore == ["all"] else tuple(ignore or ())
    return GivenOptions(delimiter, image_column, tags_column, ignore=columns, allow_outside=outside, blank=blank)


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
    Output(stderr=error, soft_wrap=True).print(text, highlight=False, markup=False)


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
