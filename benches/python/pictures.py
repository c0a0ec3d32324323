"""Draws the pictures of the documentation: `python benches/python/pictures.py [FOLDER]`, with matplotlib; a minute.

The same figures give the same files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from bucketshuffle import DFLASH_BOUNDARIES, EpochPlan, Planner
from bucketshuffle.data import dflash902k
from bucketshuffle.schedule import Schedule
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from readme_picture import points

mpl.rcParams |= {"svg.hashsalt": "bucketshuffle", "axes.spines.top": False, "axes.spines.right": False}
BLUE, ORANGE, GREEN, GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#7f7f7f"


def padding_and_repetition() -> Figure:
    """What every strategy pays for meeting other samples in the next epoch."""
    curve, strategies = points()
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes: Axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), color=BLUE, marker=".", label="bucketshuffle, repeat_weight 0.02 to 50")
    names = {"bucketshuffle": "bucketshuffle, as it is", "sorted": "sorted: 0 %, 100 %"}
    for (name, at), colour, marker in zip(strategies.items(), (GREEN, BLUE, ORANGE, GREY), "^osD", strict=True):
        axes.plot(*at, marker, color=colour, label=names.get(name, name))
    axes.set(xscale="log", yscale="log", xlabel="padding over sorted batches, %", ylabel="pairs repeated, %")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)
    return figure


def soft_buckets() -> Figure:
    """From which lengths each batch of two epochs draws."""
    lengths = np.random.default_rng(0).choice(dflash902k(), 4_000)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (name, options) in zip(
        figure.subplots(1, 2, sharey=True),
        {"six hard buckets": {"boundaries": list(DFLASH_BOUNDARIES)}, "soft buckets": {}}.items(),
        strict=True,
    ):
        planner = Planner(lengths, token_budget=131_072, **options)
        for epoch, colour in enumerate((BLUE, ORANGE)):
            spans = sorted((lengths[batch].min(), lengths[batch].max()) for batch in planner.plan(0, epoch))
            at = np.arange(len(spans)) + 0.4 * epoch
            shortest, longest = np.array(spans).T
            axes.vlines(at, shortest, longest, color=colour, linewidth=1.6, label=f"epoch {epoch}")
        axes.set(title=name, xlabel="batches, from short to long")
    figure.axes[0].set_ylabel("shortest to longest sample, tokens")
    figure.axes[0].legend(frameon=False, loc="upper left")
    return figure


def windows() -> Figure:
    """The order of batches in which every update sees all lengths."""
    lengths = np.random.default_rng(0).choice(dflash902k(), 8_000)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (name, window) in zip(
        figure.subplots(1, 2, sharey=True), {"any order": 1, "windows of 16 batches": 16}.items(), strict=True
    ):
        plan = Planner(lengths, token_budget=131_072, window=window).plan(0)
        for start in range(0, 96, 32):
            axes.axvspan(start - 0.5, start + 15.5, color=GREY, alpha=0.12, linewidth=0)
        axes.plot(plan.padded_lengths[:96], ".", color=BLUE)
        means = _window_means(plan, lengths, 16)[:6]
        axes.hlines(
            means, np.arange(6) * 16, np.arange(6) * 16 + 15, color=ORANGE, label="mean length of a window's tokens"
        )
        axes.set_title(name, loc="right")
        axes.set_xlabel("batch")
    figure.axes[0].set_ylabel("padded length, tokens")
    figure.axes[0].legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def _window_means(plan: EpochPlan, lengths: Any, window: int) -> Any:
    of_sample = lengths[plan.indices].astype(np.float64)
    starts = plan.offsets[:-1:window]
    return np.add.reduceat(of_sample**2, starts) / np.add.reduceat(of_sample, starts)


def ranks_and_resume() -> Figure:
    """A run of two ranks, stopped after five steps, and continued on three."""
    lengths = np.random.default_rng(3).integers(10, 100, 90)
    two, three = (Schedule(lengths, token_budget=400, world_size=world_size) for world_size in (2, 3))
    begun = two.batches(0)
    stopped = two.start_of(0)._replace(n_done=5 * 2)
    shared = three.shared(stopped)
    rest = three.batches(0, shared.arrangement)
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes: Axes = figure.subplots()
    for batches, first, last, world_size, left in ((begun, 0, 10, 2, 0), (rest, 10, len(rest), 3, 6)):
        for b in range(first, last):
            step, rank = divmod(b - first, world_size)
            colour = mpl.colormaps["viridis"](0.9 * batches.padded_lengths[b] / 100)
            axes.barh(-rank, 0.92, left=left + step, color=colour, height=0.9)
            samples = batches.sizes[b]
            axes.text(
                left + step + 0.46,
                -rank,
                f"{b}\n{samples} samples",
                ha="center",
                va="center",
                fontsize=6,
                color="white",
            )
    axes.axvline(5.46, color=ORANGE)
    axes.text(5.46, 0.62, "stopped, continued on three ranks", ha="center", color=ORANGE)
    axes.set(yticks=[0, -1, -2], yticklabels=["rank 0", "rank 1", "rank 2"], xlabel="step", xticks=[], ylim=(-2.5, 0.9))
    return figure


PICTURES = (padding_and_repetition, soft_buckets, windows, ranks_and_resume)

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2] / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for draw in PICTURES:
        draw().savefig(folder / f"{draw.__name__}.svg", metadata={"Date": None})
