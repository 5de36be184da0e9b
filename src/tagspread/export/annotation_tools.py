"""Export pseudo-labels to the annotation tools Label Studio and FiftyOne.

Label Studio reads tasks with predictions, the least certain first. Its export of corrected annotations is a label table
that ``--labels`` accepts. FiftyOne reads a ``labels.json`` with labels and confidences per image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from tagspread.aliases import JsonObject
from tagspread.errors import TagspreadError
from tagspread.files import write_text
from tagspread.predict.tables import check_output
from tagspread.run.pseudo_labels import PseudoLabeledImage

LOCAL_FILES = "/data/local-files/?d="  # URL prefix under which Label Studio serves local images
ESCAPED = "backslashreplace"  # JSON escapes for bytes of file names that are not UTF-8
CONTROL, OBJECT = "tags", "image"  # names of the choices and of the image in the labeling interface


def label_studio_tasks(
    images: Sequence[PseudoLabeledImage], model: str, *, prefix: str = LOCAL_FILES, most: int | None = None
) -> list[JsonObject]:
    """Return Label Studio tasks with the pseudo-labels as predictions, the least certain first.

    Args:
        images: the pseudo-labels.
        model: name of the model in Label Studio.
        prefix: prefix that turns an image's name into its URL.
        most: maximum number of tasks.

    >>> label_studio_tasks([PseudoLabeledImage("a b.jpg", [])], "run")[0]["data"]
    {'image': '/data/local-files/?d=a%20b.jpg', 'file_name': 'a b.jpg'}
    """
    _check_files(images)
    return [
        {
            # the name is stored next to the URL, so that reading the corrections needs no parsing of URLs
            "data": {"image": prefix + quote(image.name, errors="surrogateescape"), "file_name": image.name},
            "predictions": [{"model_version": model, "score": round(image.certainty, 6), "result": _results(image)}],
        }
        for image in sorted(images, key=lambda image: image.certainty)[:most]
    ]


def _results(image: PseudoLabeledImage) -> list[JsonObject]:
    """Return the selected choices; an empty list if no tag is positive."""
    choices = {"choices": [entry.tag for entry in image.given]}
    annotation = {"from_name": CONTROL, "to_name": OBJECT, "type": "choices", "value": choices}
    return [annotation] if image.given else []


def _check_files(images: Sequence[PseudoLabeledImage]) -> None:
    if images and re.fullmatch(r"number \d+", images[0].name):
        raise TagspreadError(
            "the run was trained on arrays, so other programs cannot find its images; train on image files to export."
        )


def labeling_interface(classes: Sequence[str]) -> str:
    """Return the labeling interface for the tasks, to paste into the settings of the Label Studio project.

    >>> print(labeling_interface(["cats & dogs"]))
    <View>
      <Image name="image" value="$image"/>
      <Choices name="tags" toName="image" choice="multiple">
        <Choice value="cats &amp; dogs"/>
      </Choices>
    </View>
    <BLANKLINE>
    """
    choices = "".join(f"    <Choice value={quoteattr(name)}/>\n" for name in classes)
    return (
        f'<View>\n  <Image name="{OBJECT}" value="$image"/>\n'
        f'  <Choices name="{CONTROL}" toName="{OBJECT}" choice="multiple">\n{choices}  </Choices>\n</View>\n'
    )


def fiftyone_labels(images: Sequence[PseudoLabeledImage], classes: Sequence[str]) -> JsonObject:
    """Return the ``labels.json`` of a FiftyOneImageClassificationDataset: labels by image name without suffix.

    >>> from tagspread.run.pseudo_labels import Entry
    >>> fiftyone_labels([PseudoLabeledImage("sub/a.jpg", [Entry("cat", 1.0, 0.9, 3, 0)])], ["cat", "dog"])["labels"]
    {'sub/a': [{'label': 0, 'confidence': 0.9, 'attributes': {'rank': 3, 'flips': 0}}]}
    """
    _check_files(images)
    number = {name: k for k, name in enumerate(classes)}
    if foreign := {entry.tag for image in images for entry in image.given} - number.keys():
        raise TagspreadError(
            f"the pseudo-labels have the tag {min(foreign)!r}, which the run does not have; were its files changed?"
        )
    labels: JsonObject = {}
    for image in images:
        key = PurePosixPath(image.name).with_suffix("").as_posix()
        if key in labels:
            raise TagspreadError(
                f"{image.name} and another image differ only in the suffix, which FiftyOne ignores; rename one of them."
            )
        labels[key] = [
            {
                "label": number[entry.tag],
                "confidence": entry.score,
                "attributes": {"rank": entry.rank, "flips": entry.flips},
            }
            for entry in image.given
        ]
    return {"classes": list(classes), "labels": labels}


def write_label_studio(
    file: Path,
    images: Sequence[PseudoLabeledImage],
    classes: Sequence[str],
    run: str,
    prefix: str | None,
    most: int | None,
) -> int:
    """Write the labeling interface and, last, the tasks beside it; return how many tasks."""
    tasks = label_studio_tasks(images, f"tagspread {run}", prefix=LOCAL_FILES if prefix is None else prefix, most=most)
    interface = labeling_interface(classes)
    if not _holds(interface_file(file), interface):
        write_text(interface_file(file), interface, errors=ESCAPED)
    write_text(file, as_json(tasks), errors=ESCAPED)
    return len(tasks)


def check_interface(tasks: Path, classes: Sequence[str], overwrite: bool) -> None:
    """Raise if another file is where the labeling interface of tasks is to be written; the same one may be."""
    file = interface_file(tasks)
    if not _holds(file, labeling_interface(classes)):
        check_output(file, overwrite, ())


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_bytes() == text.encode("utf-8", ESCAPED)
    except OSError:
        return False


def interface_file(tasks: Path) -> Path:
    """Return the file that the labeling interface of a task file is written to."""
    return tasks.with_suffix(".xml")


def as_json(values: Any) -> str:
    """Return indented JSON."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
