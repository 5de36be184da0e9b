"""Make the images of the README and of the documentation site with ``make images``.

``report.webp`` and ``review*.webp`` are screenshots of runs on handwritten digits, so they may be shown anywhere; they
need playwright and a Chromium. ``voc.png`` and ``labeling.png`` are drawn from the results in
``benchmarks/``.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import matplotlib as mpl
from PIL import Image

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
BACKBONE, SHARES, SEEDS = "tf_efficientnet_lite2", (0.05, 0.1), (1, 2, 3)
SETUPS = ("labeled images only,\nfrozen network", "+ unlabeled set,\nfrozen network, no GPU", "+ unlabeled set,\nGPU")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _records(file: str) -> Iterator[dict]:
    return map(json.loads, (BENCHMARKS / file).read_text(encoding="utf-8").splitlines())


def voc_results() -> dict[float, list[list[float]]]:
    """Return the mAP of each of the three setups, seed by seed, at each share of labeled images."""
    heads = {
        (row["method"], row["p"], row["seed"]): 100 * row["honest"]
        for row in _records("voc-head/results.jsonl")
        if not row["variant"]
    }
    whole = {
        (row["p"], row["seed"]): row["map"]
        for row in _records("voc/preset_runs.jsonl")
        # three seeds of one precision: the last layer in full precision was measured with one seed only
        if row["part"] == "val" and row["backbone"] == BACKBONE and "last_layer" not in row
    }
    return {
        p: [
            [heads["bce", p, seed] for seed in SEEDS],
            [heads["cap", p, seed] for seed in SEEDS],
            [whole[p, seed] for seed in SEEDS],
        ]
        for p in SHARES
    }


def draw_voc(file: Path) -> None:
    """Draw the mAP of the three setups, one line per share of labeled images, one dot per seed."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.6), dpi=130, layout="constrained")
    for (p, setups), color in zip(voc_results().items(), ("#00897b", "#5e35b1"), strict=True):
        means = [mean(values) for values in setups]
        axes.plot(range(3), means, color=color, lw=2, marker="o", ms=7, label=f"{p:.0%} labeled", zorder=3)
        for k, values in enumerate(setups):
            axes.plot([k] * len(values), values, ".", color=color, alpha=0.35, ms=8)
            axes.annotate(f"{means[k]:.1f}", (k, means[k]), (8, -14), textcoords="offset points", color=color)
    axes.set_xticks(range(3), SETUPS)
    axes.set_xlim(-0.35, 2.4)
    axes.set_ylabel("mAP on VOC 2012 val")
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)


def labeling_curves() -> dict[str, dict[int, list[float]]]:
    """Return the mAP of each strategy by the number of answers, seed by seed, of ``benchmarks/labeling.py``."""
    from tagspread.review.strategies import MIXTURE

    curves: dict[str, dict[int, list[float]]] = {}
    for row in _records("label-next/strategies.jsonl"):
        if row.get("mixture", MIXTURE) != MIXTURE:  # an earlier default
            continue
        curves.setdefault(row["strategy"], {}).setdefault(row["answers"], []).append(row["mAP"])
    return curves


def draw_labeling(file: Path) -> None:
    """Draw the mAP by the number of answers, one line per strategy, with the spread of random choice."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.8), dpi=130, layout="constrained")
    curves = labeling_curves()
    colors = {"random": "#616161", "mixture": "#00897b", "border": "#5e35b1", "disagree": "#d81b60", "rare": "#ef6c00",
              "diverse": "#1e88e5"}  # fmt: skip
    order = sorted(colors, key=lambda name: -mean(curves[name][max(curves[name])]))
    for name in order:
        answers = sorted(curves[name])
        bold = name in ("random", "mixture")
        label = f"{name} (default)" if name == "mixture" else name
        values = [mean(curves[name][count]) for count in answers]
        axes.plot(answers, values, color=colors[name], lw=2.4 if bold else 1.2, marker="o", ms=5, label=label)
    axes.set_xlabel("answers beside 285 labeled images")
    axes.set_ylabel("mAP on VOC 2012 val")
    axes.set_xticks(sorted(curves["random"]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", ncols=2)
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)


def shoot_report(file: Path, work: Path) -> None:
    """Train on digits, write the report, and save a screenshot of its summary and its examples."""
    from playwright.sync_api import sync_playwright

    import tagspread as ts
    from tagspread.demo import DemoSize, export_folder
    from tagspread.report.page import write_report

    digits = work / "digits"
    export_folder(digits, DemoSize(canvases=2000, test=1000), seed=0)
    settings = {"preset": "paper", "backbone": "small", "weights": "none", "image_size": 24, "flip": False}
    settings |= {"ema_decay": 0.99, "lr": 0.003, "warmup_epochs": 20, "epochs": 6}
    ts.train(digits, digits / "labels.csv", work / "run", test_labels=digits / "test.csv", **settings)
    write_report(work / "run")

    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1080, "height": 600}, device_scale_factor=1.4, color_scheme="light")
        page.goto((work / "run" / "report.html").as_uri())
        page.locator("#tag").select_option("tag-6")
        page.add_style_tag(content="section:not(#summary, #examples), nav, .box, .next, #summary p { display: none }")
        shot = page.screenshot(clip={"x": 0, "y": 0, "width": 1080, "height": 1130}, full_page=True)
        browser.close()
    _save(shot, file)


def _save(shot: bytes, file: Path) -> None:
    Image.open(io.BytesIO(shot)).convert("RGB").save(file, quality=82, method=6)


def shoot_review(image: Path, grid: Path, work: Path) -> None:
    """Train a head on digits, and save screenshots of its review: one image (light), and the grid (dark)."""
    from playwright.sync_api import sync_playwright

    import tagspread as ts
    from tagspread.demo import DemoSize, export_folder

    digits, run = work / "digits-to-review", work / "digits-run"
    export_folder(digits, DemoSize(canvases=600, test=100), seed=0)
    for file in digits.glob("*.png"):  # enlarged smoothly, as a photo is seen
        with Image.open(file) as drawn:
            drawn.resize((480, 480), Image.Resampling.BICUBIC).save(file)
    settings = {"mode": "head", "backbone": "small", "weights": "none", "image_size": 24, "flip": False}
    ts.train(digits, digits / "labels.csv", run, test_labels=digits / "test.csv", unlabeled_weight=1.0, **settings)
    command = [sys.executable, "-m", "tagspread", "review", str(run), "--port", "0", "--user", "ann"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        address = next(found[0] for line in server.stdout or () if (found := re.search(r"http://\S+", line)))
        executable = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for file, scheme in ((image, "light"), (grid, "dark")):
            size = {"width": 1180, "height": 740}
            page = browser.new_page(viewport=size, device_scale_factor=1.3, color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector("#figure img")
            for _ in range(60 if file == image else 0):  # so that the confirmed share of the random images is shown
                page.keyboard.press("Enter")
                page.wait_for_timeout(100)
            if file == image:
                for key in "yyn":  # right for this drawing
                    page.keyboard.press(key)
            else:
                page.keyboard.press("g")
                page.wait_for_selector(".tile img")
                for key in ("ArrowRight", "ArrowRight", "Space"):
                    page.keyboard.press(key)
            page.get_by_text("All saved").wait_for()
            page.wait_for_timeout(1500)
            _save(page.screenshot(), file)
        browser.close()
        server.terminate()


def main() -> None:
    """Write the images beside this file."""
    draw_voc(HERE / "voc.png")
    draw_labeling(HERE / "labeling.png")
    with tempfile.TemporaryDirectory() as work:
        shoot_report(HERE / "report.webp", Path(work))
        shoot_review(HERE / "review.webp", HERE / "review-grid.webp", Path(work))
    for name in ("voc.png", "labeling.png", "report.webp", "review.webp", "review-grid.webp"):
        sys.stdout.write(f"{name}: {(HERE / name).stat().st_size / 1024:.0f} KB\n")


if __name__ == "__main__":
    main()
