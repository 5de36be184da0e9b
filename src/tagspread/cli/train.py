"""``tagspread train``: train a tagger on labeled and unlabeled images, or resume a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagspread.aliases import JsonObject
from tagspread.cli.common import (
    TABLE_FORMATS,
    BlankRows,
    Delimiter,
    Device,
    Ignore,
    ImageColumn,
    Outside,
    Overwrite,
    Quiet,
    TagsColumn,
    TestLabels,
    may_be_stopped,
    read_settings,
    say,
    table_options,
)
from tagspread.cli.failures import one_message
from tagspread.errors import TagspreadError
from tagspread.progress import times_in_words

if TYPE_CHECKING:
    from tagspread.train.trainer import Run


TRAINING = "Training settings"


def train(
    images: Annotated[
        Path | None,
        typer.Argument(
            metavar="IMAGES",
            help="Folder with the labeled and unlabeled images. Required, except with --resume: then give it only if "
            "the folder was moved.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Label table of the labeled images: {TABLE_FORMATS}. Required, except with --resume.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Folder to write the run to. Required, except with --resume."),
    ] = None,
    test_labels: TestLabels = None,
    test_share: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of the labeled images to use as test images, such as 0.2."),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Run that was reviewed with 'tagspread review'. The answers are added to the labels of --labels, and "
            "replace them where both exist.",
        ),
    ] = None,
    priors: Annotated[
        str | None,
        typer.Option(
            metavar="audit",
            help="Class frequencies for CAP. 'audit' estimates them from the randomly drawn images that were reviewed; "
            "it needs --answers. See 'tagspread audit'.",
            show_default="the class frequencies of the labeled images",
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Earlier run to compare with. The new run has the same test images. After training, the difference "
            "between the two runs is printed.",
        ),
    ] = None,
    delimiter: Delimiter = None,
    image_column: ImageColumn = None,
    tags_column: TagsColumn = None,
    ignore: Ignore = None,
    allow_outside: Outside = False,
    blank: BlankRows = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Base settings: default (recommended) or paper (those of the CAP paper).",
            show_default="default",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method for the unlabeled images: a name listed by 'tagspread methods', or FILE.py:CLASS for a "
            "method of your own. That file is executed. To resume a run with such a file, give --method again.",
            show_default="cap",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="What to train: full (the whole network), head (a linear head on the frozen network; no GPU needed), "
            "or auto (head if there is no GPU and the network is pretrained; otherwise full). If you give an option "
            "that head does not use, such as --epochs or --lr, auto becomes full.",
            show_default="auto; preset paper: full",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Network: resnet50, any other model of the timm library, resnet50_v1 (the CAP paper's ResNet-50, with "
            "--weights FILE), or small (a tiny untrained network, for the demo).",
            show_default="resnet50",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="WEIGHTS",
            help="Initial weights: pretrained, none, or a .safetensors or .pth file.",
            show_default="pretrained",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            help="Height and width to which images are resized.",
            show_default="288 for resnet50; preset paper: 224",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    warmup_epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Warm-up epochs, on labeled images only.",
            show_default="0, because the head is fitted on features of the frozen network; preset paper: 12",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Epochs on labeled and unlabeled images, after the warm-up.",
            show_default="9; preset paper: 28",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Images per training step, labeled and unlabeled together.",
            show_default="64",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Learning rate.",
            show_default="3e-05, last layer 1e-04; preset paper: 1e-04",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Random seed.", show_default="1", rich_help_panel=TRAINING),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other training setting, such as ema_decay=0.99. Repeatable. The API reference "
            "lists all settings under TrainConfig.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Time budget, such as 90s, 10m or 1h30m. Settings that fit the budget on this machine are chosen, and "
            "training ends in time. Settings that you give are not changed.",
        ),
    ] = None,
    quality: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="fast (a first result: a head on the frozen network, at most 224 pixels, at most 2,000 unlabeled "
            "images), good (the default settings), or best (the whole network, also without a GPU).",
            show_default="good",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder in which to cache decoded images and features; other runs reuse it."),
    ] = None,
    device: Device = "auto",
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Resume the run in this folder, with its own settings and data."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard logs to the run folder.")
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Model to predict with: better (the model trained with the unlabeled images, unless the labeled-only "
            "model has a higher mAP on the held-out or test images, and the 90 % interval of the difference excludes "
            "0) or last (always the model trained with the unlabeled images).",
            show_default="better",
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train a tagger on a few labeled and many unlabeled images.

    The label table has either the columns image and tags, with the tags joined by | (a tag that is not listed is
    absent), or one column per tag, with 1, 0, or blank for unknown. The images of the folder that are not in the table
    form the unlabeled set. Training settings that you do not set come from --preset.

    Examples:
    $ tagspread train photos --labels labels.csv --test-share 0.2 --out run
    $ tagspread train --resume run
    """
    from tagspread.api import train as run_train
    from tagspread.methods.from_file import is_from_file
    from tagspread.train.distributed import joined

    given = {
        "backbone": backbone, "weights": weights, "epochs": epochs, "warmup_epochs": warmup_epochs, "batch": batch,
        "lr": lr, "image_size": image_size, "seed": seed, "method": method, "preset": preset, "mode": mode,
    }  # fmt: skip
    settings = {name: value for name, value in given.items() if value is not None} | read_settings(set_ or [])
    if resume is not None:
        sources = (out, labels, test_labels, answers, priors, compare, cache, quality)
        if settings.keys() - {"method"} or overwrite or any(sources) or test_share is not None:
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
            example = ", such as --out run" if out is None else ""
            raise TagspreadError(
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; write tagspread train IMAGES "
                f"--labels FILE --out RUN{example}, or tagspread train --resume RUN."
            )
        options = table_options(delimiter, image_column, tags_column, ignore, allow_outside, blank)
        arguments = settings | {
            "images": images,
            "labels": labels,
            "out": out,
            "test_labels": test_labels,
            "test_share": test_share,
            "answers": answers,
            "priors": priors,
            "compare": compare,
            "table_options": options,
            "cache": cache,
        }
    again = f" --method {shlex.quote(method)}" if method is not None and is_from_file(method) else ""
    with (
        may_be_stopped(f"stopped and saved; resume with: tagspread train --resume {{}}{again}"),
        joined() as processes,
        one_message(),
    ):
        keep = keep or arguments.pop("keep", None)
        run = run_train(
            device=device,
            overwrite=overwrite,
            resume=resume is not None,
            quiet=quiet,
            tensorboard=tensorboard,
            keep=keep,
            time=time,
            quality=quality,
            **arguments,
        )
    if processes.is_first:
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
    if "timings" in run.metrics:
        say(f"it took {times_in_words(run.metrics['timings'])}")
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
    if "stopped_early" in run.metrics:
        say(f"note: {run.metrics['stopped_early']}; the model is usable, more time may improve it")
    if "kept" in run.metrics:
        say(f"note: the run predicts with {run.metrics['kept']}")
    if "warning" in run.metrics:
        say(f"note: {run.metrics['warning']}")
    _compare(run.path)


def _compare(path: Path) -> None:
    """Print the difference from the earlier run that --compare named, if there is one."""
    from tagspread.cli.compare import show_comparison
    from tagspread.predict.comparison import compare_runs
    from tagspread.run.config import RunConfig

    if (earlier := RunConfig.read(path).data.compare) is None:
        return
    try:
        show_comparison(compare_runs(earlier, path))
    except TagspreadError as error:  # the run itself is finished
        say(f"note: not compared with {earlier}: {error.on_command_line}")


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
        arguments |= {"test_share": data.test_share, "table_options": data.table_options, "answers": data.answers}
        arguments |= {"compare": data.compare}
    return arguments | config.settings | {"out": folder, "keep": config.keep}


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
