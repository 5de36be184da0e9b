"""The ledger for tools in which people look at pictures and correct tags: Label Studio and FiftyOne.

Label Studio takes tasks with predictions, least sure first, and gives back annotations, which ``--labels`` reads.
FiftyOne takes a ``labels.json`` with a list of labels and confidences per picture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from tagspread.errors import TagspreadError
from tagspread.predict.tables import in_one_motion
from tagspread.run.pseudo_labels import Picture

LOCAL_FILES = "/data/local-files/?d="  # how Label Studio serves pictures of its own machine
CONTROL, OBJECT = "tags", "image"  # what the labelling interface calls the question and the picture


def label_studio_tasks(
    pictures: Sequence[Picture], model: str, *, prefix: str = LOCAL_FILES, most: int | None = None
) -> list[dict[str, Any]]:
    """Return tasks with the pseudo-tags as predictions, the least sure first.

    Args:
        pictures: the ledger.
        model: what Label Studio is to call the model.
        prefix: what goes before a picture's name to make its address.
        most: only so many.

    >>> label_studio_tasks([Picture("a b.jpg", [])], "run")[0]["data"]
    {'image': '/data/local-files/?d=a%20b.jpg', 'picture': 'a b.jpg'}
    """
    _check_files(pictures)
    return [
        {
            # the name as it is beside the address, so that the way back needs no guessing
            "data": {"image": prefix + quote(picture.name, errors="surrogateescape"), "picture": picture.name},
            "predictions": [
                {"model_version": model, "score": round(picture.certainty, 6), "result": _results(picture)}
            ],
        }
        for picture in sorted(pictures, key=lambda picture: picture.certainty)[:most]
    ]


def _results(picture: Picture) -> list[dict[str, Any]]:
    """Return the ticked choices; nothing, where there is nothing to tick."""
    choices = {"choices": [entry.tag for entry in picture.given]}
    answer = {"from_name": CONTROL, "to_name": OBJECT, "type": "choices", "value": choices}
    return [answer] if picture.given else []


def _check_files(pictures: Sequence[Picture]) -> None:
    if pictures and re.fullmatch(r"number \d+", pictures[0].name):
        raise TagspreadError("the run was trained on arrays, so that no other program could find its pictures.")


def labelling_interface(classes: Sequence[str]) -> str:
    """Return the labelling interface that the tasks are made for, to be pasted into the project's settings.

    >>> print(labelling_interface(["cats & dogs"]))
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


def fiftyone_labels(pictures: Sequence[Picture], classes: Sequence[str]) -> dict[str, Any]:
    """Return the ``labels.json`` of a FiftyOneImageClassificationDataset: pictures without suffix, lists of labels.

    >>> from tagspread.run.pseudo_labels import Entry
    >>> fiftyone_labels([Picture("sub/a.jpg", [Entry("cat", 1.0, 0.9, 3, 0)])], ["cat", "dog"])["labels"]
    {'sub/a': [{'label': 0, 'confidence': 0.9, 'attributes': {'rank': 3, 'flips': 0}}]}
    """
    _check_files(pictures)
    number = {name: k for k, name in enumerate(classes)}
    if foreign := {entry.tag for picture in pictures for entry in picture.given} - number.keys():
        raise TagspreadError(f"the ledger has the tag {min(foreign)!r}, which the run does not know; it was changed.")
    labels: dict[str, Any] = {}
    for picture in pictures:
        key = PurePosixPath(picture.name).with_suffix("").as_posix()
        if key in labels:
            raise TagspreadError(
                f"{picture.name} and another picture differ in the suffix only, which FiftyOne leaves out; rename one."
            )
        labels[key] = [
            {
                "label": number[entry.tag],
                "confidence": entry.score,
                "attributes": {"rank": entry.rank, "flips": entry.flips},
            }
            for entry in picture.given
        ]
    return {"classes": list(classes), "labels": labels}


def write_label_studio(
    file: Path, pictures: Sequence[Picture], classes: Sequence[str], run: str, prefix: str | None, most: int | None
) -> int:
    """Write tasks and, beside them, their labelling interface; return how many tasks."""
    tasks = label_studio_tasks(
        pictures, f"tagspread {run}", prefix=LOCAL_FILES if prefix is None else prefix, most=most
    )
    write_text(file, as_json(tasks))
    write_text(interface_file(file), labelling_interface(classes))
    return len(tasks)


def interface_file(tasks: Path) -> Path:
    """Return where the labelling interface of tasks is written."""
    return tasks.with_suffix(".xml")


def write_text(file: Path, text: str) -> None:
    """Write a file in one motion; bytes of file names that are no UTF-8 become JSON's escapes."""
    with in_one_motion(file) as opened:
        opened.write(text.encode("utf-8", "backslashreplace"))


def as_json(values: Any) -> str:
    """Return JSON as people read it."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
