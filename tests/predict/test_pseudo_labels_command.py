"""The whole review cycle: train, export pseudo-labels, correct them, read the corrections, train again."""

import csv
import json
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import tagspread as ts
from tagspread import api
from tagspread.cli import app
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError

QUICK: dict[str, Any] = {
    "backbone": "small", "weights": "none", "image_size": 24, "batch": 16, "lr": 0.003, "flip": False,
    "warmup_epochs": 1, "epochs": 1, "preset": "paper", "device": "cpu", "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn():
    return digit_canvases(60, 1, seed=0)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, drawn):
    """60 images, 20 of them tagged, some in a folder of their own."""
    top = tmp_path_factory.mktemp("images")
    (top / "more ones").mkdir()
    with (top / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "tags"])
        for i, image in enumerate(drawn.images):
            name = f"more ones/{i:02}.png" if i % 2 else f"{i:02}.png"
            Image.fromarray(image.transpose(1, 2, 0)).save(top / name)
            if i < 20:
                writer.writerow([name, "|".join(tags_of(drawn.y[i]))])
    return top


def tags_of(row):
    return [name for name, on in zip(CLASSES, row, strict=True) if on]


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return ts.train(folder, folder / "labels.csv", tmp_path_factory.mktemp("runs") / "first", **QUICK).path


def pseudo_labels(*arguments):
    result = CliRunner().invoke(app, ["pseudo-labels", *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, TagspreadError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def corrected_by_a_person(tasks, drawn):
    """Return Label Studio's export after every second task was annotated correctly."""
    done = []
    for number, task in enumerate(tasks):
        truth = tags_of(drawn.y[int(task["data"]["file_name"][-6:-4])])
        result = {"from_name": "tags", "to_name": "image", "type": "choices", "value": {"choices": truth}, "id": "x"}
        annotation = {"id": number, "was_cancelled": False, "result": [result] if truth else [], "ground_truth": False}
        done.append({"id": number, **task, "annotations": [annotation] if number % 2 == 0 else []})
    return done


def test_there_and_back_again(run, folder, drawn, tmp_path):
    assert "tasks, the least certain first" in pseudo_labels(run, "--label-studio", tmp_path / "tasks.json")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert len(tasks) == 40
    assert '<Choice value="7"/>' in (tmp_path / "tasks.xml").read_text()
    with pytest.raises(ValueError, match="holds no annotations; import it into Label Studio"):
        read_table(tmp_path / "tasks.json", folder)

    export = tmp_path / "corrected.json"
    export.write_text(json.dumps(corrected_by_a_person(tasks, drawn)))
    table = read_table(export, folder)
    assert len(table) == 20
    for path, row in zip(table.paths, table.y, strict=True):
        assert path.is_file()
        assert [name for name, on in zip(table.classes, row, strict=True) if on == 1] == tags_of(
            drawn.y[int(path.stem)]
        )

    again = ts.train(folder, export, tmp_path / "from the export", **QUICK)
    assert len(ts.load(again.path).classes) == len(table.classes)

    both = tmp_path / "both.csv"
    assert "20 labeled images of the run and 20 corrected images" in pseudo_labels(
        run, "--corrected", export, "-o", both
    )
    merged = read_table(both, folder)
    assert len(merged) == 40
    for path, row in zip(merged.paths, merged.y, strict=True):
        assert [name for name, on in zip(merged.classes, row, strict=True) if on == 1] == tags_of(
            drawn.y[int(path.stem)]
        )


def test_the_pseudo_labels_names_images_from_the_folder_on(run, folder):
    from tagspread.run.pseudo_labels import read_pseudo_labels

    images = read_pseudo_labels(run)
    assert {image.name for image in images} == {
        f"more ones/{i:02}.png" if i % 2 else f"{i:02}.png" for i in range(20, 60)
    }


def test_summary_and_fiftyone(run, tmp_path):
    text = pseudo_labels(run)
    assert "40 unlabeled images" in text
    assert "ever flipped" in text
    pseudo_labels(run, "--fiftyone", tmp_path / "labels.json")
    assert len(json.loads((tmp_path / "labels.json").read_text())["labels"]) == 40
    pseudo_labels(run, "--label-studio", tmp_path / "few.json", "--most", 3, "--image-url", "https://example.com/")
    few = json.loads((tmp_path / "few.json").read_text())
    assert len(few) == 3
    assert few[0]["data"]["image"].startswith("https://example.com/")


def test_refusals(run, folder, tmp_path):
    with pytest.raises(ValueError, match="--corrected FILE and --out TABLE are used together"):
        pseudo_labels(run, "--corrected", tmp_path / "x.json")
    with pytest.raises(ValueError, match="are used with --label-studio FILE only"):
        pseudo_labels(run, "--most", 3)
    with pytest.raises(ValueError, match="is not a run folder"):
        pseudo_labels(folder)
    (tmp_path / "tasks.xml").write_text("mine")
    with pytest.raises(ValueError, match=r"tasks.xml exists"):
        pseudo_labels(run, "--label-studio", tmp_path / "tasks.json")
    assert not (tmp_path / "tasks.json").exists()
    with pytest.raises(ValueError, match="there is no file"):
        pseudo_labels(run, "--corrected", tmp_path / "x.json", "--out", tmp_path / "y.csv")


def test_what_is_there_is_replaced_only_if_that_is_wanted(run, folder, tmp_path):
    mine = [tmp_path / name for name in ("tasks.json", "tasks.xml", "fiftyone.json", "both.csv")]
    exports = ["--label-studio", mine[0], "--fiftyone", mine[2]]
    corrected = tmp_path / "corrected.json"
    done = {"data": {"file_name": "20.png"}, "annotations": [{"result": []}]}
    tag = {"type": "choices", "from_name": "tags", "value": {"choices": ["3"]}}
    more = {"data": {"file_name": "22.png"}, "annotations": [{"result": [tag]}]}
    corrected.write_text(json.dumps([done, more]))
    merge = ["--corrected", corrected, "--out", mine[3]]
    for file in mine:
        file.write_text("mine")
    for options in (exports, exports[2:], merge):
        with pytest.raises(TagspreadError, match=r"exists; choose another name, or replace it with") as caught:
            pseudo_labels(run, *options)
        assert "--overwrite" in caught.value.on_command_line
        assert [file.read_text() for file in mine] == ["mine"] * 4
    pseudo_labels(run, *exports, "--overwrite")
    pseudo_labels(run, *merge, "--overwrite")
    assert "mine" not in [file.read_text() for file in mine]
    assert len(json.loads(mine[0].read_text())) == 40
    for source in (corrected, folder / "labels.csv"):
        with pytest.raises(TagspreadError, match="is one of the tables to merge"):
            pseudo_labels(run, "--corrected", corrected, "--out", source, "--overwrite")


def test_a_tag_that_the_run_never_had_is_unknown_in_its_own_images(run, folder, tmp_path):
    """The corrected table lists all tags of an image that are classes of the run."""
    export, both = tmp_path / "corrected.json", tmp_path / "both.csv"
    ticked = {"type": "choices", "from_name": "tags", "value": {"choices": ["3", "hat"]}}
    export.write_text(json.dumps([{"data": {"file_name": "20.png"}, "annotations": [{"result": [ticked]}]}]))
    said = pseudo_labels(run, "--corrected", export, "-o", both)
    assert "new tags, unknown (blank) for the run's labeled images: hat" in said
    table = read_table(both, folder)
    column = table.y[:, table.classes.index("hat")]
    assert sorted(column.tolist()) == [-1] * 20 + [1]


def test_a_run_from_python_says_where_to_merge(tmp_path, drawn):
    y = drawn.y.copy()
    y[20:] = -1
    made = ts.train(drawn.images, y, tmp_path / "run", classes=CLASSES, **QUICK)
    with pytest.raises(ValueError, match="was started from Python with its own data"):
        pseudo_labels(made.path, "--corrected", tmp_path / "x.json", "--out", tmp_path / "y.csv")


def test_the_train_command_answers_the_question(folder, tmp_path, monkeypatch):
    """A run started with --keep last is also resumed with it."""
    settings = "--backbone small --weights none --image-size 24 --batch 16 --preset paper --warmup-epochs 1 --epochs 1"
    start = ["train", str(folder), "--labels", str(folder / "labels.csv"), "--out", str(tmp_path / "run"), "--quiet"]
    invoke = CliRunner().invoke
    result = invoke(app, [*start, *settings.split(), "--device", "cpu", "--keep", "last", "--test-share", "0.3"])
    assert result.exit_code == 0, result.output
    assert "the unlabeled images" in result.output
    assert "90 % interval" in result.output
    asked: list[dict[str, Any]] = []
    original = api.train

    def listening(**how):
        asked.append(how)
        return original(**how)

    monkeypatch.setattr(api, "train", listening)
    (tmp_path / "run" / "labels.json").unlink()  # or it is finished, and stays as it is
    result = invoke(app, ["train", "--resume", str(tmp_path / "run"), "--device", "cpu", "--quiet"])
    assert result.exit_code == 0, result.output
    assert asked[0]["keep"] == "last"
