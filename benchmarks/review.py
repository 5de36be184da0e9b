"""Measure the review page in a browser: the wait for the next image, the server's memory, and two people at once.

    python benchmarks/review.py                         # 10,000 images; needs Chromium and the extra "review"
    python benchmarks/review.py --images 500 --keys 20  # a quick try

The run is made up: drawn images of 1280 x 960 pixels, 40 tags with random scores, and an index as ``tagspread review``
writes it, so no network is needed. Three things are measured:

wait    time from pressing Enter ("save as shown") until the next image is decoded and painted, in the browser. Once
        with --pause seconds between the keys, as a quick person works, and once with each key pressed as soon as the
        next image is there
memory  largest resident memory of the server, of all measurements together
people  two browser contexts answer --answers tags each at the same time, some with y, some with n, some with u; every
        answer that was typed must be on the disk exactly once, and no image may have been shown to both
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from tagspread.review.answers import AnswerStore
from tagspread.review.index import Index, write_index

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TAGS, DRAWINGS, SIDES = 40, 64, (1280, 960)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAITS = """
window.waits = [];
addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  const before = document.querySelector("#figure img");
  const painted = () => {
    const channel = new MessageChannel();  // its message arrives after the frame was painted
    channel.port1.onmessage = () => window.waits.push(performance.now() - event.timeStamp);
    channel.port2.postMessage(0);
  };
  const look = () => {
    const image = document.querySelector("#figure img");
    if (!image || image === before || !image.complete) requestAnimationFrame(look);
    else image.decode().then(() => requestAnimationFrame(painted));
  };
  requestAnimationFrame(look);
}, true);
"""
TYPED = """
window.typed = [];
addEventListener("keydown", (event) => {
  const answer = { y: "yes", n: "no", u: "unknown" }[event.key];
  const tag = document.querySelector("#chips .selected")?.dataset.tag;
  const image = document.querySelector("#caption").textContent.split(" · ")[0];
  if (answer && tag) window.typed.push([image, tag, answer]);
}, true);
"""
NEXT = """before => {
  const caption = document.querySelector("#caption");
  return caption.checkVisibility() && caption.innerText !== before;
}"""


def drawn(number: int) -> bytes:
    """Return a JPEG with a gradient and shapes, about as large as a photo of its size."""
    rng = np.random.default_rng(number)
    ramp = np.linspace(0, 1, SIDES[0])[None, :, None] * rng.integers(60, 200, 3) + rng.normal(0, 9, (SIDES[1], 1, 1))
    noise = rng.normal(0, 6, (SIDES[1], SIDES[0], 1))
    image = Image.fromarray(np.clip(ramp + noise + 30, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for x, y, side in rng.integers(50, 700, (12, 3)).tolist():
        pen.ellipse((x, y, x + side // 2, y + side // 2), fill=tuple(rng.integers(0, 255, 3).tolist()))
    written = io.BytesIO()
    image.save(written, "JPEG", quality=85)
    return written.getvalue()


def make_run(top: Path, count: int) -> Path:
    """Write images and the index of a run; images differ by bytes after their end, so that drawing them is quick."""
    drawings = [drawn(k) for k in range(min(DRAWINGS, count))]
    names, digests = [], []
    (top / "images").mkdir()
    for k in range(count):
        content = drawings[k % len(drawings)] + f"{k:08}".encode()
        names.append(f"image-{k:05}.jpg")
        digests.append(sha256(content).hexdigest()[:16])
        (top / "images" / names[-1]).write_bytes(content)
    run = top / "run"
    run.mkdir()
    tags = tuple(f"tag {k:02}" for k in range(TAGS))
    scores = np.random.default_rng(0).random((count, TAGS), np.float32) ** 4
    root = str(top / "images")
    write_index(
        run,
        Index(
            "benchmark-run", root, root, names, np.arange(count), digests, np.ones(count, bool), tags,
            np.full(TAGS, 0.5), np.full((count, TAGS), -1, np.int8), scores, (scores >= 0.5).astype(np.int8), (), {},
        ),
    )  # fmt: skip
    return run


@contextlib.contextmanager
def server(run: Path) -> Iterator[tuple[str, int]]:
    """Start the server in a process of its own; yield the address of the page and the number of the process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tagspread", "review", str(run), "--port", "0", "--user", "ann"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            if process.stdout is None or not (found := re.search(r"http://\S+", process.stdout.readline())):
                raise SystemExit("the server did not start")
            yield found[0], process.pid
        finally:
            process.terminate()


def memory(pid: int) -> int:
    """Return the largest resident memory of a process so far, in MB."""
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return round(int(kilobytes) / 1000)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(tab: Page, condition: str, argument: object = None, seconds: float = 60) -> None:
    """Wait until a JavaScript function returns true; Playwright's own way is refused by the page's CSP."""
    for _ in range(round(seconds / 0.005)):
        if tab.evaluate(condition, argument):
            return
        time.sleep(0.005)
    raise SystemExit(f"it never happened: {condition}")


def all_saved(tab: Page) -> None:
    """Wait until every answer is on the disk of the server."""
    wait_until(tab, "() => document.querySelector('#saved').textContent === 'All saved'")


@contextlib.contextmanager
def page(browser: Browser, address: str, script: str) -> Iterator[Page]:
    """Open the page in a context of its own, and wait for its first image."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    tab = context.new_page()
    tab.add_init_script(script)
    tab.goto(address)
    tab.wait_for_selector("#figure img")
    tab.wait_for_timeout(2000)  # the next images are loaded ahead
    yield tab
    all_saved(tab)
    context.close()


def wait_for_images(browser: Browser, address: str, keys: int, pause: float) -> dict[str, Any]:
    """Press Enter, and return how long it took until the next image was painted, in milliseconds."""
    with page(browser, address, WAITS) as tab:
        for k in range(keys):
            tab.keyboard.press("Enter")
            wait_until(tab, "k => window.waits.length > k", k)
            time.sleep(pause)
        waits = np.array(tab.evaluate("window.waits"))
    return {
        "pause": pause, "keys": keys, "median_ms": round(float(np.median(waits)), 1),
        "p95_ms": round(float(np.quantile(waits, 0.95)), 1), "largest_ms": round(float(waits.max()), 1),
        "above_100_ms": int((waits > 100).sum()),
    }  # fmt: skip


def two_people(browser: Browser, address: str, run: Path, answers: int, per_image: int = 5) -> dict[str, Any]:
    """Answer in two contexts at the same time; return what is on the disk, compared with what was typed."""
    with AnswerStore.open(run) as store:
        before = len(store.history())
    chance, typed = random.Random(0), Counter[tuple[str, ...]]()
    shown: dict[str, set[str]] = {}
    began = time.perf_counter()
    with page(browser, address, TYPED) as ann, page(browser, address, TYPED) as bob:
        tabs = {"ann": ann, "bob": bob}
        for who, tab in tabs.items():
            tab.click("#open-settings")
            tab.fill("#who", who)
            tab.keyboard.press("Enter")
        for k in range(answers):
            for tab in tabs.values():
                tab.keyboard.press(chance.choice("yynnu"))
                if k % per_image == per_image - 1:
                    image = tab.locator("#caption").inner_text()
                    tab.keyboard.press("ArrowRight")
                    wait_until(tab, NEXT, image)
        for who, tab in tabs.items():
            lines = tab.evaluate("window.typed")
            shown[who] = {image for image, _, _ in lines}
            typed.update((who, *line) for line in lines)
            all_saved(tab)
    seconds = time.perf_counter() - began
    with AnswerStore.open(run) as store:
        kept = Counter[tuple[str, ...]]((one.who, one.image, one.tag, one.answer) for one in store.history()[before:])
    return {
        "typed": typed.total(), "kept": kept.total(), "lost": (typed - kept).total(), "doubled": (kept - typed).total(),
        "images_shown_to_both": len(shown["ann"] & shown["bob"]), "seconds": round(seconds, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two keys")
    parser.add_argument("--answers", type=int, default=500, help="of each of two people")
    parser.add_argument("--work", type=Path, help="folder for the images; by default a temporary one")
    parser.add_argument("--out", type=Path, help="write the results to this file as well")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)))
    results: dict[str, Any] = {"images": arguments.images}
    with (
        tempfile.TemporaryDirectory(dir=arguments.work) as top,
        sync_playwright() as playwright,
        server(run := make_run(Path(top), arguments.images)) as (address, pid),
    ):
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        results["memory_at_start_mb"] = memory(pid)
        results["wait"] = [wait_for_images(browser, address, arguments.keys, pause) for pause in (arguments.pause, 0.0)]
        results["people"] = two_people(browser, address, run, arguments.answers)
        results["memory_mb"], results["server_cpu_seconds"] = memory(pid), round(cpu_seconds(pid), 1)
        browser.close()
    print(json.dumps(results, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
