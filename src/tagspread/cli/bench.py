"""``tagspread bench``: reproduce the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from tagspread.cli.common import Quiet, may_be_stopped, read_settings
from tagspread.errors import TagspreadError

MANY = {
    "--methods": "cap topk",
    "--p": "0.05 0.1",
    "--seeds": "1 2",
}  # options that take several values, with an example
Number = TypeVar("Number", int, float)


class ManyValues(TyperCommand):
    """A command with options that take several values: ``--p 0.05 0.1`` is ``--p 0.05 --p 0.1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option's name before each of its values, then parse as usual."""
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
            raise _no_value(str(option))
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
    dataset: Annotated[
        str, typer.Argument(help="Dataset: voc, coco, nus, demo or another one in docs/guides/data.md.")
    ],
    root: Annotated[Path | None, typer.Option(help="Folder with the dataset; see docs/guides/data.md.")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME ...", help="Methods to compare: all, or names listed by `tagspread methods`."),
    ] = None,
    p: Annotated[
        list[str] | None, typer.Option(metavar="SHARE ...", help="Shares of labeled images, such as 0.05 0.1.")
    ] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(metavar="N ...", help="Seeds for the split and the training, such as 1 2 3.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Settings to start from: paper (as published) or default.")] = "paper",
    backbone: Annotated[str | None, typer.Option(help="Network: small, resnet50_v1 or any timm model.")] = None,
    weights: Annotated[str | None, typer.Option(help="Initial weights: pretrained, none or a file.")] = None,
    image_size: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Images are resized to this height and width.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Other training setting, such as epochs=4. Repeatable."),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="Run a study instead of the comparison: eta varies the share of pseudo-labels that CAP keeps; "
            "thresholds runs IAT and PLC with thresholds chosen on held-out labels."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0, metavar="MINUTES", help="Time limit; cells that would exceed it are not started."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default bench-DATASET.")] = None,
    canvases: Annotated[int, typer.Option(min=100, metavar="N", help="Training images of the dataset demo.")] = 1200,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded images.")] = None,
    device: Annotated[str, typer.Option(help="Device to run on: auto, cpu or cuda.")] = "auto",
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep the models of finished cells.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells that would run, and exit.")] = False,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Recreate tables and charts from the results in --out.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the paper's experiments: compare methods over shares of labeled images and seeds.

    Writes tables and charts. Each combination of a method, a share and a seed is a cell. Run the command again with the
    same --out to resume. The exit code is 1 if a cell failed.
    """
    from tagspread.bench.run import Request, run_bench
    from tagspread.progress import Watcher

    given = {"backbone": backbone, "weights": weights, "image_size": image_size}
    settings = {name: value for name, value in given.items() if value is not None} | read_settings(set_ or [])
    for name in ("method", "seed"):
        if name in settings:
            raise TagspreadError(f"--set {name}: a benchmark compares several; use --{name}s instead.")
    folder = out or Path(f"bench-{dataset}")
    request = Request(
        dataset=dataset, out=folder, root=root, preset=preset, study=study, settings=settings, canvases=canvases,
        methods=split_values("--methods", methods), shares=numbers("--p", p, float),
        seeds=numbers("--seeds", seeds, int), cache=cache, device=device, budget=budget,
        keep_models=keep_models, retry_failed=retry_failed, dry_run=dry_run, tables_only=tables_only,
    )  # fmt: skip
    message = "stopped; finished cells are kept. Run the same command again to resume."
    with may_be_stopped(message, before_saving=message):
        failed = run_bench(request, Watcher(quiet))
    if failed:
        raise typer.Exit(1)


def split_values(option: str, given: list[str] | None) -> tuple[str, ...] | None:
    """Split values that are joined by commas or spaces; None if the option was not given.

    >>> split_values("--methods", ["cap,topk", "iat"])
    ('cap', 'topk', 'iat')
    """
    values = tuple(value for text in given or [] for value in text.replace(",", " ").split())
    if given and not values:  # such as an empty shell variable, which must not mean "all"
        raise _no_value(option)
    return values or None


def _no_value(option: str) -> TagspreadError:
    return TagspreadError(f"{option} has no value; write, for example, {option} {MANY[option]}.")


def numbers(option: str, given: list[str] | None, kind: type[Number]) -> tuple[Number, ...] | None:
    """Return the values of an option as numbers; None if it was not given."""
    try:
        values = tuple(kind(value) for value in split_values(option, given) or ())
    except ValueError:
        expected = {int: "whole numbers", float: "numbers"}[kind]
        raise TagspreadError(
            f"{option} {' '.join(given or [])}: give {expected}, such as {option} {MANY[option]}."
        ) from None
    return values or None
