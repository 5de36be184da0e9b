"""The charts, as SVG and PNG, from what the folder of a grid holds.

``proportions`` (the paper's figure 1b), ``pseudo-labels`` (2), ``eta`` (3) and ``intervals``: theorem 1's bound, exact
intervals and the real errors against the number of labeled images. A chart without data is not drawn.
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

# colors that most color-blind people can tell apart (Okabe and Ito), and a mark each for those who print in gray
INK = {"cap": "#0072B2", "top1": "#D55E00", "topk": "#E69F00", "iat": "#009E73"}
MARKS = {"cap": "o", "top1": "s", "topk": "^", "iat": "D"}
OWN = (("#CC79A7", "P"), ("#56B4E9", "X"), ("#1b1f24", "*"))  # for methods of the user's own, in turn
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
    """Draw what there is data for; return what a person should know."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        return ["matplotlib is not installed: no charts are drawn; call again with --tables-only where it is"]
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
                about = {"Date": None} if ending == "svg" else None  # the same data, the same file
                with atomic_file(file, remedy=OUT) as opened:
                    figure.savefig(opened, format=ending, dpi=160, metadata=about)
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
    """Draw estimated and true class proportions, the first seed of each share (figure 1b)."""
    splits = {split["p"]: split for split in reversed(study["splits"] if study else [])}
    if study is None or not splits:
        return None
    chosen = [splits[share] for share in sorted(splits)][:4]
    classes, shown = study["classes"], min(len(study["classes"]), 40)
    figure, axes = _figure(max(6.5, 0.24 * shown + 1.5), 1.2 + 1.9 * len(chosen), len(chosen), 1, sharex=True,
                           sharey=True)  # fmt: skip
    order = sorted(range(len(classes)), key=lambda k: -chosen[0]["true"][k])[:shown]
    for [axis], split in zip(axes, chosen, strict=True):
        middle = [100 * split["estimated"][k] for k in order]
        below = [100 * (split["estimated"][k] - split["low"][k]) for k in order]
        above = [100 * (split["high"][k] - split["estimated"][k]) for k in order]
        label = f"estimated from the labeled part, with its {100 * study['confidence']:.0f} % interval"
        axis.errorbar(range(shown), middle, (below, above), fmt="o", ms=4, lw=1.2, capsize=2.5, color=INK["cap"],
                      label=label)  # fmt: skip
        axis.scatter(range(shown), [100 * split["true"][k] for k in order], marker="_", s=110, lw=2, color=TRUTH,
                     zorder=3, label="true in the unlabeled set")  # fmt: skip
        sizes = f"{split['n']:,} labeled, {split['m']:,} in the unlabeled set"
        axis.set_title(f"p = {split['p']:g}, seed {split['seed']}: {sizes}", loc="left")
        axis.set_ylabel("share of images (%)")
        # by square roots: one very frequent class leaves the others room
        axis.set_yscale("function", functions=(lambda v: np.sqrt(np.maximum(v, 0)), np.square))
        top = max(1, *(100 * high for one in chosen for high in one["high"]))
        heights = [height for height in (0, 1, 5, 10, 20, 40, 60, 80, 100) if height <= top]
        axis.set_yticks(heights, [str(height) for height in heights])
        axis.set_ylim(0, 1.1 * top)
        axis.set_xlim(-0.7, shown - 0.3)
        axis.grid(visible=False, axis="x")
    axes[-1][0].set_xticks(range(shown), [classes[k] for k in order])
    if max(map(len, classes)) > 3:
        for name in axes[-1][0].get_xticklabels():
            name.set(rotation=45, ha="right", rotation_mode="anchor")
    _legend_below(figure, 2)
    return figure


def pseudo_labels(records: Sequence[Record]) -> Figure | None:
    """Draw the quality of the pseudo-labels per epoch, mean over seeds (figure 2); methods of the user's own, too."""
    looks = _looks(records)
    having = [r for r in records if (r["method"], r["variant"]) in looks and "pseudo_OF1" in r["curves"]]
    if not having:
        return None
    from matplotlib.ticker import MaxNLocator

    setup = _most_common(having)
    having = [r for r in having if r["setup"]["id"] == setup["id"]]
    shares = sorted({r["p"] for r in having})
    figure, axes = _figure(1.5 + 2.6 * len(shares), 5.4, 2, len(shares), sharex=True, sharey="row")
    for row, (name, words) in zip(axes, (("OF1", "overall F1"), ("CF1", "class F1")), strict=True):
        for axis, share in zip(row, shares, strict=True):
            for (method, variant), look in looks.items():
                mine = [r for r in having if (r["method"], r["variant"], r["p"]) == (method, variant, share)]
                if not mine:
                    continue
                curves = zip(*(_main(r, f"pseudo_{name}") for r in mine), strict=False)
                mean = [100 * statistics.fmean(values) for values in curves]
                axis.plot(range(1, len(mean) + 1), mean, color=look.ink, ls=look.dash, marker=look.mark, ms=3.5, lw=1.6,
                          markevery=max(1, len(mean) // 8), label=look.name)  # fmt: skip
            if axis is row[0]:
                axis.set_ylabel(f"pseudo-labels' {words} (%)")
            if row is axes[0]:
                axis.set_title(f"p = {share:g}", loc="left")
            else:
                axis.set_xlabel("epoch with the unlabeled set")
                axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    _legend_below(figure, 3)
    _title(figure, describe(setup))
    return figure


class _Look(NamedTuple):
    ink: str
    mark: str
    dash: str
    name: str


def _looks(records: Sequence[Record]) -> dict[tuple[str, str], _Look]:
    """Return which rows' pseudo-labels are drawn, and how: those of the paper's figure, and the user's own methods."""
    looks = {(name, ""): _Look(INK[name], MARKS[name], "-", row_name(name, "")) for name in INK}
    looks["iat", BY_LABELS] = _Look(INK["iat"], MARKS["iat"], "--", row_name("iat", BY_LABELS))
    own = sorted({record["method"] for record in records} - METHODS.keys())
    short = [row_name(method, "") for method in own]
    for number, (method, name) in enumerate(zip(own, short, strict=True)):
        ink, mark = OWN[number % len(OWN)]
        dash = ("-", ":", "-.")[number // len(OWN) % 3]
        looks[method, ""] = _Look(ink, mark, dash, name if short.count(name) == 1 else method)
    return looks


def eta(records: Sequence[Record]) -> Figure | None:
    """Draw mAP against the two ends of the reliable interval (figure 3)."""
    cells = _interval_cells(records)
    if len({_ends(r) for r in cells}) < 2:  # one point is no curve
        return None
    figure, axes = _figure(7.4, 3.6, 1, 2, sharey=True)
    words = ("$\\eta_1$: positives used (keep_pos)", "$\\eta_0$: negatives used (keep_neg)")
    looks = {"honest": ("last epoch", "-", 1.0), "parity": ("best on test", "--", 0.55)}
    for end, axis in enumerate(axes[0]):
        for share, color in zip(sorted({r["p"] for r in cells}), (*INK.values(), GRAY), strict=False):
            here = [r for r in cells if r["p"] == share and _ends(r)[1 - end] == 1.0]
            for protocol, (kind, dash, opacity) in looks.items():
                found: dict[float, list[float]] = {value: [] for value in sorted({_ends(r)[end] for r in here})}
                for r in here:
                    found[_ends(r)[end]].append(100 * r[protocol])
                # one seed has no spread, which is not a spread of nothing
                spread = [statistics.stdev(values) if len(values) > 1 else np.nan for values in found.values()]
                axis.errorbar(list(found), [statistics.fmean(values) for values in found.values()], spread, marker="o",
                              color=color, ms=4, lw=1.6, elinewidth=1, capsize=2.5, label=f"p = {share:g}, {kind}",
                              ls=dash, alpha=opacity)  # fmt: skip
        axis.set_xlabel(words[end])
    axes[0][0].set_ylabel("test mAP (%)")
    _legend_below(figure, 4)
    seeds = ", ".join(map(str, sorted({r["seed"] for r in cells})))
    _title(figure, f"CAP, {describe(cells[0]['setup'])}, seed {seeds}")
    return figure


def _interval_cells(records: Sequence[Record]) -> list[Record]:
    """Return CAP with one end of the interval moved, or none: cells of one setup, at each share of the same seeds."""
    cap = [r for r in records if r["method"] == "cap" and r["options"].keys() <= {"keep_pos", "keep_neg"}]
    # on a frozen network, CAP without options has an interval that it chose
    cap = [r for r in cap if r["options"] or r["setup"].get("settings", {}).get("mode") != "head"]
    cap = [r for r in cap if 1.0 in _ends(r) and _ends(r)[0] in KEEP_POS and _ends(r)[1] in KEEP_NEG]
    moved = [r for r in cap if _ends(r) != (1.0, 1.0)]
    if not moved:
        return []
    setup, cells = _most_common(moved)["id"], []
    for share in sorted({r["p"] for r in moved if r["setup"]["id"] == setup}):
        here = [r for r in cap if (r["setup"]["id"], r["p"]) == (setup, share)]
        seeds: dict[tuple[float, float], set[int]] = {_ends(r): set() for r in here}
        for r in here:
            seeds[_ends(r)].add(r["seed"])
        common = set.intersection(*seeds.values()) or set.union(*seeds.values())
        cells += [r for r in here if r["seed"] in common]
    return cells


def _ends(record: Record) -> tuple[float, float]:
    return record["options"].get("keep_pos", 1.0), record["options"].get("keep_neg", 1.0)


def intervals(study: JsonObject | None) -> Figure | None:
    """Draw the errors of class proportions against n, beside what theorem 1 and intervals promise."""
    points = study["errors"] if study else []
    if study is None or len(points) < 2:
        return None
    n = [point["n"] for point in points]
    figure, [[axis]] = _figure(6.8, 4.3, 1, 1)
    sure, classes = f"{100 * study['confidence']:.0f} %", len(study["classes"])
    lines = (
        ("theorem1_bound", "theorem 1's bound", TRUTH, "--", ""),
        ("hoeffding_half_width", f"Hoeffding, all {classes} classes at once, {sure}", "#CC79A7", ":", ""),
        ("exact_half_width", f"exact interval, mean half-width, {sure}", INK["cap"], "-.", ""),
        ("worst_class_error", "real error, worst class", "#1b1f24", "-", "v"),
        ("error_90", f"real error, {sure} of classes and draws below", "#1b1f24", "-", "s"),
        ("median_error", "real error, median", "#1b1f24", "-", "o"),
    )
    # None, where theorem 1 says nothing about so few rows, becomes NaN, which is not drawn
    shares = {name: 100 * np.array([point[name] for point in points], dtype=float) for name, *_ in lines}
    for name, label, color, dash, mark in lines:
        axis.plot(n, shares[name], label=label, color=color, ls=dash, marker=mark, lw=1.8, ms=4)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("labeled images n")
    axis.set_ylabel("distance to the proportion\nin all other images (points)")
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
    """Put a line above, or several: about 14 small letters go into an inch."""
    figure.suptitle(fill(text, int(14 * figure.get_figwidth())), fontsize=8, color=GRAY)


def _legend_below(figure: Figure, columns: int) -> None:
    """Put the legend where no data can be; a line that is in some panels only is in it, too."""
    named = {
        label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns, fontsize=8, handlelength=3)


def _main(record: Record, name: str) -> list[float]:
    curves = record["curves"]
    return [v for stage, v in zip(curves["stage"], curves[name], strict=True) if stage == "main" and v is not None]


def _most_common(records: Sequence[Record]) -> Record:
    """Return the setup that most records have: one figure, one setup."""
    setups = [record["setup"]["id"] for record in records]
    chosen = max(dict.fromkeys(setups), key=setups.count)
    setup: Record = next(record["setup"] for record in records if record["setup"]["id"] == chosen)
    return setup
