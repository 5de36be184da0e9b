"""Open the report in a browser: sorting, choosing a tag, print; desktop and phone, light and dark."""

import itertools

import pytest

from tests.browser import chromium

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 760}


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(params=[(DESK, "light"), (DESK, "dark"), (PHONE, "light"), (PHONE, "dark")], ids=str)
def tab(browser, page, request):
    """The opened report; it must not send requests or log errors."""
    size, scheme = request.param
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    complaints, asked = [], []
    tab = context.new_page()
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    assert complaints == []
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    assert tab.evaluate("window.hit") is None  # no tag or file name was run as a script
    context.close()


def column(tab, number):
    cells = tab.eval_on_selector_all(
        "#metrics tbody tr", "(rows, k) => rows.map(row => row.cells[k].dataset.value)", number
    )
    return [float(cell) for cell in cells if cell], [bool(cell) for cell in cells]


def test_the_table_is_sorted_by_pressing_a_heading(tab):
    heading = tab.locator("#metrics thead th").nth(6)
    heading.get_by_role("button", name="AP").click()
    values, there = column(tab, 6)
    assert heading.get_attribute("aria-sort") == "descending"
    assert len(values) > 3
    assert values == sorted(values, reverse=True)
    assert there == sorted(there, reverse=True)
    heading.get_by_role("button").click()
    values, there = column(tab, 6)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert values == sorted(values)
    assert there == sorted(there, reverse=True)
    tab.locator("#metrics thead th").first.get_by_role("button").press("Enter")
    names = tab.locator("#metrics tbody th").all_inner_texts()
    assert names[1:] == sorted(names[1:])
    assert tab.locator("#metrics [aria-sort]").count() == 1


def visible(tab):
    return [panel.get_attribute("id") for panel in tab.locator(".panel").all() if panel.is_visible()]


def test_one_tag_is_shown_at_a_time(tab):
    ids = [panel.get_attribute("id") for panel in tab.locator(".panel").all()]
    assert len(ids) == 10
    assert visible(tab) == ids[:1]
    tab.get_by_label("Tag", exact=True).select_option("tag-4")
    assert visible(tab) == ["tag-4"]
    tab.get_by_role("button", name="next").click()
    assert visible(tab) == [ids[ids.index("tag-4") + 1]]
    for _ in range(len(ids)):
        tab.get_by_role("button", name="previous").click()
    assert visible(tab) == [ids[ids.index("tag-4") + 1]]  # all the way round
    link = tab.locator("#metrics tbody a").nth(2)
    link.click()
    tab.locator(link.get_attribute("href")).wait_for()  # the hashchange event follows the click
    assert visible(tab) == [link.get_attribute("href")[1:]]
    assert tab.get_by_label("Tag", exact=True).input_value() == visible(tab)[0]


def test_nothing_hangs_over_the_edge(tab):
    tab.locator("details").first.evaluate("one => { one.open = true; }")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate(
        "[...document.querySelectorAll('.chart text')].every(one => one.getBoundingClientRect().right <= innerWidth)"
    )


def test_images_are_there_and_described(tab):
    images = tab.locator(".panel:not([hidden]) img")
    assert images.count() > 3
    for image in images.all():
        assert image.evaluate("one => one.decode().then(() => one.naturalWidth)") > 0
        assert "probability" in image.get_attribute("alt")
    assert tab.locator("svg.chart:not([aria-label]), svg.strip:not([aria-label])").count() == 0
    levels = tab.eval_on_selector_all("h1, h2, h3, h4", "found => found.map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


LUMINANCE = """one => {
  const parts = getComputedStyle(one).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
  let at = one;
  while (at && getComputedStyle(at).backgroundColor.endsWith(", 0)")) at = at.parentElement;
  const back = getComputedStyle(at || document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const [high, low] = [light(parts), light(back)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}"""


def test_text_stands_out_from_its_background(tab):
    """The Web Content Accessibility Guidelines require a contrast of at least 4.5 to 1 for text."""
    for selector in ("h1", ".byline", ".finding", ".tile span", ".box li", "figcaption", ".number", "td", ".name a",
                     ".verdict b", "thead button", "select", "summary"):  # fmt: skip
        found = tab.locator(selector).first
        assert found.evaluate(LUMINANCE) >= 4.5, selector


def test_without_scripts_everything_is_there(browser, page):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(page.as_uri())
    assert tab.locator(".panel:visible").count() == 10
    context.close()


def test_it_prints(browser, page):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.emulate_media(media="print")
    assert not tab.locator("nav").is_visible()
    assert not tab.locator(".chooser").is_visible()
    assert tab.pdf(format="A4").startswith(b"%PDF")
    context.close()
