"""The review page in a real browser: the keyboard alone, the grid, undo, a killed server, two people, a full disk."""

import re
import resource
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tagspread as ts
from tagspread.data.datasets.digits import CLASSES, digit_canvases
from tagspread.data.tables.read import read_table
from tagspread.predict.comparison import compare_runs
from tagspread.review.answers import AnswerStore, answers_file
from tagspread.review.index import fresh_index
from tagspread.review.prepare import prepare_index
from tagspread.review.table import export_answers
from tests.browser import chromium
from tests.review.conftest import EVIL, TAGS, make_run, wait_for

DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
QUICK: dict[str, Any] = {
    "mode": "head", "backbone": "small", "weights": "none", "image_size": 24, "unlabeled_weight": 1.0, "flip": False,
    "device": "cpu", "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def open_page(browser):
    """Open the page of a server in a new context; it must neither log errors nor load anything from elsewhere."""
    contexts, complaints, foreign = [], [], list[str]()

    def complain(text):
        complaints.append(text)

    def requested(url, server):
        if not url.startswith(f"http://127.0.0.1:{server.port}/"):
            foreign.append(url)

    def start(server, expected="", **options):
        context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce"} | options)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(20_000)
        if not expected:
            tab.on("console", lambda message: complain(message.text))
        tab.on("pageerror", lambda error: complain(str(error)))
        tab.on("request", lambda request: requested(request.url, server))
        tab.goto(server.address)
        tab.locator("#caption").wait_for()
        return tab

    yield start
    for context in contexts:
        for tab in context.pages:
            assert tab.evaluate("window.hit") is None  # no tag or file name was run as a script
        context.close()
    assert complaints == []
    assert foreign == []


def expect(locator):
    from playwright import sync_api

    return sync_api.expect(locator)


def saved(tab):
    expect(tab.locator("#saved")).to_have_text("All saved")


def leave(tab, key):
    """Press a key that leads to another image, and wait for it; return the name of the one before."""
    before = name(tab)
    press(tab, key)
    expect(tab.locator("#caption")).not_to_contain_text(before)
    return before


def name(tab):
    """Return the name of the image that is shown, once one is."""
    tab.locator("#caption").wait_for()
    return tab.locator("#caption").inner_text().split(" · ")[0]


def press(tab, *keys):
    for key in keys:
        tab.keyboard.press(key)


def kept(run):
    with AnswerStore.open(run) as store:
        return store.answers()


def history(run):
    with AnswerStore.open(run) as store:
        return store.history()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained run on 100 canvases of digits, 40 of them labeled, prepared for its review."""
    top = tmp_path_factory.mktemp("circle")
    drawn = digit_canvases(100, 1, seed=0)[0]
    (top / "photos").mkdir()
    for k, image in enumerate(drawn.images):
        Image.fromarray(image.transpose(1, 2, 0)).save(top / "photos" / f"p{k:03}.png")
    tags = ["|".join(np.array(CLASSES)[row == 1]) for row in drawn.y[:40]]
    (top / "labels.csv").write_text("\n".join(["image,tags", *(f"p{k:03}.png,{tags[k]}" for k in range(40))]) + "\n")
    ts.train(top / "photos", top / "labels.csv", top / "run", test_share=0.3, **QUICK)
    prepare_index(top / "run", device="cpu", quiet=True)
    return top


def test_from_the_keyboard_to_a_retrained_and_compared_run(trained, serve, open_page):
    run = trained / "run"
    index = fresh_index(run)
    assert index is not None
    server = serve(run)
    tab = open_page(server)
    seen = []
    for k in range(30):
        seen.append(name(tab))
        if k == 0:
            press(tab, "1", "y", "n", "u")  # the first three tags, one after the other
        elif k == 1:
            press(tab, "3", "n", "ArrowUp", "ArrowUp", "Space")
        leave(tab, "Enter")
    assert len(set(seen)) == 30
    saved(tab)
    assert tab.locator("#progress").inner_text().startswith("30 of 60; pseudo-labels confirmed: ")
    first = {one.tag: one.answer for one in kept(run) if one.image == seen[0]}
    k = index.names.index(seen[0])
    scores = np.round(index.scores[k].astype(float), 4)
    suggested = scores >= index.thresholds
    shown = np.lexsort((-scores, ~suggested))  # suggested tags first, then by probability
    assert [first[CLASSES[tag]] for tag in shown[:3]] == ["yes", "no", "unknown"]
    for tag in shown[3:]:
        assert first[CLASSES[tag]] == ("yes" if suggested[tag] else "no")

    press(tab, "z")
    expect(tab.locator("#caption")).to_contain_text(seen[-1])
    assert len({one.image for one in kept(run)}) == 29

    press(tab, "g")
    tab.wait_for_selector(".tile")
    assert tab.evaluate("document.activeElement.className").startswith("tile")
    tag = tab.locator("#grid-tag").input_value()
    count = tab.locator(".tile").count()
    press(tab, "ArrowRight", "Space", "ArrowRight", "u")
    labels = [tile.get_attribute("aria-label") for tile in tab.locator(".tile").all()]
    assert [label.endswith(", no") for label in labels[:2]] == [False, True]
    saved(tab)
    grid_answers = [one.answer for one in kept(run) if one.source == "grid"]
    assert grid_answers == ["no", "unknown"]
    press(tab, "Enter")
    expect(tab.locator(f"[aria-label='{labels[0]}']")).to_have_count(0)
    saved(tab)
    assert len([one for one in kept(run) if one.source == "grid" and one.tag == tag]) == count

    press(tab, "g")
    name(tab)
    press(tab, "t")
    tab.keyboard.type("lynx")
    press(tab, "Enter")
    chip = tab.get_by_role("button", name=re.compile("^lynx, new tag"))
    chip.wait_for()
    assert chip.evaluate("chip => chip === document.activeElement")
    current = name(tab)
    press(tab, "y")
    saved(tab)

    tab.close()
    server.kill()
    before = kept(run)
    again = open_page(serve(run))
    assert again.locator("#progress").inner_text().startswith("29 of 60")
    assert name(again) in (current, seen[-1])
    assert again.get_by_role("button", name=re.compile("^lynx")).count() == 1
    assert kept(run) == before
    assert [one.image for one in before if one.tag == "lynx"] == [current]

    # while the server runs: exported, and trained on
    exported = export_answers(run, trained / "exported.csv")
    assert exported.new_tags == ("lynx",)
    table = read_table(trained / "exported.csv", trained / "photos")
    rows = {path.name: row for path, row in zip(table.paths, table.y.tolist(), strict=True)}
    for one in before:
        labels_of = dict(zip(table.classes, rows[one.image], strict=True))
        assert labels_of[one.tag] == {"yes": 1, "no": 0, "unknown": -1}[one.answer]
    options = {"answers": run, "priors": "audit", "compare": run}
    second = ts.train(trained / "photos", trained / "labels.csv", trained / "run2", **options, **QUICK)
    assert "lynx" in ts.load(second).classes
    compared = compare_runs(run, second.path)
    assert compared.images == 12  # the test images of the first run
    assert "run2" in compared.verdict


def test_answers_given_while_the_server_is_dead_are_saved_later(run, serve, open_page):
    server = serve(run)
    tab = open_page(server, expected="refused connections")
    first = name(tab)
    server.kill()
    press(tab, "y", "Enter")
    expect(tab.locator("#problem")).to_contain_text("The server does not answer")
    assert "2 steps not saved yet" in tab.locator("#saved").inner_text()
    assert kept(run) == []
    context = tab.context
    tab.close(run_before_unload=False)

    # the server has a new token, but the same address: the next page sends what the closed one could not
    again = serve(run, "--port", str(server.port))
    tab = context.new_page()
    tab.add_init_script("Date.now = (now => () => now() + 60_000)(Date.now)")  # the other page is long gone
    tab.goto(again.address)
    wait_for(lambda: len(kept(run)) == len(TAGS))
    assert {one.image for one in kept(run)} == {first}
    saved(tab)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of another process's files")
def test_a_full_disk_is_reported_and_nothing_is_lost(run, serve, open_page):
    server = serve(run)
    tab = open_page(server, expected="507")
    press(tab, "y")
    saved(tab)
    largest = max(file.stat().st_size for file in answers_file(run).parent.iterdir())
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    # no file of the server may grow further, so that its next write fails, as on a full disk
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (largest, hard))
    for _ in range(20):  # the file may have some room left
        press(tab, "n")
    tab.get_by_text("free disk space").wait_for()
    expect(tab.locator("#saved")).to_contain_text("not saved yet")
    before = len(history(run))
    assert before < 21
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    saved(tab)
    assert [one.answer for one in history(run)] == ["yes", *["no"] * 20]
    assert tab.locator("#problem").is_hidden()


def test_a_hostile_page_in_another_tab_cannot_answer(run, serve, open_page):
    server = serve(run)
    tab = open_page(server, expected="a blocked request")
    hostile = tab.context.new_page()
    hostile.route("http://evil.example/", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html"))
    hostile.goto("http://evil.example/")
    body = '{"page":"page-0001","who":"eve","batch":"batch-0001","answers":[{"image":0,"tag":"cat","answer":"yes"}]}'
    for kind in ("text/plain", "application/json"):  # even if it knew the token
        hostile.evaluate(
            """async ([url, body, kind]) => {
                const mode = kind === "text/plain" ? "no-cors" : "cors";
                try { await fetch(url, { method: "POST", body, headers: { "Content-Type": kind }, mode }); }
                catch (error) { return String(error); }
            }""",
            [f"{server.address}api/answers", body, kind],
        )
    hostile.set_content(
        f'<form method="post" enctype="text/plain" action="{server.address}api/answers"><input name=\'{body}\'></form>'
        f'<iframe src="{server.address}"></iframe><img src="{server.address}image/0/large">'
    )
    loaded = hostile.evaluate(
        """new Promise(done => {
            const image = document.images[0];
            image.onload = () => done(true);
            image.onerror = () => done(false);
            if (image.complete) done(image.naturalWidth > 0);
        })"""
    )
    assert not loaded  # Cross-Origin-Resource-Policy
    hostile.evaluate("document.forms[0].submit()")
    hostile.wait_for_url(f"{server.address}api/answers")
    assert kept(run) == []
    press(tab, "y")
    saved(tab)
    assert [one.who for one in kept(run)] == ["ann"]


def test_images_that_were_deleted_are_named_and_can_be_skipped(run, index, serve, open_page):
    server = serve(run)
    for k in range(20):
        index.path(k).unlink()
    tab = open_page(server, expected="404")
    missing = 0
    for _ in range(40):
        current = name(tab)
        if index.names.index(current) < 20:
            expect(tab.locator("#figure .gone")).to_contain_text(f"{current[2:]} cannot be shown: no such file")
            missing += 1
        press(tab, "ArrowRight")
    assert missing == 20
    tab.locator("#figure .gone", has_text="No image is left").wait_for()
    saved(tab)
    assert kept(run) == []
    press(tab, "z")  # skipping can be undone, too
    tab.locator("#caption").wait_for()


def test_two_people_get_different_images_and_see_their_conflicts(tmp_path, serve, open_page):
    run = tmp_path / "run"
    make_run(run, tmp_path / "images", 60)
    server = serve(run)
    tabs = [open_page(server), open_page(server)]
    for tab, who in zip(tabs, ("ann", "bob"), strict=True):
        tab.click("#open-settings")
        tab.fill("#who", who)
        tab.keyboard.press("Enter")
    seen: dict[int, list[str]] = {0: [], 1: []}
    for _ in range(20):
        for person, tab in enumerate(tabs):
            seen[person].append(leave(tab, "Enter"))
    for tab in tabs:
        saved(tab)
    assert len({*seen[0], *seen[1]}) == 40
    assert {one.image for one in kept(run) if one.who == "ann"} == set(seen[0])
    assert len(kept(run)) == 40 * len(TAGS)

    ann, bob = tabs
    bob.click("#filters summary")
    bob.select_option("#filter-status", "answered")
    expect(bob.locator("#caption")).to_contain_text(re.compile("|".join(seen[0] + seen[1])))
    own = name(bob) in seen[1]
    press(bob, "1", "Space")
    saved(bob)
    if not own:
        bob.get_by_text("⚠ ann").wait_for()
        assert bob.locator("#conflicts").inner_text() == "1 conflict"
    del ann


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_fits_and_is_labeled(size, scheme, run, serve, open_page):
    tab = open_page(serve(run), viewport=size, color_scheme=scheme)
    for mode in ("image", "grid"):
        tab.click(f"#mode-{mode}")
        tab.wait_for_selector("#figure img" if mode == "image" else ".tile")
        width = tab.evaluate("document.documentElement.scrollWidth")
        assert width <= size["width"]
        nameless = tab.evaluate(
            """() => [...document.querySelectorAll("button, input, select, img")]
                .filter(one => one.checkVisibility() && !one.closest(".tile > *"))
                .filter(one => !(one.getAttribute("aria-label") || one.alt || one.innerText || one.labels?.length))
                .map(one => one.outerHTML)"""
        )
        assert nameless == []
        small = tab.evaluate(
            """() => [...document.querySelectorAll("button")].filter(one => one.checkVisibility())
                .map(one => one.getBoundingClientRect().height).filter(height => height < 24)"""
        )
        assert small == []
    assert tab.get_by_text(EVIL).count() > 0 or tab.locator("option", has_text=EVIL).count() > 0
