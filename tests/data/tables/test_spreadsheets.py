"""Names that a spreadsheet would execute: no CSV file for people has them, and what is read back is the same."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagspread.data.tables.label_table import LabelTable
from tagspread.data.tables.read import read_table
from tagspread.data.tables.spreadsheets import FORMULA, begins_formula, plain_image, plain_tags, plain_text
from tagspread.predict.predictions import Predictions
from tagspread.predict.sources import find_sources
from tagspread.predict.tables import open_table

NAMES = ["=HYPERLINK(1).png", "+1.png", "-x.png", "@a.png", "\uff1dx.png", "usual.png"]
TAGS = ("=1+1", "@home", "+1", "-", "sea", "\uff0bplus")
DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def cells(file):
    with file.open(newline="", encoding="utf-8") as opened:
        return [cell for row in csv.reader(opened) for cell in row]


def predictions():
    chosen = np.array([[(row + k) % 3 == 0 for k in range(len(TAGS))] for row in range(len(NAMES))])
    return Predictions(list(NAMES), TAGS, chosen * 0.5 + 0.25, chosen, [""] * len(NAMES))


@pytest.mark.parametrize("delimiter", ["|", ";", "-", "="])
def test_predictions(delimiter, tmp_path):
    part = predictions()
    for file, raw in ((tmp_path / "tags.csv", False), (tmp_path / "raw.csv", True)):
        if set(delimiter) & set("".join(TAGS)):
            part = Predictions(part.images, tuple("abcdef"), part.probabilities, part.chosen, part.errors)
        with open_table(file, part.classes, delimiter=delimiter, raw=raw) as table:
            table.add(part)
        assert any(cell.startswith(DANGEROUS) for cell in cells(file)) is raw
        read = read_table(file, tmp_path, delimiter, ignore="all")
        used = sorted({name for tags in part.tags for name in tags})
        assert read.paths == tuple(tmp_path / name for name in NAMES)
        assert read.classes == tuple(used)
        assert [{read.classes[k] for k in np.flatnonzero(row == 1)} for row in read.y] == [
            set(tags) for tags in part.tags
        ]


def test_the_table_is_also_a_list_of_the_same_images(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(b"x")
    with open_table(tmp_path / "tags.csv", TAGS) as table:
        table.add(predictions())
    assert [path.resolve() for path in find_sources([tmp_path / "tags.csv"]).paths] == [
        tmp_path / name for name in NAMES
    ]


def test_label_tables(tmp_path):
    table = LabelTable([tmp_path / name for name in NAMES], TAGS, predictions().chosen.astype(int))
    table.write(tmp_path / "labels.csv", tmp_path)
    assert not any(cell.startswith(DANGEROUS) for cell in cells(tmp_path / "labels.csv"))
    assert read_table(tmp_path / "labels.csv", tmp_path) == table


@given(st.text(), st.lists(st.text(min_size=1)), st.sampled_from(["|", ";", ",", "=", "-", " "]))
def test_any_text(text, tags, delimiter):
    for cell in (plain_image(text), plain_tags(tags, delimiter), plain_text(text)):
        assert not cell.startswith(DANGEROUS)
    name = text.replace("/", "").replace("\0", "")
    assert Path("top", plain_image(name)) == Path("top", name)
    split = [tag.strip() for tag in plain_tags(tags, delimiter).split(delimiter)]
    assert [tag for tag in split if tag] == [
        tag for part in tags for tag in map(str.strip, part.split(delimiter)) if tag
    ]
    assert plain_text(text).strip() == text.strip()
    assert begins_formula(text) or plain_image(text) == text


def test_the_characters_are_those_that_are_tested():
    assert set(FORMULA) == set(DANGEROUS)
