"""The plots of a report, by matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    from matplotlib import ticker
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError('plots need matplotlib; install it with pip install "bucketshuffle[report]"') from error

from bucketshuffle.plan import DFLASH_BOUNDARIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bucketshuffle.report.report import Report

COLOURS = {
    "sorted": "#2e8b57",
    "random": "#c8553d",
    "six buckets": "#c79a1e",
    "bucketshuffle": "#2f6fde",
    "your options": "#9254c8",
}
"""One colour for each strategy, legible on white and on black."""
_SIZE = (4.8, 3.2)  # inches, of one plot


def figure(report: Report, plot: str | None = None) -> Figure:
    """Returns one plot of `PLOTS` by its name, or all of them in one figure.

    Raises:
        ValueError: no such plot, or no sample is left to plan.
    """
    if report.heaviest is None:
        raise ValueError(f"{report.name} has no sample to plan, so there is nothing to draw; see report.advice")
    if plot is not None and plot not in PLOTS:
        raise ValueError(f"plot = {plot!r} is not one of {', '.join(map(repr, PLOTS))}")
    names = list(PLOTS) if plot is None else [plot]
    n_rows = -(-len(names) // 2)
    n_columns = min(2, len(names))
    drawn = Figure(figsize=(_SIZE[0] * n_columns, _SIZE[1] * n_rows), layout="constrained")
    for name, axes in zip(names, drawn.subplots(n_rows, n_columns, squeeze=False).flat, strict=True):
        PLOTS[name](axes, report)
        axes.set_title(name[0].upper() + name[1:], fontsize="medium", loc="left", fontweight="bold")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return drawn


def _lengths(axes: Axes, report: Report) -> None:
    edges, counts = report.curves.edges, report.curves.n_samples
    axes.stairs(counts, edges, fill=True, color=COLOURS["bucketshuffle"], alpha=0.8)
    if edges[-1] > 50 * max(edges[0], 1):
        axes.set_xscale("log")
    own = report.options["boundaries"]
    for edge in own if isinstance(own, list) else DFLASH_BOUNDARIES:
        if edges[0] < edge < edges[-1]:
            axes.axvline(edge, color=COLOURS["six buckets"], linewidth=0.8, linestyle="--")
    axes.set_xlabel(f"length, tokens; dashed: {'your boundaries' if isinstance(own, list) else 'the six buckets'}")
    axes.set_ylabel("samples")
    _plain(axes.xaxis, axes.yaxis)


def _padding(axes: Axes, report: Report) -> None:
    edges = report.curves.edges
    middles = [(low + high + 1) / 2 for low, high in itertools.pairwise(edges)]
    for name, ratios in report.curves.padding.items():
        axes.plot(middles, [float("nan") if ratio is None else ratio for ratio in ratios], **_line(name))
    if edges[-1] > 50 * max(edges[0], 1):
        axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("length, tokens")
    axes.set_ylabel("padded / real")
    _plain(axes.xaxis, axes.yaxis)
    axes.legend(fontsize="small", frameon=False)


def _order(axes: Axes, report: Report) -> None:
    for name in ("six buckets", report.strategies[-1].name):
        lengths = report.curves.order.get(name, ())
        if lengths:
            axes.plot(range(len(lengths)), lengths, **{**_line(name), "linewidth": 0, "marker": ".", "markersize": 3})
    for start in range(0, len(lengths) + 1, report.window):
        axes.axvline(start, color="#888888", linewidth=0.4)
    axes.set_xlabel(f"batch of epoch 0; lines: windows of {report.window:,}")
    axes.set_ylabel("padded length, tokens")
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])  # room for the legend
    _plain(axes.xaxis, axes.yaxis)
    axes.legend(fontsize="small", frameon=False, markerscale=3, ncols=2, loc="upper right")


def _mix(axes: Axes, report: Report) -> None:
    for name, distances in report.curves.mix.items():
        places = [(i + 0.5) / len(distances) * 100 for i in range(len(distances))]
        axes.plot(places, distances, **_line(name), marker="." if len(distances) < 9 else "")
    if not any(report.curves.mix.values()):
        axes.text(0.5, 0.5, "an epoch has no full window", ha="center", transform=axes.transAxes)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    axes.set_xlabel(f"per cent of the epoch; windows of {report.window:,} batches")
    axes.set_ylabel("distance from the data set")
    axes.legend(fontsize="small", frameon=False, ncols=2, loc="upper right")


def _repetition(axes: Axes, report: Report) -> None:
    points = report.repeat_weights
    repeated, over = ([getattr(point, name) for point in points] for name in ("pairs_repeated", "over_sorted"))
    axes.plot(repeated, over, color=COLOURS["bucketshuffle"], linewidth=1.2, marker=".", label="repeat_weight")
    least = report.strategies[0].metrics.padding_ratio
    for row in report.strategies:
        # Where an epoch has few batches, those of others may pad less than sorted ones.
        place = (row.metrics.pairs_repeated or 0.0, max(row.metrics.padding_ratio / least - 1, 0.0))
        axes.plot(*place, color=COLOURS[row.name], linewidth=0, marker="D", label=row.name, clip_on=False)
    # The least figure of a real plan; 0 is drawn at the edge.
    axes.set_xscale("symlog", linthresh=1e-3)
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.set_xlim(0, 1.2)
    axes.set_ylim(0, max(1.5 * max(*over, *(row.metrics.padding_ratio / least - 1 for row in report.strategies)), 0.1))
    axes.set_xlabel("pairs repeated")
    axes.set_ylabel("padding over sorted")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.SymmetricalLogLocator(base=10, linthresh=1e-3))
        axis.set_major_formatter(ticker.FuncFormatter(lambda share, _: f"{100 * share:g} %"))
        axis.set_minor_locator(ticker.NullLocator())
    axes.legend(fontsize="small", frameon=False)


def _budgets(axes: Axes, report: Report) -> None:
    budgets = [point.value for point in report.budgets]
    line: dict[str, Any] = {"linewidth": 1.2, "marker": "."}
    over = [100 * point.over_sorted for point in report.budgets]
    repeated = [100 * point.pairs_repeated for point in report.budgets]
    axes.plot(budgets, over, color=COLOURS["bucketshuffle"], label="padding over sorted", **line)
    axes.plot(budgets, repeated, color=COLOURS["random"], label="pairs repeated", **line)
    axes.axvline(report.options["token_budget"], color="#888888", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("token budget; dashed: yours")
    axes.set_ylabel("per cent")
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda budget, _: _short(budget)))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.legend(fontsize="small", frameon=False)


def _line(name: str) -> dict[str, Any]:
    return {"color": COLOURS[name], "label": name, "linewidth": 1.2}


def _short(number: float) -> str:
    """131072: 131k."""
    for factor, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}{letter}"
    return f"{number:g}"


def _plain(*axes: Any) -> None:
    for axis in axes:
        axis.set_major_formatter(ticker.FuncFormatter(lambda number, _: _short(number)))
        axis.set_minor_formatter(ticker.NullFormatter())


PLOTS: dict[str, Callable[[Any, Report], None]] = {
    "lengths": _lengths,
    "padding by length": _padding,
    "batches in training order": _order,
    "mix over windows": _mix,
    "padding against repetition": _repetition,
    "other budgets": _budgets,
}
"""The plots by name, in the order of a reader's questions."""
