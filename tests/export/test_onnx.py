"""ONNX export, compared with ONNX Runtime."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from PIL import Image

import tagspread as ts
from tagspread.data.images.decode import from_pillow
from tagspread.errors import TagspreadError
from tagspread.export import onnx as exporting
from tagspread.export.compare import Sample, compare, find_sample, generated
from tagspread.export.onnx import export_onnx
from tagspread.run.artifact import read_artifact

EXAMPLE = Path(__file__).parents[2] / "examples" / "run_onnx.py"


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory):
    file = tmp_path_factory.mktemp("onnx") / "tags.onnx"
    return file, export_onnx(run, file)


@pytest.fixture(scope="session")
def tagger(run):
    return ts.load(run, device="cpu")


def test_the_file_says_what_the_run_says(exported, tagger, folder):
    file, compared = exported
    assert compared.words == f"8 images of {folder.name}"
    assert compared.difference <= 1e-3
    session = onnxruntime.InferenceSession(file)
    files = sorted(folder.glob("*.png"))[20:60]
    found = tagger.predict(files)
    small = np.stack([np.asarray(Image.open(one).resize((24, 24), Image.Resampling.BILINEAR)) for one in files])
    (together,) = session.run(None, {"images": small})
    assert np.abs(together - found.probabilities).max() <= 1e-3
    assert ((together >= tagger.thresholds) == found.chosen).all()
    for one, expected in zip(files, found.probabilities, strict=True):  # the graph resizes as well
        (alone,) = session.run(None, {"images": np.asarray(Image.open(one))[None]})
        assert np.abs(alone[0] - expected).max() <= 1e-3


def test_the_file_is_sound_and_describes_itself(exported, tagger):
    model = onnx.load(exported[0])
    onnx.checker.check_model(model, full_check=True)
    about = {one.key: json.loads(one.value) for one in model.metadata_props}
    assert about["format"] == 1
    assert about["tagspread"] == ts.__version__
    assert tuple(about["classes"]) == tagger.classes
    assert about["thresholds"] == tagger.artifact.facts["thresholds"]
    assert about["image_size"] == [24, 24]
    assert about["decision"]["policy"] == "match"
    (given,), (answer,) = model.graph.input, model.graph.output
    assert [side.dim_param or side.dim_value for side in given.type.tensor_type.shape.dim] == [
        "batch", "height", "width", 3,
    ]  # fmt: skip
    assert given.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [side.dim_param or side.dim_value for side in answer.type.tensor_type.shape.dim] == ["batch", 10]


def test_the_example_of_ten_lines(exported, tagger, folder):
    files = sorted(folder.glob("*.png"))[:6]
    command = [sys.executable, EXAMPLE, exported[0], *files]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    chosen = tagger.predict(files).chosen
    for line, file, row in zip(lines, files, chosen, strict=True):
        assert line.split("\t") == [str(file), *(name for name, on in zip(tagger.classes, row, strict=True) if on)]
    assert chosen.any()
    text = EXAMPLE.read_text()
    assert "tagspread" not in text.partition('"""\n')[2]
    assert len([line for line in text.partition('"""\n')[2].splitlines() if line and "import" not in line]) <= 10


NETWORKS = [
    ("small", "ml_decoder", "cap"),
    ("small", "linear", "drml"),
    ("small", "linear", "d2l"),
    ("resnet50_v1", "linear", "cap"),
    ("test_efficientnet", "linear", "cap"),
]


@pytest.mark.parametrize(("backbone", "head", "method"), NETWORKS)
def test_networks(untrained, tmp_path, capfd, backbone, head, method):
    run = untrained(backbone, head, method)
    compared = export_onnx(run, tmp_path / "n.onnx")
    assert capfd.readouterr() == ("", "")  # exporters like to talk
    assert compared.words == "4 generated images, as the run's image folder cannot be found"
    image = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), np.uint8)
    (found,) = onnxruntime.InferenceSession(tmp_path / "n.onnx").run(None, {"images": image})
    expected = ts.load(run, device="cpu").predict(image).probabilities
    assert np.abs(found - expected).max() <= 1e-3
    assert found.dtype == np.float32


def test_a_tag_that_is_never_chosen(untrained):
    about = exporting.metadata(read_artifact(untrained(thresholds=[0.5, None, 0.5])))
    assert json.loads(about["thresholds"]) == [0.5, None, 0.5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tags.pt", r"tags.pt has no supported suffix; use one of \.onnx"),
        ("folder.onnx", "is a folder"),
        ("there.onnx", "exists; choose another name, or replace it with overwrite=True"),
        ("no/tags.onnx", "no is missing"),
    ],
)
def test_places_that_are_refused(untrained, tmp_path, name, message):
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "there.onnx").write_text("precious")
    with pytest.raises(TagspreadError, match=message):
        export_onnx(untrained(), tmp_path / name)
    assert (tmp_path / "there.onnx").read_text() == "precious"


def test_overwrite(untrained, ready, tmp_path):
    (tmp_path / "there.onnx").write_text("not so precious")
    export_onnx(untrained(), tmp_path / "there.onnx", overwrite=True)
    onnx.checker.check_model(tmp_path / "there.onnx")


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra(untrained, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TagspreadError, match=r"pip install 'tagspread\[onnx\]'"):
        export_onnx(untrained(), tmp_path / "n.onnx")


def edited(graph, change):
    """Return an ONNX graph whose calibration was changed after export."""
    model = onnx.load_from_string(graph)
    (found,) = [one for one in model.graph.initializer if one.name.endswith("intercept")]
    found.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(found) + np.float32(change), found.name))
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (0.01, r"differ from PyTorch's by 0.00\d+, more than 0.001; it was not kept"),
        (np.nan, "differ from PyTorch's by nan"),
        (2e-3, "ONNX file and PyTorch disagree on the tag '[abc]'"),
        (None, r"ONNX Runtime cannot run the file \(.*\); it was not kept"),
    ],
)
def test_a_file_that_answers_otherwise_is_not_kept(untrained, graph, tmp_path, monkeypatch, change, message):
    # thresholds so close above a probability that any rise crosses them
    sample = np.stack([from_pillow(Image.fromarray(one), 32, 32) for one in generated()])
    cuts = ts.load(untrained(), device="cpu").predict(sample).probabilities.max(axis=0) + 1e-4
    wrong = b"no graph" if change is None else edited(graph, change)
    monkeypatch.setattr(exporting, "_graph", lambda tagger: wrong)
    (tmp_path / "there.onnx").write_text("precious")
    with pytest.raises(TagspreadError, match=message):
        export_onnx(untrained(thresholds=cuts.tolist()), tmp_path / "there.onnx", overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["there.onnx"]
    assert (tmp_path / "there.onnx").read_text() == "precious"


def test_a_probability_on_its_threshold_may_fall_on_either_side(exported, tagger, monkeypatch):
    images = generated()[:1]
    monkeypatch.setattr(tagger, "thresholds", tagger.predict(images).probabilities[0].copy())
    assert compare(exported[0], tagger, Sample(images, "one")).difference <= 1e-3


def test_a_network_that_cannot_be_translated(untrained, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("an operator is missing\nand much more about it")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(TagspreadError, match=r"'small' cannot be exported to ONNX \(an operator is missing\);"):
        export_onnx(untrained(), tmp_path / "n.onnx")


def test_images_to_compare_on(run, folder, tmp_path):
    assert len(find_sample(run, None, 24).images) == 8
    for name in ("empty", "some"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "broken.png").write_bytes(b"no image")
    for i in range(3):
        (tmp_path / "some" / f"p{i}.png").write_bytes((folder / f"p00{i}.png").read_bytes())
    some = find_sample(run, tmp_path / "some", 24)
    assert some.words == "3 images of some"
    assert np.array_equal(some.images[0], np.asarray(Image.open(folder / "p000.png")))
    with pytest.raises(TagspreadError, match="holds no readable image"):
        find_sample(run, tmp_path / "empty", 24)
    with pytest.raises(TagspreadError, match="is not a folder"):
        find_sample(run, tmp_path / "none", 24)


def test_the_runs_own_images_are_gone(run, tmp_path):
    for where, words in (("gone", "cannot be found"), ("empty", "holds no readable image")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        config = json.loads((run / "config.json").read_text())
        config["data"]["images"] = str(tmp_path / where)
        (tmp_path / "config.json").write_text(json.dumps(config))
        sample = find_sample(tmp_path, None, 24)
        assert words in sample.words
        assert len({one.shape for one in sample.images}) == 4
