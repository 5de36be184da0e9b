"""What was measured on VOC: the tables that are kept, and those in the docs, are those of the results."""

import re
import shutil
from pathlib import Path

import pytest

from tagspread.bench.run import Request, run_bench
from tests.bench.conftest import Listener

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "voc"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured") / "voc"
    shutil.copytree(KEPT, folder)
    for name in ("table.md", "table.csv"):
        (folder / name).unlink()
    run_bench(Request("voc", folder, tables_only=True), Listener())
    return folder


@pytest.mark.parametrize("name", ["table.md", "table.csv"])
def test_kept_tables_are_made_from_the_kept_results(made, name):
    assert (made / name).read_text() == (KEPT / name).read_text()


@pytest.mark.parametrize("name", ["proportions", "pseudo-labels", "intervals", "eta"])
def test_kept_figures_have_the_same_words(made, name):
    def words(file):  # shapes of letters differ from one matplotlib to the next
        return re.findall(r"<!-- (.*?) -->", file.read_text())

    assert len(words(made / f"{name}.svg")) > 10
    assert words(made / f"{name}.svg") == words(ROOT / "docs" / "figures" / f"voc-{name}.svg")


def cells(row):
    return [cell.strip().strip("*") for cell in row.strip().strip("|").split("|")]


def test_docs_table_has_the_results_figures(made):
    """Each row of the docs: last epoch, best on test and the paper's, at both shares."""
    docs = (ROOT / "docs" / "benchmarks.md").read_text().partition("## The paper's table")[2].partition("\n## ")[0]
    documented = [cells(line) for line in docs.splitlines() if re.match(r"\| [A-Z]", line)]
    honest, parity = (
        {cells(line)[0]: cells(line)[1:3] for line in part.splitlines() if re.match(r"\| [A-Z]", line)}
        for part in re.split(r"## Protocol: \w+", (made / "table.md").read_text())[1:]
    )
    assert len(documented) == 12
    for name, *figures in documented:
        plain = re.sub(r" \(.*\)|, threshold 0\.\d|, one seed", "", name)
        for k in range(2):
            last, best, paper = figures[3 * k : 3 * k + 3]
            found = re.fullmatch(r"\**([\d.]+(?: ± [\d.]+)?)(?: \(n = 1\))?\** \[([\d.]+), .*\]", honest[plain][k])
            assert found is not None, honest[plain][k]
            assert (last, paper) == found.groups()
            assert parity[plain][k].strip("*").startswith(best)
