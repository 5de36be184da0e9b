"""``tagspread train``: train a tagger, or continue a run."""

from __future__ import annotations

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
        Path | None, typer.Argument(help="Folder of images, tagged and unlabeled; with --resume only if it was moved.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="CSV, TSV, Parquet, JSON lines or Label Studio export with the tags of some.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run.")] = None,
    test_labels: Annotated[Path | None, typer.Option(help="The same with tags to evaluate on.")] = None,
    test_share: Annotated[float | None, typer.Option(help="Put this share of the tagged aside to test on.")] = None,
    delimiter: Delimiter = "|",
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    method: Annotated[str | None, typer.Option(help="See `tagspread methods`; cap if not given.")] = None,
    preset: Annotated[str | None, typer.Option(help="default or paper.")] = None,
    mode: Annotated[str | None, typer.Option(help="full, head (the network is frozen; no GPU needed) or auto.")] = None,
    backbone: Annotated[str | None, typer.Option(help="small, resnet50_v1 or any timm name.")] = None,
    weights: Annotated[str | None, typer.Option(help="pretrained, none or a file.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs with the unlabeled set.")] = None,
    warmup_epochs: Annotated[int | None, typer.Option(help="Epochs on the labeled part before.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side to which images are resized.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, such as ema_decay=0.99.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded images and features.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    keep_better: Annotated[
        bool, typer.Option("--keep-better", help="Keep the model without the unlabeled images if it is better.")
    ] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train a tagger on a few tagged images and many unlabeled ones."""
    from tagspread.api import train as run_train

    given = {
        "backbone": backbone, "weights": weights, "epochs": epochs, "warmup_epochs": warmup_epochs, "batch": batch,
        "lr": lr, "image_size": image_size, "seed": seed, "method": method, "preset": preset, "mode": mode,
    }  # fmt: skip
    settings = {name: value for name, value in given.items() if value is not None} | read_settings(set_ or [])
    if resume is not None:
        if settings or overwrite or cache or out or labels or test_labels or test_share is not None:
            raise TagspreadError(
                "--resume continues the run as it was started; give no other setting or data. IMAGES may be given "
                "if the folder of images was moved."
            )
        if _already_finished(resume):
            return
        arguments = _of_run(resume, images)
    else:
        if images is None or labels is None or out is None:
            raise TagspreadError("give the folder of images, --labels FILE and --out RUN; or --resume RUN.")
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
    with may_be_stopped("stopped and saved; resume with: tagspread train --resume {}"):
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
    _tell(run)


def _already_finished(folder: Path) -> bool:
    """Print a message if a run is already finished; its images need not exist for that."""
    from tagspread.run.artifact import check_resumable
    from tagspread.run.folder import RunFolder
    from tagspread.train.trainer import ALREADY_FINISHED, finished_run

    RunFolder(folder).check_idle()
    check_resumable(folder)
    if (run := finished_run(folder)) is None:
        return False
    say(ALREADY_FINISHED.format(folder))
    _tell(run)
    return True


def _tell(run: Run) -> None:
    """Say how good the tagger is, and whether the unlabeled images had a part in that."""
    from tagspread.core.bootstrap import rare_classes_warning
    from tagspread.run.artifact import read_artifact
    from tagspread.train.decision import decision_in_words
    from tagspread.train.gain import gain_in_words

    say(f"done: {run.path}")
    facts = read_artifact(run.path).facts
    say(decision_in_words(facts))
    if (words := gain_in_words(run.metrics)) is not None:
        say(words)
    for part in ("test", "held_out"):
        if part in run.metrics and run.metrics[part]["mAP"] is not None:
            low, high = run.metrics[part]["interval_90"]
            figure = f"mAP {100 * run.metrics[part]['mAP']:.1f} (90 % interval {100 * low:.1f} to {100 * high:.1f})"
            say(f"{part} {figure}")
            few = run.metrics[part].get("classes_with_few_positives", 0)  # which older runs do not say
            if (words := rare_classes_warning(few, len(facts["classes"]))) is not None:
                say(f"note: {words}")
    if "warning" in run.metrics:
        say(f"note: {run.metrics['warning']}")


def _of_run(folder: Path, images: Path | None) -> JsonObject:
    """Return what a run was started with, from its record: neither the tables nor the folder are looked through.

    Args:
        folder: of the run.
        images: the folder of images, if it was moved.
    """
    from tagspread.run.config import RunConfig
    from tagspread.run.split import has_split

    config = RunConfig.read(folder)
    data = config.data
    arguments: JsonObject = {"images": images, "labels": None, "cache": data.cache}
    if not has_split(folder):  # it was stopped before it had written its split: nothing has been trained
        if data.images is None:
            raise TagspreadError(
                f"{folder} was started from Python with its own data; resume it there, with resume=True."
            )
        arguments |= {"images": images or data.images, "labels": data.labels, "test_labels": data.test_labels}
        arguments |= {"test_share": data.test_share, "table_options": data.table_options}
    return arguments | config.settings | {"out": folder, "keep_better": config.keep_better}
