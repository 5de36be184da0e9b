"""Stored VOC results: the tables in benchmarks/ and docs/ agree with them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tagspread.bench.grid import Grid
from tagspread.bench.run import Request, run_bench
from tagspread.bench.table_parts import MISSING
from tests.bench.conftest import Listener

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All tables and charts, written again from the stored results only."""
    folder = tmp_path_factory.mktemp("measured")
    for name in ("voc", "voc-head"):
        shutil.copytree(KEPT / name, folder / name, ignore=shutil.ignore_patterns("table.*"))
        run_bench(Request("voc", folder / name, tables_only=True), Listener())
    return folder


@pytest.mark.parametrize("name", ["table.md", "table.csv"])
@pytest.mark.parametrize("grid", ["voc", "voc-head"])
def test_kept_tables_are_made_from_the_kept_results(made, grid, name):
    assert (made / grid / name).read_text() == (KEPT / grid / name).read_text()


@pytest.mark.parametrize("name", ["proportions", "pseudo-labels", "intervals", "eta"])
def test_kept_figures_have_the_same_words(made, name):
    def words(file):  # shapes of letters differ from one matplotlib to the next
        return re.findall(r"<!-- (.*?) -->", file.read_text())

    assert len(words(made / "voc" / f"{name}.svg")) > 10
    assert words(made / "voc" / f"{name}.svg") == words(ROOT / "docs" / "figures" / f"voc-{name}.svg")


def test_kept_cells_are_known_again(monkeypatch):
    """Resuming a stored grid runs no cell twice: keys and versions equal those of the records."""
    for name in ("voc", "voc-head"):
        for line in map(json.loads, (KEPT / name / "results.jsonl").read_text().splitlines()):
            setup, method = line["setup"], line["method"]
            monkeypatch.setattr("tagspread.bench.grid.digest_of_weights", lambda _, kept=setup["weights"]: kept)
            asked = setup["asked"] | {"backbone": setup["backbone"], "weights": setup["weights_name"]}
            grid = Grid("voc", (method,), (line["p"],), (line["seed"],), setup["preset"], asked,
                        variants=((method, line["options"]),) if line["variant"] else ())  # fmt: skip
            found = {one.key: one.version for one in grid.cells()}
            assert found[line["key"]] == line["version"]


def cells(row):
    return [cell.strip().strip("*") for cell in row.strip().strip("|").split("|")]


def documented_rows(title, start):
    """Return the rows of the table under a title in the docs, by the beginning of the line."""
    section = (ROOT / "docs" / "benchmarks.md").read_text().partition(title)[2]
    lines = re.split(r"^##", section, flags=re.MULTILINE)[0].splitlines()
    return [cells(line.replace("`", "")) for line in lines if re.match(start, line)]


GAINS = "Gain over the labeled images alone"  # a table of its own below each table of mAP


def rows_of_map(part):
    """Return the rows of the tables of mAP, of all methods and without variants; those of the gains are left out."""
    table = part.partition(", variants")[0].partition(GAINS)[0]
    return [line for line in table.splitlines() if re.match(r"\| [A-Z]", line)]


def test_docs_tables_have_the_results_figures(made):
    """Each row of the docs has last epoch, best on test and published mAP for two shares per table."""
    documented = documented_rows("## The paper's table", r"\| [A-Z]")
    honest, parity = (
        {cells(line)[0]: cells(line)[1:] for line in rows_of_map(part)}
        for part in re.split(r"## Protocol: \w+", (made / "voc" / "table.md").read_text())[1:]
    )
    assert [row[0][:3] for row in documented].index("BCE", 1) == 15
    for number, (name, *figures) in enumerate(documented):
        plain = re.sub(r" \(.*\)|, threshold 0\.\d|, one seed", "", name)
        for k in range(2):
            column = k if number < 15 else k + 2
            last, best, paper = figures[3 * k : 3 * k + 3]
            cell = honest[plain][column]
            found = re.fullmatch(r"\**([\d.]+(?: ± [\d.]+)?)(?: \(n = 1\))?\** \[([\d.]+), .*\]", cell)
            assert found is not None, cell
            assert (last, paper) == found.groups()
            assert parity[plain][column].strip("*").startswith(best)
        assert ("one seed" in name) == any("(n = 1)" in cell for cell in honest[plain][column - 1 : column + 1])


def test_docs_table_of_heads_has_the_results_figures(made):
    documented = documented_rows("### Every method that needs scores only", r"\| [A-Z]")
    table = (made / "voc-head" / "table.md").read_text().partition("## Protocol: parity")[0]
    found = [cells(re.sub(r" \[.*?\]", "", line)) for line in rows_of_map(table)]
    assert len(found) == 10
    assert [row[1:] for row in documented] == [[figure.strip("*") for figure in row[1:]] for row in found]
    assert [re.sub(":.*", "", row[0]) for row in documented] == [row[0] for row in found]


@pytest.mark.parametrize(("grid", "base"), [("voc", "ASL"), ("voc-head", "BCE")])
def test_gains_are_the_differences_of_the_mean_map(made, grid, base):
    """To the rounding of both means. A cell with fewer seeds is compared with those seeds, so it is left out here."""
    for part in re.split(r"## Protocol: \w+", (made / grid / "table.md").read_text())[1:]:
        means = {name: row for name, *row in map(cells, rows_of_map(part))}
        title, _, below = part.partition(GAINS)[2].partition("\n\n")
        assert title == f" ({base}):"
        gains = [cells(line) for line in below.partition("\n\n")[0].splitlines() if re.match(r"\| [A-Z]", line)]
        assert [name for name, *_ in gains] == list(means)
        for name, *row in gains:
            for gain, mean, alone in zip(row, means[name], means[base], strict=True):
                if name == base or mean.startswith(MISSING):
                    assert gain == MISSING
                elif "n = 1" not in mean:
                    difference = float(mean.partition(" ")[0]) - float(alone.partition(" ")[0])
                    assert float(gain.replace("\N{MINUS SIGN}", "-")) == pytest.approx(difference, abs=0.0151)


def test_docs_have_the_figures_of_both_presets():
    """Seed 1 is the last measurement; with three seeds of one precision, mean and standard deviation are given."""
    maps, last = {}, {}
    for line in map(json.loads, (KEPT / "voc" / "preset_runs.jsonl").read_text().splitlines()):
        if line["part"] == "val":
            last[line["backbone"], "default", line["p"], line["seed"]] = line["map"]
            if "last_layer" not in line:
                maps[line["backbone"], "default", line["p"], line["seed"]] = line["map"]
    for line in map(json.loads, (KEPT / "voc" / "results.jsonl").read_text().splitlines()):
        if line["method"] == "cap" and not line["options"]:
            maps["resnet50_v1", "paper", line["p"], line["seed"]] = 100 * line["honest"]
    documented = documented_rows("## What the presets reach", r"\| `")
    assert len(documented) == 4
    for network, preset, *figures in documented:
        for k, p in enumerate((0.05, 0.1)):
            keys = [(network, preset.split(",")[0], p, seed) for seed in (1, 2, 3)]
            found = [maps[key] for key in keys if key in maps]
            several = f"{np.mean(found):.2f} ± {np.std(found, ddof=1):.2f}" if len(found) == 3 else "not run"
            assert figures[2 * k : 2 * k + 2] == [f"{(maps | last)[keys[0]]:.2f}", several]


def test_figures_measured_anew_are_those_of_the_docs():
    """The results of ``benchmarks/headline.py`` reach their targets and equal those in the preset table."""
    lines = json.loads((KEPT / "voc" / "headline.json").read_text())
    assert all(line["kept"] for line in lines)
    found = {line["what"]: f"{line['mAP']:.2f}" for line in lines}
    documented = {row[0]: row[2:] for row in documented_rows("## What the presets reach", r"\| `.*`default`")}
    for network in ("tf_efficientnet_lite2", "resnet50_v1"):
        measured = [found[f"preset default, {network}, p = {p}"] for p in ("0.05", "0.1")]
        assert measured == documented[network][::2]
    assert f"took {lines[0]['seconds']} s alone" in (ROOT / "docs" / "benchmarks.md").read_text()
