import pytest

from tagspread.data.tables.options import GivenOptions
from tagspread.data.tables.read import read_table
from tagspread.errors import TagspreadError


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"delimiter": None},
        {"delimiter": ";", "image_column": "file", "tags_column": "what", "layout": "long", "allow_outside": False},
        {"ignore": "all"},
        {"ignore": ["note", "who"], "allow_outside": True},
    ],
)
def test_options_round_trip_through_json(given):
    options = GivenOptions.of(given)
    assert options.to_dict() == given
    assert GivenOptions.of(options.to_dict()) == options
    assert GivenOptions.of(options) is options


def test_missing_options_use_the_defaults_of_read_table(tmp_path):
    (tmp_path / "labels.csv").write_text("image,tags\na.jpg,sea|sand\n")
    assert read_table(tmp_path / "labels.csv", tmp_path, **GivenOptions().to_dict()).classes == ("sand", "sea")
    whole = GivenOptions(delimiter="").to_dict()
    assert read_table(tmp_path / "labels.csv", tmp_path, **whole).classes == ("sea|sand",)


def test_bad_options():
    with pytest.raises(TagspreadError, match=r"no option 'delimeter'\. Did you mean 'delimiter'\?"):
        GivenOptions.of({"delimeter": ";"})
    with pytest.raises(TagspreadError, match="delimiter is empty; give the text between tags, such as '\\|', or None"):
        GivenOptions.of({"delimiter": ""})
