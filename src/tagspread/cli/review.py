"""``tagspread review``: review the predictions of a run in the browser, and export the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagspread.cli.common import Device, Quiet, RunPath, say
from tagspread.errors import TagspreadError
from tagspread.wording import counted


def review(
    run: RunPath,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Label table (.csv) to write: the labels of the run and the answers. The page is not started.",
        ),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The image folder, if it was moved after training.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the reviewer, stored with each answer. It can be changed on the page.",
            show_default="your login name",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. With the default, only this machine can open the page. 0.0.0.0 lets other "
            "machines of the network open it, too; the connection is not encrypted.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="Port to listen on.", show_default="8765, or the next free"),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file given with --export.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Review the predictions of a run in the browser, the most useful images first.

    An answer is yes, no or unknown for one tag of an image. Each answer is saved at once, in RUN/review. The images
    come in the order of 'tagspread suggest': about three of ten are drawn at random, for 'tagspread audit'. To use the
    answers, train again with --answers RUN, or write them to a label table with --export. The first start scores the
    unlabeled images. The page needs the extra 'review': pip install '.[review]' in the source tree.

    Examples:
    $ tagspread review run
    $ tagspread review run --export labels.csv
    $ tagspread train photos --labels old.csv --answers run --out run2
    """
    if export is not None:
        _export(run, export, images, overwrite)
        return
    if overwrite:
        raise TagspreadError("--overwrite is used with --export FILE only; give that as well.")

    import webbrowser

    from tagspread.review.prepare import ensure_index
    from tagspread.review.server import check_installed, serve

    check_installed()
    try:
        index = ensure_index(run, images, device=device, quiet=quiet)
        serve(run, index, host=host, port=port, user=user, say=say, opened=webbrowser.open if open_ else None)
    except KeyboardInterrupt:
        say("stopped", error=True)
        raise typer.Exit(130) from None


def _export(run: Path, out: Path, images: Path | None, overwrite: bool) -> None:
    from tagspread.predict.tables import check_output
    from tagspread.review.table import export_answers

    check_output(out, overwrite, (".csv",))
    exported = export_answers(run, out, images=images, overwrite=overwrite)
    reviewed = f"{counted(exported.answered, 'reviewed image')} with {counted(exported.answers, 'answer')}"
    say(
        f"{out}: {counted(exported.labeled, 'labeled image')} of the run and {reviewed}; to train on it, use --labels "
        f"{out}"
    )
    if exported.new_tags:
        say(f"note: new tags, unknown (blank) for the run's labeled images: {', '.join(exported.new_tags)}")
    for note in exported.notes:
        say(f"note: {note}")
