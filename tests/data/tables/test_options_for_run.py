from typing import Any

import pandas as pd
import pytest

from tagspread.data.tables.read import options_for_run

OWN = {"image_column": "Bild", "tags_column": "Etiketten", "delimiter": ";", "ignore": ["note", "who"]}


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl"])
def test_column_options_of_the_run_apply_to_existing_columns(tmp_path, kind):
    file = tmp_path / f"table.{kind}"
    frame = pd.DataFrame({"Bild": ["a.png"], "Etiketten": ["sea;sand"], "note": [""]})
    if kind == "parquet":
        frame.to_parquet(file)
    elif kind == "jsonl":
        frame.to_json(file, orient="records", lines=True)
    else:
        frame.to_csv(file, index=False, sep="," if kind == "csv" else "\t")
    assert options_for_run(file, OWN, {}) == OWN | {"ignore": ["note"]}
    assert options_for_run(file, OWN | {"ignore": "all"}, {})["ignore"] == "all"
    assert options_for_run(file, OWN | {"ignore": "note"}, {})["ignore"] == ["note"]
    assert options_for_run(file, {}, {}) == {}
    assert options_for_run(file, {"blank": "unlabeled"}, {}) == {"blank": "unlabeled"}
    silent: dict[str, Any] = {"image_column": None, "tags_column": None, "ignore": [], "allow_outside": False}
    assert options_for_run(file, OWN, silent) == OWN | {"ignore": ["note"], "allow_outside": False}
    said = {"image_column": "x", "tags_column": "y", "ignore": ["z"], "delimiter": None}
    assert options_for_run(file, OWN, said) == said
    assert "tags_column" not in options_for_run(file, OWN, {"layout": "wide"})


def test_other_tables_use_the_default_options(tmp_path):
    (tmp_path / "other.csv").write_text("image,tags\na.png,sea\n")
    usual = {"delimiter": ";", "ignore": []}
    assert options_for_run(tmp_path / "other.csv", OWN, {}) == usual
    for name, text in (("none.csv", None), ("empty.csv", ""), ("broken.parquet", "no"), ("export.json", "[]")):
        if text is not None:
            (tmp_path / name).write_text(text)
        assert options_for_run(tmp_path / name, OWN, {}) == usual


def test_a_folder_means_its_metadata_file(tmp_path):
    (tmp_path / "metadata.jsonl").write_text('{"Bild": "a.png", "Etiketten": ["sea"]}\n')
    assert options_for_run(tmp_path, OWN, {}) == OWN | {"ignore": []}
