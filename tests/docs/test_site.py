"""Build the documentation site strictly and offline, and open each page in a browser."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import tagspread as ts

pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install '.[docs]')")

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SEARCHES = {  # what people search for, and where it must lead
    "labeled": "guides/photos/",
    "unlabeled": "guides/photos/",
    "pseudo-label": "guides/pseudo-labels/",
    "threshold": "guides/thresholds/",
    "calibration": "guides/thresholds/",
    "class prior": "guides/unknown-labels/",
    "mAP": "guides/thresholds/",
    "resume": "guides/training/",
    "embedding": "guides/no-gpu/",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a broken link or a docstring that cannot be read fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Addresses of all pages, relative to the site."""
    found = {page.parent.relative_to(site).as_posix() + "/": page.read_text() for page in site.rglob("index.html")}
    return {"" if address == "./" else address: text for address, text in found.items()}


def test_the_navigation_reaches_every_page(pages):
    linked = set(re.findall(r'<a href="([^"#]*)" class="md-nav__link', pages[""]))
    shown = {"" if link == "." else link for link in linked}
    assert shown == set(pages)
    assert len(shown) > 40


def test_nothing_is_loaded_from_elsewhere(site, pages):
    """Links may lead to other sites; scripts, styles, fonts and images may not come from them."""
    for address, text in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//[^"]*', text)
        assert loaded + re.findall(r'<link\b[^>]*href="(?:https?:)?//[^"]*', text) == [], address
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", style.read_text()), style.name


def test_formulas_are_formulas(pages):
    """All formulas are rendered: no LaTeX command is left in the page."""
    elements = [(address, one) for address, text in pages.items() for one in re.findall(r"<math.*?</math>", text, re.S)]
    assert len(elements) > 100
    assert [(address, one) for address, one in elements if re.search(r"\\[a-zA-Z]", one)] == []
    for address, text in pages.items():
        assert "arithmatex" not in text, address
        prose = re.sub(r"<pre.*?</pre>", "", text, flags=re.S)
        assert not re.search(r":(?:math|func|class|meth):|\.\. math::|&gt;&gt;&gt;|<blockquote>", prose), address


def test_every_public_name_is_in_the_reference(pages):
    documented = set()
    for address, text in pages.items():
        if address.startswith("api/"):
            documented |= {name.rpartition(".")[2] for name in re.findall(r'id="(tagspread[\w.]*)"', text)}
    assert {*ts.__all__, "LabelTable", "read_table"} - documented == {"__version__"}
    assert "__version__" in pages["api/"]


def test_every_search_word_is_in_a_title_of_its_page(site):
    """The search of the site ranks titles far above text."""
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    for words, address in SEARCHES.items():
        titles = [one["title"].lower() for one in entries if one["location"].partition("#")[0] == address]
        assert any(words.lower() in title for title in titles), f"no title of {address} has {words!r}: {titles}"


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install '.[dev]')")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except sync_api.Error as error:
            reason = str(error).splitlines()[0]
            pytest.skip(f"no Chromium can be started (apt-get install chromium): {reason}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def server(site):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


def opened(browser, complaints, **options):
    """A browser tab that records console errors, missing files and requests to other hosts."""
    tab = browser.new_context(**options).new_page()
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("response", lambda response: complaints.append(response.url) if response.status >= 400 else None)
    local = ("http://127.0.0.1:", "data:", "blob:")
    tab.on("request", lambda request: None if request.url.startswith(local) else complaints.append(request.url))
    return tab


@pytest.mark.parametrize("width", [1280, 375])
def test_every_page_opens(browser, server, pages, width):
    complaints: list[str] = []
    tab = opened(browser, complaints, viewport={"width": width, "height": 800})
    for address in sorted(pages):
        tab.goto(server + address, wait_until="load")
        assert tab.locator("h1").first.is_visible(), address
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{address} is too wide"
        images = "[...document.images].every(one => one.complete && one.naturalWidth > 0)"
        assert tab.evaluate(images), f"{address} has an image that does not load"
        assert complaints == [], address
    tab.context.close()


def luminance(tab, selector, part):
    color = tab.locator(selector).first.evaluate(f"one => getComputedStyle(one).{part}")
    red, green, blue = (float(value) for value in re.findall(r"[\d.]+", color)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_light_and_dark(browser, server):
    """The color scheme follows the system, and the button switches it."""
    for scheme, dark in (("light", False), ("dark", True)):
        complaints: list[str] = []
        tab = opened(browser, complaints, color_scheme=scheme)
        tab.goto(server)
        background, text = luminance(tab, "body", "backgroundColor"), luminance(tab, "article p", "color")
        assert (background < 0.2) == dark
        assert (text > background) == dark
        tab.locator("label[for^=__palette]:visible").click()
        tab.wait_for_function(f"document.body.dataset.mdColorScheme === '{'default' if dark else 'slate'}'")
        assert (luminance(tab, "body", "backgroundColor") < 0.2) != dark
        assert complaints == []
        tab.context.close()


def test_search_finds(browser, server):
    complaints: list[str] = []
    tab = opened(browser, complaints, viewport={"width": 1280, "height": 900})
    tab.goto(server)
    box, results = tab.locator(".md-search__input"), tab.locator(".md-search-result__item a.md-search-result__link")
    box.click()
    for words, address in SEARCHES.items():
        box.fill("")
        box.press("End")  # the search listens to keys
        tab.wait_for_function("!document.querySelector('.md-search-result__item')")
        box.fill(words)
        box.press("End")
        results.first.wait_for()
        links = results.evaluate_all("all => all.map(one => one.href)")
        ranked = list(dict.fromkeys(link.removeprefix(server).partition("?")[0].partition("#")[0] for link in links))
        assert address in ranked[:5], (words, ranked)
    assert complaints == []
    tab.context.close()
