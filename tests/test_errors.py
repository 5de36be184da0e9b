"""Error messages show options in the reader's syntax: keywords in Python, options on the command line."""

import json
import pickle

import pytest
from PIL import Image
from typer.testing import CliRunner

import tagspread as ts
from tagspread.cli import app
from tagspread.data.images.decode import UnreadableImage
from tagspread.data.tables.read import read_table
from tagspread.errors import Blank, Both, TagspreadError


def both(message, **options):
    error = TagspreadError(message, **options)
    return str(error), error.on_command_line


def test_an_option_is_spelt_for_its_reader():
    assert both("give @ignore.", ignore=["a", "b c"]) == (
        "give ignore=['a', 'b c'].",
        "give --ignore a --ignore 'b c'.",
    )
    assert both("give @tags_column!", tags_column=...) == ("give tags_column!", "give --tags-column!")
    assert both("give @images", images=Blank("DIR")) == ("give images=DIR", "give --images DIR")
    assert both("or @overwrite", overwrite=True) == ("or overwrite=True", "or --overwrite")
    assert both("or @delimiter", delimiter=None) == ("or delimiter=None", "or --delimiter ''")
    assert both("(@resume)", resume=Both("resume=True", "--resume run")) == ("(resume=True)", "(--resume run)")
    assert both(r"@ignore", ignore=[r"\1"]) == (r"ignore=['\\1']", r"--ignore '\1'")
    assert both("an @address and {braces} stay, @images does not", images=...)[1].startswith("an @address and {braces}")
    assert both("@image is not @image_column", image=...)[1] == "--image is not @image_column"


def test_it_survives_the_way_from_another_process():
    error = pickle.loads(pickle.dumps(TagspreadError("give @cache", cache=Blank("DIR"))))
    assert (str(error), error.on_command_line) == ("give cache=DIR", "give --cache DIR")
    image = pickle.loads(pickle.dumps(UnreadableImage("a.jpg", "it is empty")))
    assert (image.reason, str(image)) == (
        "it is empty",
        "a.jpg cannot be read as an image: it is empty. Replace the file or leave it out.",
    )


TABLES = [
    ("image,tags,width\na.png,x|y,3\n", "ignore=['width']", "--ignore width"),
    ("image,sea,by\na.png,1,me\n", "ignore=['by']", "--ignore by"),
    ('image,tags\na.png,"x,y"\n', "delimiter=',', or delimiter=None", "--delimiter ',', or --delimiter ''"),
    ("image,tags\n../a.png,x\n", "allow_outside=True", "--allow-outside"),
]


@pytest.mark.parametrize(("text", "python", "shell"), TABLES)
def test_both_are_told_what_to_write(text, python, shell, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TagspreadError) as caught:
        read_table(tmp_path / "t.csv", tmp_path)
    assert python in str(caught.value)
    assert "--" not in str(caught.value)
    checked = CliRunner().invoke(app, ["check", str(tmp_path), "--labels", str(tmp_path / "t.csv"), "--json"])
    (message,) = [one["message"] for one in json.loads(checked.output)["findings"] if one["kind"] == "table"]
    assert shell in message
    assert python not in message


def test_the_empty_delimiter_of_a_shell_is_no_delimiter(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("image,tags\na.png,x;y\n")
    call = ["check", str(tmp_path), "--labels", str(tmp_path / "t.csv"), "--delimiter", "", "--json"]
    assert [one["name"] for one in json.loads(CliRunner().invoke(app, call).output)["classes"]] == ["x;y"]


def test_a_folder_with_another_run(tmp_path):
    (tmp_path / "config.json").write_text('{"tagspread": "1"}')
    (tmp_path / "log.jsonl").write_text("{}\n")  # it has begun
    with pytest.raises(TagspreadError) as caught:
        ts.train(tmp_path, tmp_path / "t.csv", tmp_path)
    assert "resume it (resume=True), replace it (overwrite=True)" in str(caught.value)
    assert f"resume it (--resume {tmp_path}), replace it (--overwrite)" in caught.value.on_command_line
