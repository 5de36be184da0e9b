"""Requirements for every named dataset."""

from pathlib import Path

import pytest

from tagspread.data.datasets import DATASETS
from tagspread.errors import TagspreadError
from tagspread.methods import METHODS
from tagspread.train.config import PRESETS, make_config

DATA_PAGE = Path(__file__).parents[3] / "docs" / "guides" / "data.md"

every_dataset = pytest.mark.parametrize("dataset", DATASETS.values(), ids=list(DATASETS))


@every_dataset
def test_docs_list_the_contents_of_its_folder(dataset):
    assert f"| `{dataset.name}` | {dataset.contents} |" in DATA_PAGE.read_text(encoding="utf-8").splitlines()


@every_dataset
def test_recipes_use_existing_presets_methods_and_settings(dataset):
    assert set(dataset.recipes) <= set(PRESETS)
    assert set(dataset.method_recipes) <= set(METHODS)
    for preset, settings in dataset.recipes.items():
        config = make_config(preset, **settings)
        assert all(getattr(config, name) == value for name, value in settings.items())


@every_dataset
def test_each_data_set_is_read_from_a_folder_or_drawn(dataset, tmp_path):
    assert (dataset.read is None) != (dataset.draw is None)
    assert bool(dataset.signs) == (dataset.read is not None)
    if dataset.read is not None:
        words = f"is not a {dataset.name} folder because it has no {dataset.signs[0]}"
        with pytest.raises(TagspreadError, match=words):
            dataset.load(tmp_path, 0)
