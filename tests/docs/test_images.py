"""Images of README and docs are small, and the table next to the plot has the plotted values."""

import runpy
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


@pytest.mark.parametrize("name", ["report.webp", "voc.png"])
def test_images_are_small(name):
    assert 10_000 < (IMAGES / name).stat().st_size < 200_000
    assert f"docs/images/{name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_table_has_the_numbers_of_the_plot():
    results = runpy.run_path(str(IMAGES / "make_images.py"))["voc_results"]()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for share, labeled in ((0.05, "285 (5 %)"), (0.1, "571 (10 %)")):
        means = [f"{mean(values):.1f}" for values in results[share]]
        assert f"| {labeled} | {' | '.join(means)} |" in readme


def test_the_readme_is_read_in_two_minutes():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160
