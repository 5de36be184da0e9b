"""The vocabulary of code and documentation: words ruled out in favor of the field's words and American spelling.

To add an exception, give the file, the text around the word, and the reason.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("src", "docs", "examples", "README.md")

# what is ruled out, and what to write instead
RULED_OUT = {
    r"piles?": "unlabeled set",
    r"untagged": "unlabeled",
    r"pictures?": "image",
    r"mend(s|ed|ing)?": "fix",
    r"look(s|ed|ing) at": "score, run the model on, compute features, inspect",
    r"(go|goes|going|gone|went) on (with|from)": "resume, continue",
    r"lea(ve|ves|ving) away|left away": "omit, leave out",
    r"\w*labell(ed|ing|er)\w*": "labeled, labeling",
    r"learnt": "learned",
    r"\w*colours?\w*": "color",
    r"grey\w*": "gray",
    r"centr(e|es|ed|ing)": "center",
    r"(un)?neighbour\w*": "neighbor",
    r"(un)?favour\w*": "favor",
    r"behaviour\w*": "behavior",
    r"artefact\w*": "artifact",
    r"\w*(normal|standard|optim|initial|recogn|summar|organ|serial|visual|minim|maxim|general|util|final)is"
    r"(e|es|ed|er|ers|ing|ation|ations)": "-ize, -ization",
}

# (file, pattern of the text that is allowed, reason)
EXCEPTIONS = [
    ("src/tagspread/report/page.html.j2", r"aria-labelledby", "an HTML attribute"),
    ("src/tagspread/review/page/index.html", r"aria-labelledby", "an HTML attribute"),
    ("README.md", r"untagged pile", "the one sentence that paints the problem"),
]

# what a contributor searches for with `git grep`, and the module that must say it in the first line of its docstring
SEARCHES = {
    "labeled": "train/dataset.py",
    "unlabeled": "data/images/find.py",
    "pseudo-label": "core/thresholds.py",
    "threshold": "core/decision.py",
    "calibration": "core/calibration.py",
    "class prior": "core/theory.py",
    "mAP": "core/metrics.py",
    "resume": "train/training.py",
    "embedding": "predict/embedding.py",
}

WORDS = {re.compile(rf"(?<![A-Za-z]){pattern}(?![A-Za-z])", re.IGNORECASE): say for pattern, say in RULED_OUT.items()}


def texts():
    """Yield the tracked text files of the places, or all of them where there is no git."""
    listed = subprocess.run(["git", "ls-files", "--", *PLACES], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split() or [
        str(file.relative_to(ROOT)) for place in PLACES for file in [ROOT / place, *(ROOT / place).rglob("*")]
    ]
    for name in names:
        file = ROOT / name
        if file.suffix in {".py", ".md", ".j2", ".js", ".css", ".html", ".toml", ".ipynb", ".yml"} and file.is_file():
            yield name, file.read_text(encoding="utf-8")


def violations(name, text):
    """Return ``file:line: word (say ...)`` for each word that is ruled out and not excepted."""
    for file, allowed, _ in EXCEPTIONS:
        if file == name:
            text = re.sub(allowed, lambda match: "-" * len(match[0]), text)
    # a phrase may be broken by the end of a line, and by the marks of a comment or a quotation on the next one
    joined = re.sub(r"\n[ \t]*[#>]?[ \t]*", lambda match: "\n" + " " * (len(match[0]) - 1), text)
    found = []
    for pattern, say in WORDS.items():
        spaced = re.compile(pattern.pattern.replace(" ", r"\s+"), re.IGNORECASE)
        for match in spaced.finditer(joined):
            line = joined.count("\n", 0, match.start()) + 1
            found.append((match.start(), f"{name}:{line}: {' '.join(match[0].split())!r} (say: {say})"))
    return [message for _, message in sorted(found)]


def test_words_that_are_ruled_out():
    found = [message for name, text in texts() for message in violations(name, text)]
    assert not found, "\n" + "\n".join(found)


def test_exceptions_are_still_needed():
    existing = dict(texts())
    for file, allowed, reason in EXCEPTIONS:
        assert re.search(allowed, existing[file]), (
            f"{file} no longer holds {allowed!r} ({reason}); remove the exception"
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a pile of Pictures", ["pile", "Pictures"]),
        ("we looked\n    at them", ["looked at"]),
        ("# the run goes\n# on with it", ["goes on with"]),
        ("unlabelled_rows and grey", ["unlabelled_rows", "grey"]),
        ("def normalise(colour): ...", ["normalise", "colour"]),
        ("compile, depicture, amendment, recommended, exercised, promised", []),
        ("the image carries on without it; look at the report", []),
    ],
)
def test_what_is_found(text, words):
    found = violations("some.py", text)
    assert [message.split("'")[1] for message in found] == words
    assert all(message.startswith("some.py:") for message in found)


def test_an_exception_is_for_one_file_only():
    text = 'aria-labelledby="title"'
    assert violations("src/tagspread/report/page.html.j2", text) == []
    assert violations("docs/report.md", text) != []


@pytest.mark.parametrize(("words", "module"), SEARCHES.items())
def test_a_search_in_first_lines_of_docstrings_finds_the_module(words, module):
    tree = ast.parse((ROOT / "src" / "tagspread" / module).read_text(encoding="utf-8"))
    first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
    assert re.search(rf"\b{words}", first_line), f"{module}: {first_line!r} does not say {words!r}"
