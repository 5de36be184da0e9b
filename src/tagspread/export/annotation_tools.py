"""The pseudo-labels for tools in which people look at images and correct tags: Label Studio and FiftyOne.

Label Studio takes tasks with predictions, least sure first, and gives back annotations, which ``--labels`` reads.
FiftyOne takes a ``labels.json`` with a list of labels and confidences per image.
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

LOCAL_FILES = "/data/local-files/?d="  # how Label Studio serves images of its own machine
ESCAPED = "backslashreplace"  # bytes of file names that are no UTF-8 become JSON's escapes
CONTROL, OBJECT = "tags", "image"  # what the labeling interface calls the question and the image


def label_studio_tasks(
    images: Sequence[PseudoLabeledImage], model: str, *, prefix: str = LOCAL_FILES, most: int | None = None
) -> list[JsonObject]:
    """Return tasks with the pseudo-tags as predictions, the least sure first.

    Args:
        images: the pseudo-labels.
        model: what Label Studio is to call the model.
        prefix: what goes before a image's name to make its address.
        most: only so many.

    >>> label_studio_tasks([PseudoLabeledImage("a b.jpg", [])], "run")[0]["data"]
    {'image': '/data/local-files/?d=a%20b.jpg', 'file_name': 'a b.jpg'}
    """
    _check_files(images)
    return [
        {
            # the name as it is beside the address, so that the way back needs no guessing
            "data": {"image": prefix + quote(image.name, errors="surrogateescape"), "file_name": image.name},
            "predictions": [{"model_version": model, "score": round(image.certainty, 6), "result": _results(image)}],
        }
        for image in sorted(images, key=lambda image: image.certainty)[:most]
    ]


def _results(image: PseudoLabeledImage) -> list[JsonObject]:
    """Return the ticked choices; nothing, where there is nothing to tick."""
    choices = {"choices": [entry.tag for entry in image.given]}
    answer = {"from_name": CONTROL, "to_name": OBJECT, "type": "choices", "value": choices}
    return [answer] if image.given else []


def _check_files(images: Sequence[PseudoLabeledImage]) -> None:
    if images and re.fullmatch(r"number \d+", images[0].name):
        raise TagspreadError("the run was trained on arrays, so that no other program could find its images.")


def labeling_interface(classes: Sequence[str]) -> str:
    """Return the labeling interface that the tasks are made for, to be pasted into the project's settings.

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
    """Return the ``labels.json`` of a FiftyOneImageClassificationDataset: images without suffix, lists of labels.

    >>> from tagspread.run.pseudo_labels import Entry
    >>> fiftyone_labels([PseudoLabeledImage("sub/a.jpg", [Entry("cat", 1.0, 0.9, 3, 0)])], ["cat", "dog"])["labels"]
    {'sub/a': [{'label': 0, 'confidence': 0.9, 'attributes': {'rank': 3, 'flips': 0}}]}
    """
    _check_files(images)
    number = {name: k for k, name in enumerate(classes)}
    if foreign := {entry.tag for image in images for entry in image.given} - number.keys():
        raise TagspreadError(
            f"the pseudo-labels have the tag {min(foreign)!r}, which the run does not know; it was changed."
        )
    labels: JsonObject = {}
    for image in images:
        key = PurePosixPath(image.name).with_suffix("").as_posix()
        if key in labels:
            raise TagspreadError(
                f"{image.name} and another image differ in the suffix only, which FiftyOne leaves out; rename one."
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
    """Return where the labeling interface of tasks is written."""
    return tasks.with_suffix(".xml")


def as_json(values: Any) -> str:
    """Return JSON as people read it."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
