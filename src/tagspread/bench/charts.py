"""Benchmark charts (SVG and PNG): class proportions, pseudo-label quality, keep_pos and keep_neg, intervals.

``proportions`` is the paper's figure 1b, ``pseudo-labels`` figure 2, ``eta`` figure 3. ``intervals`` shows theorem 1's
bound, exact intervals and observed errors by number of labeled images. A chart without data is not drawn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tagspread.aliases import JsonObject
from tagspread.bench.records import Record
from tagspread.bench.results import OUT
from tagspread.bench.studies import KEEP_NEG, KEEP_POS, read_label_study
from tagspread.bench.table_parts import row_name
from tagspread.bench.tables import describe
from tagspread.bench.threshold_choice import BY_LABELS
from tagspread.files import atomic_file
from tagspread.methods import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# colors for color-blind readers (Okabe and Ito), and markers for prints in gray
COLORS = {"cap": "#0072B2", "top1": "#D55E00", "topk": "#E69F00", "iat": "#009E73"}
MARKERS = {"cap": "o", "top1": "s", "topk": "^", "iat": "D"}
CUSTOM_STYLES = (("#CC79A7", "P"), ("#56B4E9", "X"), ("#1b1f24", "*"))  # color and marker of custom methods
ENDINGS = ("svg", "png")
CHART_FILES = tuple(
    f"{name}.{ending}" for name in ("proportions", "pseudo-labels", "eta", "intervals") for ending in ENDINGS
)
GRAY, TRUTH = "#6b7580", "#D55E00"
STYLE: Any = {
    "font.size": 9, "axes.titlesize": 10, "axes.labelsize": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e3e7eb", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "axes.edgecolor": "#8a949e", "legend.frameon": False, "figure.facecolor": "white", "savefig.facecolor": "white",
    "svg.hashsalt": "tagspread",
}  # fmt: skip


def write_charts(folder: Path, records: Sequence[Record], study_file: Path) -> list[str]:
    """Draw all charts for which there is data; return notes for the user."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        return ["matplotlib is not installed, so no charts are drawn; install it and run again with --tables-only"]
    done = [record for record in records if record["status"] == "done"]
    study = read_label_study(study_file)
    makers: dict[str, Callable[[], Figure | None]] = {
        "proportions": lambda: proportions(study),
        "pseudo-labels": lambda: pseudo_labels(done),
        "eta": lambda: eta(done),
        "intervals": lambda: intervals(study),
    }
    written = []
    with mpl.rc_context(STYLE):
        for name, make in makers.items():
            figure = make()
            if figure is None:
                continue
            FigureCanvasAgg(figure)
            for ending in ENDINGS:
                file = folder / f"{name}.{ending}"
                metadata = {"Date": None} if ending == "svg" else None  # so that the same data give the same file
                with atomic_file(file, remedy=OUT) as opened:
                    figure.savefig(opened, format=ending, dpi=160, metadata=metadata)
            written.append(name)
    return [f"drew {', '.join(written)} (.svg and .png) in {folder}"] if written else []


def _figure(
    width: float, height: float, rows: int, columns: int, *, sharex: bool = False, sharey: bool | Literal["row"] = False
) -> tuple[Figure, list[list[Axes]]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    return figure, [list(row) for row in axes]


def proportions(study: JsonObject | None) -> Figure | None:
    """Draw estimated and true class proportions of all classes for the first seed of each share (figure 1b)."""
    splits = {split["p"]: split for split in reversed(study["splits"] if study else [])}
    if study is None or not splits:
        return None
    chosen = [splits[share] for share in sorted(splits)][:4]
    classes, shown = study["classes"], len(study["classes"])
    width = (0.24 if shown <= 40 else 0.17) * shown + 1.5
    figure, axes = _figure(max(6.5, width), 1.2 + 1.9 * len(chosen), len(chosen), 1, sharex=True,
                           sharey=True)  # fmt: skip
    order = sorted(range(len(classes)), key=lambda k: -chosen[0]["true"][k])
    for [axis], split in zip(axes, chosen, strict=True):
        middle = [100 * split["estimated"][k] for k in order]
        below = [100 * (split["estimated"][k] - split["low"][k]) for k in order]
        above = [100 * (split["high"][k] - split["estimated"][k]) for k in order]
        label = f"estimated from the labeled images, with {100 * study['confidence']:.0f} % interval"
        axis.errorbar(range(shown), middle, (below, above), fmt="o", ms=4, lw=1.2, capsize=2.5, color=COLORS["cap"],
                      label=label)  # fmt: skip
        axis.scatter(range(shown), [100 * split["true"][k] for k in order], marker="_", s=110, lw=2, color=TRUTH,
                     zorder=3, label="true proportion in the unlabeled set")  # fmt: skip
        sizes = f"{split['n']:,} labeled, {split['m']:,} unlabeled"
        axis.set_title(f"p = {split['p']:g}, seed {split['seed']}: {sizes}", loc="left")
        axis.set_ylabel("share of images (%)")
        # square-root scale, so that rare classes remain visible next to a very frequent one
        axis.set_yscale("function", functions=(lambda v: np.sqrt(np.maximum(v, 0)), np.square))
        top = max(1, *(100 * high for drawn in chosen for high in drawn["high"]))
        heights = [height for height in (0, 1, 5, 10, 20, 40, 60, 80, 100) if height <= top]
        axis.set_yticks(heights, [str(height) for height in heights])
        axis.set_ylim(0, 1.1 * top)
        axis.set_xlim(-0.7, shown - 0.3)
        axis.grid(visible=False, axis="x")
    axes[-1][0].set_xticks(range(shown), [classes[k] for k in order])
    if max(map(len, classes)) > 3:
        for name in axes[-1][0].get_xticklabels():
            name.set(rotation=45, ha="right", rotation_mode="anchor")
            if shown > 40:
                name.set(rotation=90, va="center", fontsize=6)
    _legend_below(figure, 2)
    return figure


def pseudo_labels(records: Sequence[Record]) -> Figure | None:
    """Draw the F1 of the pseudo-labels per epoch, mean over seeds (figure 2), also of custom methods."""
    styles = _line_styles(records)
    measured = [r for r in records if (r["method"], r["variant"]) in styles and "pseudo_OF1" in r["curves"]]
    if not measured:
        return None
    from matplotlib.ticker import MaxNLocator

    setup = _most_common(measured)
    measured = [r for r in measured if r["setup"]["id"] == setup["id"]]
    shares = sorted({r["p"] for r in measured})
    figure, axes = _figure(1.5 + 2.6 * len(shares), 5.4, 2, len(shares), sharex=True, sharey="row")
    for row, (name, words) in zip(axes, (("OF1", "overall F1"), ("CF1", "class F1")), strict=True):
        for axis, share in zip(row, shares, strict=True):
            for (method, variant), style in styles.items():
                seeds = [r for r in measured if (r["method"], r["variant"], r["p"]) == (method, variant, share)]
                if not seeds:
                    continue
                curves = zip(*(_main_stage(r, f"pseudo_{name}") for r in seeds), strict=False)
                mean = [100 * statistics.fmean(values) for values in curves]
                axis.plot(range(1, len(mean) + 1), mean, color=style.color, ls=style.dash, marker=style.marker, ms=3.5,
                          lw=1.6, markevery=max(1, len(mean) // 8), label=style.name)  # fmt: skip
            if axis is row[0]:
                axis.set_ylabel(f"{words} of the pseudo-labels (%)")
            if row is axes[0]:
                axis.set_title(f"p = {share:g}", loc="left")
            else:
                axis.set_xlabel("epoch with the unlabeled set")
                axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    _legend_below(figure, 3)
    _title(figure, describe(setup))
    return figure


class _LineStyle(NamedTuple):
    color: str
    marker: str
    dash: str
    name: str


def _line_styles(records: Sequence[Record]) -> dict[tuple[str, str], _LineStyle]:
    """Return the line style of each method to draw: those of the paper's figure, and custom methods."""
    styles = {(name, ""): _LineStyle(COLORS[name], MARKERS[name], "-", row_name(name, "")) for name in COLORS}
    styles["iat", BY_LABELS] = _LineStyle(COLORS["iat"], MARKERS["iat"], "--", row_name("iat", BY_LABELS))
    custom = sorted({record["method"] for record in records} - METHODS.keys())
    names = [row_name(method, "") for method in custom]
    for number, (method, name) in enumerate(zip(custom, names, strict=True)):
        color, marker = CUSTOM_STYLES[number % len(CUSTOM_STYLES)]
        dash = ("-", ":", "-.")[number // len(CUSTOM_STYLES) % 3]
        styles[method, ""] = _LineStyle(color, marker, dash, name if names.count(name) == 1 else method)
    return styles


def eta(records: Sequence[Record]) -> Figure | None:
    """Draw mAP by keep_pos and by keep_neg, the two ends of the reliable interval (figure 3)."""
    cells = _interval_cells(records)
    if len({_kept_shares(r) for r in cells}) < 2:  # a curve needs two points
        return None
    figure, axes = _figure(7.4, 3.6, 1, 2, sharey=True)
    titles = ("$\\eta_1$: positives used (keep_pos)", "$\\eta_0$: negatives used (keep_neg)")
    protocols = {"honest": ("last epoch", "-", 1.0), "parity": ("best on test", "--", 0.55)}
    for end, axis in enumerate(axes[0]):
        for share, color in zip(sorted({r["p"] for r in cells}), (*COLORS.values(), GRAY), strict=False):
            varied = [r for r in cells if r["p"] == share and _kept_shares(r)[1 - end] == 1.0]
            for protocol, (kind, dash, opacity) in protocols.items():
                maps: dict[float, list[float]] = {value: [] for value in sorted({_kept_shares(r)[end] for r in varied})}
                for r in varied:
                    maps[_kept_shares(r)[end]].append(100 * r[protocol])
                # NaN: the standard deviation of one seed is undefined, not 0
                spread = [statistics.stdev(values) if len(values) > 1 else np.nan for values in maps.values()]
                axis.errorbar(list(maps), [statistics.fmean(values) for values in maps.values()], spread, marker="o",
                              color=color, ms=4, lw=1.6, elinewidth=1, capsize=2.5, label=f"p = {share:g}, {kind}",
                              ls=dash, alpha=opacity)  # fmt: skip
        axis.set_xlabel(titles[end])
    axes[0][0].set_ylabel("test mAP (%)")
    _legend_below(figure, 4)
    seeds = ", ".join(map(str, sorted({r["seed"] for r in cells})))
    _title(figure, f"CAP, {describe(cells[0]['setup'])}, seed {seeds}")
    return figure


def _interval_cells(records: Sequence[Record]) -> list[Record]:
    """Return the CAP cells of one setup in which keep_pos or keep_neg is 1, for the common seeds of each share."""
    cap = [r for r in records if r["method"] == "cap" and r["options"].keys() <= {"keep_pos", "keep_neg"}]
    # in mode "head", CAP chooses options that are not given
    cap = [r for r in cap if r["options"] or r["setup"].get("settings", {}).get("mode") != "head"]
    cap = [
        r for r in cap if 1.0 in _kept_shares(r) and _kept_shares(r)[0] in KEEP_POS and _kept_shares(r)[1] in KEEP_NEG
    ]
    varied = [r for r in cap if _kept_shares(r) != (1.0, 1.0)]
    if not varied:
        return []
    setup, cells = _most_common(varied)["id"], []
    for share in sorted({r["p"] for r in varied if r["setup"]["id"] == setup}):
        same_share = [r for r in cap if (r["setup"]["id"], r["p"]) == (setup, share)]
        seeds: dict[tuple[float, float], set[int]] = {_kept_shares(r): set() for r in same_share}
        for r in same_share:
            seeds[_kept_shares(r)].add(r["seed"])
        common = set.intersection(*seeds.values()) or set.union(*seeds.values())
        cells += [r for r in same_share if r["seed"] in common]
    return cells


def _kept_shares(record: Record) -> tuple[float, float]:
    return record["options"].get("keep_pos", 1.0), record["options"].get("keep_neg", 1.0)


def intervals(study: JsonObject | None) -> Figure | None:
    """Draw observed errors of class proportions by n, with theorem 1's bound and the widths of intervals."""
    points = study["errors"] if study else []
    if study is None or len(points) < 2:
        return None
    n = [point["n"] for point in points]
    figure, [[axis]] = _figure(6.8, 4.3, 1, 1)
    confidence, classes = f"{100 * study['confidence']:.0f} %", len(study["classes"])
    lines = (
        ("theorem1_bound", "theorem 1's bound", TRUTH, "--", ""),
        ("hoeffding_half_width", f"Hoeffding, all {classes} classes at once, {confidence}", "#CC79A7", ":", ""),
        ("exact_half_width", f"exact interval, mean half-width, {confidence}", COLORS["cap"], "-.", ""),
        ("worst_class_error", "observed error, worst class", "#1b1f24", "-", "v"),
        ("error_90", f"observed error, {confidence} quantile of classes and draws", "#1b1f24", "-", "s"),
        ("median_error", "observed error, median", "#1b1f24", "-", "o"),
    )
    # theorem 1's bound is None for few rows, where it does not apply; None becomes NaN, which is not drawn
    shares = {name: 100 * np.array([point[name] for point in points], dtype=float) for name, *_ in lines}
    for name, label, color, dash, mark in lines:
        axis.plot(n, shares[name], label=label, color=color, ls=dash, marker=mark, lw=1.8, ms=4)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("labeled images n")
    axis.set_ylabel("distance to the class proportion\nin the other images (points)")
    ticks = [
        size for size in (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000) if n[0] <= size <= n[-1]
    ]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    heights = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
    axis.set_yticks(heights, [f"{height:g}" for height in heights])
    axis.minorticks_off()
    lowest, highest = np.nanmin(list(shares.values())), np.nanmax(list(shares.values()))
    axis.set_ylim(max(lowest, 0.02) * 0.8, highest * 1.25)
    _legend_below(figure, 2)
    return figure


def _title(figure: Figure, text: str) -> None:
    """Set the title, wrapped to the width of the figure (about 14 characters per inch)."""
    figure.suptitle(fill(text, int(14 * figure.get_figwidth())), fontsize=8, color=GRAY)


def _legend_below(figure: Figure, columns: int) -> None:
    """Add a legend of the lines of all panels below the figure."""
    handles = {
        label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8, handlelength=3
    )


def _main_stage(record: Record, name: str) -> list[float]:
    """Return the values of a curve in the main stage."""
    curves = record["curves"]
    return [v for stage, v in zip(curves["stage"], curves[name], strict=True) if stage == "main" and v is not None]


def _most_common(records: Sequence[Record]) -> Record:
    """Return the setup of most records, because a figure shows one setup only."""
    setups = [record["setup"]["id"] for record in records]
    chosen = max(dict.fromkeys(setups), key=setups.count)
    setup: Record = next(record["setup"] for record in records if record["setup"]["id"] == chosen)
    return setup
