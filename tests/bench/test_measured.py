"""What was measured on VOC: the tables that are kept, and those in the docs, are those of the results."""

import re
import shutil
from pathlib import Path

import pytest

from tagspread.bench.run import Request, run_bench
from tests.bench.conftest import Listener

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All tables made again, without a look at those that are kept."""
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


def cells(row):
    return [cell.strip().strip("*") for cell in row.strip().strip("|").split("|")]


def test_docs_table_has_the_results_figures(made):
    """Each row of the docs: last epoch, best on test and the paper's, at both shares."""
    docs = (ROOT / "docs" / "benchmarks.md").read_text().partition("## The paper's table")[2].partition("\n## ")[0]
    documented = [cells(line) for line in docs.splitlines() if re.match(r"\| [A-Z]", line)]
    honest, parity = (
        {cells(line)[0]: cells(line)[1:3] for line in part.splitlines() if re.match(r"\| [A-Z]", line)}
        for part in re.split(r"## Protocol: \w+", (made / "voc" / "table.md").read_text())[1:]
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


def test_docs_table_of_heads_has_the_results_figures(made):
    docs = (ROOT / "docs" / "benchmarks.md").read_text().partition("### Every rule that labels from scores")[2]
    documented = [cells(line) for line in docs.partition("\n## ")[0].splitlines() if re.match(r"\| [A-Z]", line)]
    table = (made / "voc-head" / "table.md").read_text().partition("## Protocol: parity")[0]
    found = [cells(re.sub(r" \[.*?\]", "", line)) for line in table.splitlines() if re.match(r"\| [A-Z]", line)]
    assert len(found) == 10
    assert [row[1:] for row in documented] == [[figure.strip("*") for figure in row[1:]] for row in found]
    assert [re.sub(":.*", "", row[0]) for row in documented] == [row[0] for row in found]
