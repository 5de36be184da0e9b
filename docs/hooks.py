"""MkDocs hooks: formulas as MathML, notebooks as pages, and the reStructuredText of docstrings as Markdown.

Everything happens while the site is built, so that its pages load no script, style or font from another server. The
font of formulas is STIX Two Math as the package ziamath brings it, as few systems have one that browsers can use.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)
SIZED = re.compile(r"\\[bB]igg?[lr]?\s*\\([lr])(floor|ceil)\b")
ARGMAX = re.compile(r"\\operatorname\*\{arg\\,max\}|\\arg\\max")
BAR = re.compile(r"<mo(?: stretchy=\"false\")?>(&#x0007C;|&#x02016;|&#x02225;|\|)</mo>")
DIRECTIVE = re.compile(r"^( *)\.\. math::[ \n]+(.*?)(?=\n\s*\n|\n\1\S|\Z)", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
DOCTEST = re.compile(r"^ *>>> .*\n(?:^ *\S.*\n?)*", re.MULTILINE)
FONT = "STIXTwoMath-Regular.ttf"
ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):`~?([\w.]+)`")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read docstrings as they are written for Python: with roles and math directives."""
    config.markdown_extensions.append(DocstringMarkup())  # type: ignore[arg-type]  # an instance is as good as a name
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every notebook, and CONTRIBUTING.md, whose lists MkDocs wants to be indented by four."""
    guide, title, steps = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Add a method")
    steps = re.sub(r"^   (?=\s*\S)", "    ", steps, flags=re.MULTILINE)
    files.append(File.generated(config, "contributing.md", content=guide + title + steps))
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=notebook_page(notebook)))
    return files


def on_page_markdown(text: str, page: Page, **_: Any) -> str:
    """Let the search rank guides above pages that mention the same word in passing."""
    if page.file.src_uri.startswith(("guides/", "get-started")):
        page.meta.setdefault("search", {"boost": 3})
    return text


def on_page_content(text: str, **_: Any) -> str:
    """Replace each formula by MathML, which browsers draw without a script."""
    return FORMULA.sub(lambda match: mathml(html.unescape(match[2]), block=match[1] == "div"), text)


def on_post_build(config: MkDocsConfig) -> None:
    """Copy the font of formulas, which site.css names."""
    folder = Path(config.site_dir, "assets", "fonts")
    folder.mkdir(parents=True, exist_ok=True)
    with resources("ziamath").joinpath("fonts", FONT).open("rb") as font, (folder / FONT).open("wb") as copy:
        shutil.copyfileobj(font, copy)


def mathml(latex: str, *, block: bool) -> str:
    """Return a formula as MathML; what stands between wide spaces becomes parts that may go to the next line."""
    parts = latex.split(r"\qquad") if block else [latex]
    if any(part.count("{") != part.count("}") for part in parts):
        parts = [latex]
    made = "".join(_element(part.strip(), "block" if block else "inline") for part in parts)
    return f'<div class="formula" tabindex="0">{made}</div>' if block else made


def _element(latex: str, display: str) -> str:
    """Return one MathML element; rewrites what the converter does not know or sets badly."""
    latex = SIZED.sub(lambda match: rf"\{'left' if match[1] == 'l' else 'right'}\{match[1]}{match[2]}", latex)
    latex = ARGMAX.sub(r"\\operatorname{arg}\\max", latex)
    return BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', convert(latex, display=display))


def notebook_page(file: Path) -> str:
    """Return a notebook as Markdown: text, code, and the outputs that are stored in it."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    link = f"*This page is the notebook `docs/notebooks/{file.name}`.*"
    return "\n\n".join([parts[0], link, *parts[1:]]) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        encoded = "".join(data["image/png"]).strip()
        return f'<img class="output" alt="Output of the cell above" src="data:image/png;base64,{encoded}">'
    text = "".join(output.get("text", data.get("text/plain", [])))
    return f'<pre class="output">{html.escape(text.rstrip())}</pre>'


class DocstringMarkup(Extension):
    """Turn ``:math:`` and ``.. math::`` into formulas, and ``:func:`` and its like into code that links."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the preprocessor before fenced blocks are read."""
        md.preprocessors.register(_DocstringMarkup(md), "docstring_markup", 100)


class _DocstringMarkup(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        parts = FENCED.split("\n".join(lines))  # every second one is code, which stays as it is
        return "".join(part if k % 2 else _markdown(part) for k, part in enumerate(parts)).split("\n")


def _markdown(text: str) -> str:
    text = ROLE.sub(_reference, text)
    text = re.sub(r":math:`(.*?)`", r"$\1$", text, flags=re.DOTALL)
    text = DIRECTIVE.sub(lambda match: f"\n```math\n{match[2].strip()}\n```\n", text)
    return DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)


def _reference(match: re.Match[str]) -> str:
    _, dot, name = match[1].rpartition(".")
    return f'<autoref identifier="{match[1]}" optional><code>{name}</code></autoref>' if dot else f"`{name}`"
