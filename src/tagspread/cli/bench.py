"""``tagspread bench``: repeat the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from tagspread.cli.common import Quiet, may_be_stopped, read_settings
from tagspread.errors import TagspreadError

MANY = {"--methods": "cap topk", "--p": "0.05 0.1", "--seeds": "1 2"}  # with examples
Number = TypeVar("Number", int, float)


class ManyValues(TyperCommand):
    """A command of which some options take all values that follow: ``--p 0.05 0.1`` is ``--p 0.05 --p 0.1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write the option's name before each of its values, then parse as always."""
        return super().parse_args(ctx, spread(args))


def spread(args: list[str]) -> list[str]:
    """Repeat the name of an option before each of its values.

    >>> spread(["voc", "--p", "0.05", "0.1", "--quiet"])
    ['voc', '--p', '0.05', '--p', '0.1', '--quiet']
    """
    from tagspread.data.datasets import DATASETS

    plain: list[str] = []
    option, fresh = None, False
    for word in args:
        if fresh and word.startswith("--"):
            raise _nothing_given(str(option))
        if word.startswith("-") or (word in DATASETS and not fresh):
            option = word if word in MANY else None
            fresh = option is not None
            plain.append(word)
        elif option is not None and not fresh:
            plain += [option, word]
        else:
            plain.append(word)
            fresh = False
    return plain


def bench(
    dataset: Annotated[str, typer.Argument(help="voc, coco, nus, demo or another of docs/guides/data.md.")],
    root: Annotated[Path | None, typer.Option(help="Folder of the data set; see docs/guides/data.md.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="all, or names as in `tagspread methods`.")] = None,
    p: Annotated[list[str] | None, typer.Option(help="Labeled shares, such as 0.05 0.1.")] = None,
    seeds: Annotated[list[str] | None, typer.Option(help="Seeds of split and training, such as 1 2 3.")] = None,
    preset: Annotated[str, typer.Option(help="paper or default.")] = "paper",
    backbone: Annotated[str | None, typer.Option(help="small, resnet50_v1 or any timm name.")] = None,
    weights: Annotated[str | None, typer.Option(help="pretrained, none or a file.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side to which images are resized.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, such as epochs=4.")
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="Instead of a table. eta: CAP over the reliable interval; thresholds: IAT and PLC with the threshold "
            "that held-out labels choose."
        ),
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="Minutes; no cell is begun that would not end.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; bench-DATASET if not given.")] = None,
    canvases: Annotated[int, typer.Option(min=100, help="Training canvases of the demo.")] = 1200,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded images.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep the networks of finished cells.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Only make tables and charts from the results in --out.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiments: a grid of methods, labeled shares and seeds; then tables and charts.

    Call it again with the same --out and it goes on where it was. Exit code 1 if a cell failed.
    """
    from tagspread.bench.run import Request, run_bench
    from tagspread.progress import Watcher

    given = {"backbone": backbone, "weights": weights, "image_size": image_size}
    settings = {name: value for name, value in given.items() if value is not None} | read_settings(set_ or [])
    for name in ("method", "seed"):
        if name in settings:
            raise TagspreadError(f"--set {name}: a grid has several; give --{name}s.")
    folder = out or Path(f"bench-{dataset}")
    request = Request(
        dataset=dataset, out=folder, root=root, preset=preset, study=study, settings=settings, canvases=canvases,
        methods=words("--methods", methods), shares=numbers("--p", p, float), seeds=numbers("--seeds", seeds, int),
        cache=cache, device=device, budget=budget, keep_models=keep_models, retry_failed=retry_failed, dry_run=dry_run,
        tables_only=tables_only,
    )  # fmt: skip
    goes_on = "stopped; what was done is kept, and the same command goes on"
    with may_be_stopped(goes_on, before_saving=goes_on):
        failed = run_bench(request, Watcher(quiet))
    if failed:
        raise typer.Exit(1)


def words(option: str, given: list[str] | None) -> tuple[str, ...] | None:
    """Return values that may also be written as one text, with commas or blanks between; None if there is no option.

    >>> words("--methods", ["cap,topk", "iat"])
    ('cap', 'topk', 'iat')
    """
    found = tuple(word for text in given or [] for word in text.replace(",", " ").split())
    if given and not found:  # an empty shell variable, say, which must not stand for everything
        raise _nothing_given(option)
    return found or None


def _nothing_given(option: str) -> TagspreadError:
    return TagspreadError(f"{option}: no value is given; write, for example, {option} {MANY[option]}.")


def numbers(option: str, given: list[str] | None, kind: type[Number]) -> tuple[Number, ...] | None:
    """Return values as numbers."""
    try:
        found = tuple(kind(word) for word in words(option, given) or ())
    except ValueError:
        wanted = {int: "whole numbers", float: "numbers"}[kind]
        raise TagspreadError(
            f"{option} {' '.join(given or [])}: give {wanted}, such as {option} {MANY[option]}."
        ) from None
    return found or None
