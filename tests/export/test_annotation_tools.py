"""Export of pseudo-labels to Label Studio and FiftyOne."""

from xml.etree import ElementTree

import pytest

from tagspread.export.annotation_tools import fiftyone_labels, label_studio_tasks, labeling_interface
from tagspread.files import write_text
from tagspread.run.pseudo_labels import Entry, PseudoLabeledImage

IMAGES = [
    PseudoLabeledImage("sure.jpg", [Entry("cat", 1.0, 0.99, 1, 0), Entry("dog", 0.0, 0.02, 90, 1)]),
    PseudoLabeledImage(
        "sub/ü #1.png", [Entry("cat", 1.0, 0.7, 5, 2), Entry("dog", 1.0, 0.8, 2, 0), Entry("cow", -1.0, 0.4, 7, 0)]
    ),
    PseudoLabeledImage("none.jpg", []),
]
CLASSES = ["cat", "dog", 'a "cow" & <calf>']


def test_label_studio_tasks():
    tasks = label_studio_tasks(IMAGES, "tagspread run")
    assert [task["data"]["file_name"] for task in tasks] == ["sub/ü #1.png", "sure.jpg", "none.jpg"]  # least sure first
    assert tasks[0]["data"]["image"] == "/data/local-files/?d=sub/%C3%BC%20%231.png"
    (prediction,) = tasks[0]["predictions"]
    assert prediction["model_version"] == "tagspread run"
    assert prediction["score"] == pytest.approx(0.6)
    assert prediction["result"] == [
        {"from_name": "tags", "to_name": "image", "type": "choices", "value": {"choices": ["cat", "dog"]}}
    ]
    assert tasks[2]["predictions"][0]["result"] == []
    (one,) = label_studio_tasks(IMAGES, "m", prefix="https://example.com/", most=1)
    assert one["data"]["image"].startswith("https://example.com/sub/")


def test_the_labeling_interface_fits_the_tasks():
    view = ElementTree.fromstring(labeling_interface(CLASSES))
    image, choices = view
    assert image.attrib == {"name": "image", "value": "$image"}
    assert choices.attrib == {"name": "tags", "toName": "image", "choice": "multiple"}
    assert [choice.attrib["value"] for choice in choices] == CLASSES
    used = label_studio_tasks(IMAGES, "m")[0]["predictions"][0]["result"][0]
    assert (used["from_name"], used["to_name"]) == (choices.attrib["name"], image.attrib["name"])


def test_fiftyone():
    found = fiftyone_labels(IMAGES, ["cat", "cow", "dog"])
    assert found["classes"] == ["cat", "cow", "dog"]
    assert found["labels"]["none"] == []
    assert [(one["label"], one["confidence"]) for one in found["labels"]["sub/ü #1"]] == [(0, 0.7), (2, 0.8)]
    assert found["labels"]["sure"] == [{"label": 0, "confidence": 0.99, "attributes": {"rank": 1, "flips": 0}}]


def test_what_fiftyone_cannot_tell_apart_is_refused():
    with pytest.raises(ValueError, match=r"a.png and another image differ only in the suffix"):
        fiftyone_labels([PseudoLabeledImage("a.jpg", []), PseudoLabeledImage("a.png", [])], ["cat"])
    with pytest.raises(ValueError, match="have the tag 'cat', which the run does not have"):
        fiftyone_labels(IMAGES, ["dog", "cow"])


def test_images_without_files_cannot_be_handed_out():
    for export in (lambda p: label_studio_tasks(p, "m"), lambda p: fiftyone_labels(p, [])):
        with pytest.raises(ValueError, match="trained on arrays"):
            export([PseudoLabeledImage("number 40", [])])


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    write_text(tmp_path / "a.json", "ä")
    assert (tmp_path / "a.json").read_bytes() == "ä".encode()
    with pytest.raises(ValueError, match="cannot be written"):
        write_text(tmp_path / "nowhere" / "a.json", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
