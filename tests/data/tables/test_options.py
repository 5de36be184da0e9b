from typing import Any

import pandas as pd
import pytest

from tagspread.data.tables.options import read_alike

OWN = {"image_column": "Bild", "tags_column": "Etiketten", "delimiter": ";", "ignore": ["note", "who"]}


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_columns_of_the_runs_own_table_where_they_are_there(tmp_path, kind):
    file = tmp_path / f"table.{kind}"
    frame = pd.DataFrame({"Bild": ["a.png"], "Etiketten": ["sea;sand"], "note": [""]})
    if kind == "parquet":
        frame.to_parquet(file)
    else:
        frame.to_csv(file, index=False, sep="," if kind == "csv" else "\t")
    assert read_alike(file, OWN, {}) == OWN | {"ignore": ["note"]}
    assert read_alike(file, OWN | {"ignore": "all"}, {})["ignore"] == "all"
    assert read_alike(file, OWN | {"ignore": "note"}, {})["ignore"] == ["note"]
    assert read_alike(file, {}, {}) == {"delimiter": "|"}
    silent: dict[str, Any] = {"image_column": None, "tags_column": None, "ignore": [], "allow_outside": False}
    assert read_alike(file, OWN, silent) == OWN | {"ignore": ["note"], "allow_outside": False}
    said = {"image_column": "x", "tags_column": "y", "ignore": ["z"], "delimiter": None}
    assert read_alike(file, OWN, said) == said
    assert "tags_column" not in read_alike(file, OWN, {"layout": "wide"})


def test_other_tables_are_read_as_usual(tmp_path):
    (tmp_path / "other.csv").write_text("image,tags\na.png,sea\n")
    usual = {"delimiter": ";", "ignore": []}
    assert read_alike(tmp_path / "other.csv", OWN, {}) == usual
    for name, text in (("none.csv", None), ("empty.csv", ""), ("broken.parquet", "no"), ("export.json", "[]")):
        if text is not None:
            (tmp_path / name).write_text(text)
        assert read_alike(tmp_path / name, OWN, {}) == usual
