"""``tagspread train``: train a tagger on labeled and unlabeled images, or resume a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagspread.aliases import JsonObject
from tagspread.cli.common import (
    Delimiter,
    Ignore,
    ImageColumn,
    Outside,
    Overwrite,
    Quiet,
    TagsColumn,
    may_be_stopped,
    read_settings,
    say,
    table_options,
)
from tagspread.errors import TagspreadError

if TYPE_CHECKING:
    from tagspread.train.trainer import Run


def train(
    images: Annotated[
        Path | None,
        typer.Argument(help="Folder with the labeled and unlabeled images; with --resume only if it was moved."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Tags of the labeled images: CSV, TSV, Parquet, JSON lines or Label Studio export."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the run to.")] = None,
    test_labels: Annotated[
        Path | None, typer.Option(help="Tags of the test images, in one of the same formats.")
    ] = None,
    test_share: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of the labeled images to hold out for testing.")
    ] = None,
    delimiter: Delimiter = "|",
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method listed by `tagspread methods`, or FILE.py:CLASS, which executes that file; by default cap. "
            "To --resume a run with such a file, name it again."
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Settings to start from: default (recommended) or paper (as published).")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="What to train: full (the whole network), head (network frozen; no GPU needed) or auto."),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Network: small, resnet50_v1 or any timm model.")] = None,
    weights: Annotated[str | None, typer.Option(help="Initial weights: pretrained, none or a file.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs on labeled and unlabeled images, after the warm-up.")
    ] = None,
    warmup_epochs: Annotated[int | None, typer.Option(help="Warm-up epochs, on labeled images only.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images per training step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    image_size: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Images are resized to this height and width.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Other training setting, such as ema_decay=0.99. Repeatable."),
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that caches decoded images and features.")] = None,
    device: Annotated[str, typer.Option(help="Device to run on: auto, cpu or cuda.")] = "auto",
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume the run in this folder.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    keep_better: Annotated[
        bool,
        typer.Option(
            "--keep-better", help="Keep the labeled-only model if the unlabeled images made the tagger worse."
        ),
    ] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train a tagger on a few labeled and many unlabeled images.

    Training settings that are not given take the values of --preset.
    """
    from tagspread.api import train as run_train
    from tagspread.methods.from_file import is_from_file

    given = {
        "backbone": backbone, "weights": weights, "epochs": epochs, "warmup_epochs": warmup_epochs, "batch": batch,
        "lr": lr, "image_size": image_size, "seed": seed, "method": method, "preset": preset, "mode": mode,
    }  # fmt: skip
    settings = {name: value for name, value in given.items() if value is not None} | read_settings(set_ or [])
    if resume is not None:
        if settings.keys() - {"method"} or overwrite or cache or out or labels or test_labels or test_share is not None:
            raise TagspreadError(
                "--resume continues a run with its own settings and data; leave out all other settings. Give IMAGES "
                "only if the image folder was moved, and --method only for a method of your own."
            )
        if _already_finished(resume):
            return
        arguments = _of_run(resume, images, method)
    else:
        required = {"the folder of images": images, "--labels FILE": labels, "--out RUN": out}
        if missing := [name for name, value in required.items() if value is None]:
            raise TagspreadError(
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; write tagspread train IMAGES "
                "--labels FILE --out RUN, or tagspread train --resume RUN."
            )
        options = table_options(delimiter, image_column, tags_column, ignore, allow_outside)
        arguments = settings | {
            "images": images,
            "labels": labels,
            "out": out,
            "test_labels": test_labels,
            "test_share": test_share,
            "table_options": options,
            "cache": cache,
        }
    again = f" --method {shlex.quote(method)}" if method is not None and is_from_file(method) else ""
    with may_be_stopped(f"stopped and saved; resume with: tagspread train --resume {{}}{again}"):
        keep_better |= arguments.pop("keep_better", False)
        run = run_train(
            device=device,
            overwrite=overwrite,
            resume=resume is not None,
            quiet=quiet,
            tensorboard=tensorboard,
            keep_better=keep_better,
            **arguments,
        )
    _report(run)


def _already_finished(folder: Path) -> bool:
    """Print the results of a run that is already finished; its images need not exist."""
    from tagspread.run.artifact import check_resumable
    from tagspread.run.folder import RunFolder
    from tagspread.train.trainer import ALREADY_FINISHED, finished_run

    RunFolder(folder).check_idle()
    check_resumable(folder)
    if (run := finished_run(folder)) is None:
        return False
    say(ALREADY_FINISHED.format(folder))
    _report(run)
    return True


def _report(run: Run) -> None:
    """Print the mAP of the tagger, and whether the unlabeled images improved it."""
    from tagspread.core.bootstrap import rare_classes_warning
    from tagspread.run.artifact import read_artifact
    from tagspread.train.decision import decision_in_words
    from tagspread.train.finalize import gain_in_words

    say(f"done: {run.path}")
    facts = read_artifact(run.path).facts
    say(decision_in_words(facts))
    if (gain := gain_in_words(run.metrics)) is not None:
        say(gain)
    for part in ("test", "held_out"):
        if part in run.metrics and run.metrics[part]["mAP"] is not None:
            low, high = run.metrics[part]["interval_90"]
            interval = f"90 % interval {100 * low:.1f} to {100 * high:.1f}"
            say(f"{part.replace('_', '-')} mAP {100 * run.metrics[part]['mAP']:.1f} ({interval})")
            few = run.metrics[part].get("classes_with_few_positives", 0)  # missing in older runs
            if (warning := rare_classes_warning(few, len(facts["classes"]))) is not None:
                say(f"note: {warning}")
    if "warning" in run.metrics:
        say(f"note: {run.metrics['warning']}")


def _of_run(folder: Path, images: Path | None, method: str | None) -> JsonObject:
    """Return the arguments to resume a run with, from its record; tables and image folder are not read again.

    Args:
        folder: the run's folder.
        images: the folder of images, if it was moved.
        method: the method that the user named again.
    """
    from tagspread.run.config import RunConfig
    from tagspread.run.split import has_split
    from tagspread.train.config import TrainConfig

    config = RunConfig.read(folder)
    TrainConfig.check_names(config.settings)  # nothing but settings: no other argument of ts.train
    _check_method(folder, str(config.settings.get("method", "")), method)
    data = config.data
    arguments: JsonObject = {"images": images, "labels": None, "cache": data.cache}
    if not has_split(folder):  # stopped before its split was written: nothing is trained yet
        if data.images is None:
            raise TagspreadError(
                f"{folder} was started from Python with its own data; resume it there, with resume=True."
            )
        arguments |= {"images": images or data.images, "labels": data.labels, "test_labels": data.test_labels}
        arguments |= {"test_share": data.test_share, "table_options": data.table_options}
    return arguments | config.settings | {"out": folder, "keep_better": config.keep_better}


def _check_method(folder: Path, recorded: str, given: str | None) -> None:
    """Raise unless the user named the Python file that resuming would execute: a run may come from somebody else.

    Args:
        folder: the run's folder.
        recorded: the method that its ``config.json`` names.
        given: the method that the user named, if any.
    """
    from tagspread.methods.from_file import is_from_file, is_same_file

    if is_from_file(recorded):
        if given is None:
            raise TagspreadError(
                f"resuming {folder} would execute the Python file of its method, {recorded}. If you trust that file, "
                f"name it: tagspread train --resume {folder} --method {shlex.quote(recorded)}"
            )
        if not is_same_file(given, recorded):
            raise TagspreadError(
                f"--method names {given}, but the method of {folder} is in {recorded}; nothing was executed. Give that "
                "file, or start a new run in another folder."
            )
    elif given is not None and given != recorded:
        raise TagspreadError(
            f"the method of {folder} is {recorded!r}; a run is resumed with its own method, so leave out --method."
        )
