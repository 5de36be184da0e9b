"""``tagspread bench``: reproduce the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tagspread.cli.common import Command, Device, Quiet, may_be_stopped, read_settings
from tagspread.errors import TagspreadError

MANY = {
    "--methods": "cap topk",
    "--p": "0.05 0.1",
    "--seeds": "1 2",
}  # options that take several values, with an example
Number = TypeVar("Number", int, float)


class ManyValues(Command):
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
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Dataset: voc, coco, nus or demo.")],
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the dataset; the guide 'Tables and datasets' lists the files in it. Not needed for demo.",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME ...",
            help="Methods to compare, such as: bce cap. 'tagspread methods' lists them. For a method of your own, give "
            "FILE.py:CLASS.",
            show_default="all",
        ),
    ] = None,
    p: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE ...",
            help="Labeled shares: which part of the training images is labeled, such as 0.05 0.1.",
            show_default="0.05 0.1 0.15 0.2; demo: 0.05",
        ),
    ] = None,
    seeds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N ...",
            help="Random seeds for the split and the training, such as 1 2 3.",
            show_default="1 2 3; demo: 1 2",
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(metavar="NAME", help="Base settings: paper (those of the CAP paper) or default."),
    ] = "paper",
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Network: resnet50, any other model of the timm library, resnet50_v1 (the CAP paper's ResNet-50, with "
            "--weights FILE), or small (a tiny untrained network, for the demo).",
            show_default="resnet50; demo: small",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="WEIGHTS",
            help="Initial weights: pretrained, none, or a .safetensors or .pth file.",
            show_default="pretrained",
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS", help="Height and width to which images are resized.", show_default="set by the preset"
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other training setting, such as epochs=4, for all cells. Repeatable. The API reference lists "
            "all settings under TrainConfig.",
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run a study instead of the comparison: 'eta' varies the shares of pseudo-labels that CAP uses "
            "(keep_pos and keep_neg); 'thresholds' runs the methods iat and plc, which use fixed thresholds, with "
            "thresholds chosen on held-out labeled images.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0, metavar="MINUTES", help="Time limit. Cells that would exceed it are not started."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write the results to.", show_default="bench-DATASET"),
    ] = None,
    canvases: Annotated[
        int, typer.Option(min=100, metavar="N", help="Number of training images of the demo dataset.")
    ] = 1200,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder in which to cache decoded images. Other benchmarks can share it."),
    ] = None,
    device: Device = "auto",
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep the models of finished cells.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells that would run, without training.")
    ] = False,
    tables_only: Annotated[
        bool,
        typer.Option("--tables-only", help="Rebuild tables and charts from the results in --out, without training."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the experiments of the CAP paper (NeurIPS 2023): compare methods on a benchmark dataset.

    The command trains each method for each labeled share and each random seed. One such training run is called a cell.
    It writes the results, tables and charts to --out. To resume, run the same command again. Exit code 1 means that at
    least one cell failed.

    Example:
    $ tagspread bench demo --methods bce cap --p 0.05 --seeds 1 2 3
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
