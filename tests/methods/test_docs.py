"""The method pages agree with the code: options and defaults, needs, and commands that are accepted."""

import ast
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import typer

import tagspread as ts
from tagspread.cli import app
from tagspread.errors import TagspreadError
from tagspread.linear.rounds import check_method
from tagspread.methods import METHODS, Method, get_method

FOLDER = Path(__file__).parents[2] / "docs" / "methods"
ORIGINS = ("paper", "released code", "original", "second-hand", "reasoned")
HEADINGS = [
    "The idea",
    "The equation",
    "What it needs",
    "Options",
    "What differs from the original, and why",
    "How to run it",
    "What it costs",
]
every_method = pytest.mark.parametrize("name", METHODS)


def page(name):
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def sections(name):
    """Return the text under each heading."""
    _, *parts = re.split(r"^## (.+)\n", page(name), flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def table(text):
    """Return the rows of a Markdown table without its heading; a bar within backticks belongs to the cell."""
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def index():
    text = (FOLDER / "README.md").read_text(encoding="utf-8").partition("## ")[0]
    return {row[0]: row[1:] for row in table(text)}


def test_there_is_a_page_for_every_method_and_for_nothing_else():
    assert {file.stem for file in FOLDER.glob("*.md")} == {*METHODS, "README"}
    assert list(index()) == [f"[{name}]({name}.md)" for name in METHODS]


@every_method
def test_the_index_says_what_tagspread_methods_says_and_what_features_allow(name):
    idea, *_, on_features = index()[f"[{name}]({name}.md)"]
    assert idea == METHODS[name].summary
    try:
        check_method(get_method(name))
    except TagspreadError:
        assert on_features == "no"
    else:
        assert on_features == "yes"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.md")), ids=lambda file: file.stem)
def test_links_lead_somewhere(file):
    prose = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert (FOLDER / target).is_file(), target


@every_method
def test_headings(name):
    assert page(name).startswith(f"# {name}: ")
    assert list(sections(name)) == HEADINGS
    assert "```math" in sections(name)["The equation"]
    assert "docs/benchmarks.md" in sections(name)["What it costs"]


@every_method
def test_every_option_is_there_with_its_true_default_and_no_other(name):
    rows = table(sections(name)["Options"])
    stated = {option: default.strip("`") for option, default, *_ in rows}
    true = {f"`{option.name}`": option.default for option in fields(METHODS[name])}
    assert list(stated) == list(true)
    for option, default in true.items():
        found = eval(stated[option], {"__builtins__": {}})
        assert found == default, option
        assert type(found) is type(default), option
    assert all(origin.startswith(ORIGINS) for _, _, origin, _ in rows)
    if not rows:
        assert sections(name)["Options"].strip().startswith("None.")


@every_method
def test_what_it_needs(name):
    method = get_method(name)
    (stated,) = table(sections(name)["What it needs"])
    true = [
        method.per_step,
        method.reads_labeled,
        method.share_apart > 0,
        type(method).network is not Method.network,
        method.on_features,
    ]
    assert [cell.startswith("yes") for cell in stated[:5]] == true
    assert stated[2].startswith("if asked") == (not true[2] and type(method).share_apart is not Method.share_apart)


@every_method
def test_commands_can_be_given(name):
    """Parse the commands as the command line does, without training."""
    text = dict(re.findall(r"^```(\w+)\n(.*?)^```", sections(name)["How to run it"], re.M | re.S))["text"]
    command, call = text.strip().splitlines()

    program, verb, *words = shlex.split(command)
    train = typer.main.get_group(app).commands[verb]
    given = train.make_context("train", words).params
    settings = dict(pair.split("=", 1) for pair in given["set_"] or [])
    by_command = {key: ast.literal_eval(value) if value[0] == "{" else value for key, value in settings.items()}
    by_command |= {key: given[key] for key in ("method", "preset", "epochs") if given[key] is not None}
    assert (program, by_command["method"]) == ("tagspread", name)

    tree = ast.parse(call, mode="eval").body
    assert ast.unparse(tree.func) == "ts.train"
    assert [value.value for value in tree.args] == [str(given[key]) for key in ("images", "labels", "out")]
    by_call = {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords}
    assert by_call == by_command  # both ways say the same

    config = ts.make_config(**by_call)  # raises for what is no setting
    get_method(config.method, **config.method_options)  # and this for what is no option
