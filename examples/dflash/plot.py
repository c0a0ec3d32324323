"""Pictures of training runs, with matplotlib.

python examples/dflash/plot.py run/log.jsonl losses.svg        # of train.py: the loss of all batches, and by bucket
python examples/dflash/plot.py compare.json curves.svg         # of compare.py --out: every strategy over real tokens
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
mpl.rcParams["svg.hashsalt"] = "bucketshuffle"  # The same file from the same figures.


def smooth(losses: Floats, n: int) -> Floats:
    """The mean of the last `n` losses, and at the beginning of as many as there are."""
    sums = np.concatenate([np.zeros(n), np.cumsum(losses)])
    return (sums[n:] - sums[:-n]) / np.minimum(np.arange(1, len(losses) + 1), n)


def by_bucket(log: Path) -> Figure:
    _, _, bucket, loss = np.array([json.loads(line) for line in log.read_text().splitlines()]).T
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    whole, parts = figure.subplots(1, 2, sharey=True)
    whole.plot(loss, linewidth=0.6)
    whole.set(title="loss of every batch", xlabel="step", ylabel="loss")
    buckets = np.unique(bucket)
    for i, some in enumerate(np.array_split(buckets, min(5, len(buckets)))):
        (steps,) = np.isin(bucket, some).nonzero()
        name = f"bucket {some[0]:.0f}" if len(some) == 1 else f"buckets {some[0]:.0f} to {some[-1]:.0f}"
        parts.plot(steps, smooth(loss[steps], 10), color=mpl.colormaps["viridis"](i / 5), label=name)
    parts.set(title="the same, by bucket, mean of 10", xlabel="step")
    parts.legend()
    return figure


def by_strategy(compared: Path) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 2, sharey=True))
    for strategy, runs in json.loads(compared.read_text())["runs"].items():
        tokens, losses = np.array(runs[0]["losses"]).T
        n = 4 * runs[0]["batches of an update"]
        at = np.cumsum(tokens) / 1e6
        for curve, n_mean in zip(axes, (1, n), strict=True):
            curve.plot(at, smooth(losses, n_mean), linewidth=0.6 if n_mean == 1 else 1.2, label=strategy)
    axes[0].set(title="loss of every batch", xlabel="real tokens, millions", ylabel="loss")
    axes[1].set(title="mean of four updates", xlabel="real tokens, millions")
    axes[1].legend()
    return figure


if __name__ == "__main__":
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    picture = by_bucket(source) if source.suffix == ".jsonl" else by_strategy(source)
    picture.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
