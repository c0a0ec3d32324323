"""`bucketshuffle bench`: how long an epoch takes to plan on this machine, beside plain Python and NumPy."""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bucketshuffle import __version__, _core
from bucketshuffle.cli.arguments import add_command, count
from bucketshuffle.cli.arrays import LENGTHS_HELP, printable, read_lengths
from bucketshuffle.data import dflash902k
from bucketshuffle.plan import Planner, pack_epoch
from bucketshuffle.report import Table
from bucketshuffle.report.compare import six_edges

Plan = Callable[[int], Any]
"""Makes the batches of an epoch from a seed: a sequence of sequences of sample indices."""


def add(commands: Any) -> None:
    """Adds the subcommand."""
    command = add_command(
        commands,
        "bench",
        run,
        "time the planning of an epoch on this machine, beside plain Python and NumPy",
        ["", "lengths.npy --rounds 21"],
    )
    command.add_argument("lengths", nargs="?", metavar="LENGTHS", help=f"{LENGTHS_HELP} (default: dflash902k)")
    command.add_argument("--rounds", type=count(3), default=7, metavar="N", help="calls of each (default: 7)")
    command.add_argument(
        "--token-budget",
        type=count(1),
        default=_core.DEFAULTS["token_budget"],
        metavar="N",
        help="what a batch may cost, padded tokens (default: %(default)s)",
    )


def run(given: argparse.Namespace) -> None:
    """Checks what every candidate makes, times them in turn and prints a table."""
    lengths = dflash902k() if given.lengths is None else read_lengths(given.lengths)
    dropped = Planner(lengths, token_budget=given.token_budget, overlong="drop", empty="drop").dropped
    kept = np.delete(lengths, dropped)
    plans = candidates(kept, given.token_budget)
    padding = {name: padding_ratio(kept, plan(0), given.token_budget) for name, plan in plans.items()}
    seconds = timed(plans, given.rounds)
    name = "dflash902k" if given.lengths is None else printable(given.lengths)
    print(f"{name}: {len(kept):,} samples; {platform.machine()}, {os.cpu_count()} CPUs, Python", end=" ")
    print(f"{platform.python_version()}, NumPy {np.__version__}, bucketshuffle {__version__}\n")
    print(_table(seconds, padding).to_text())


def candidates(lengths: npt.NDArray[np.integer[Any]], token_budget: int) -> dict[str, Plan]:
    """Returns each way to plan an epoch of `lengths`, [n_samples], by its name. The first is what the others are
    compared with; each has its input in the form that suits it."""
    edges = six_edges(lengths)
    soft, six = (Planner(lengths, token_budget=token_budget, boundaries=kind) for kind in ("auto", edges))
    return {
        "Planner.plan": soft.plan,
        "Planner.plan, six buckets": six.plan,
        "pack_epoch": lambda seed: pack_epoch(lengths, seed, token_budget=token_budget),
        "NumPy, six buckets": partial(in_numpy, lengths, edges, token_budget),
        "plain Python, six buckets": partial(in_python, lengths.tolist(), edges, token_budget),
    }


def in_python(lengths: list[int], edges: Sequence[int], token_budget: int, seed: int) -> list[list[int]]:
    """Returns the batches of shuffled buckets, as a good engineer writes it in plain Python."""
    rng = random.Random(seed)
    buckets: list[list[int]] = [[] for _ in edges[1:]]
    for i, length in enumerate(lengths):
        buckets[bisect_left(edges, length) - 1].append(i)
    batches = []
    for bucket in buckets:
        rng.shuffle(bucket)
        batch: list[int] = []
        longest = 0
        for i in bucket:
            length = lengths[i]
            if length > longest:
                longest = length
            if (len(batch) + 1) * longest > token_budget:
                batches.append(batch)
                batch, longest = [], length
            batch.append(i)
        if batch:
            batches.append(batch)
    rng.shuffle(batches)
    return batches


def in_numpy(
    lengths: npt.NDArray[np.integer[Any]], edges: Sequence[int], token_budget: int, seed: int
) -> list[npt.NDArray[np.int64]]:
    """Returns the batches of shuffled buckets, as most write it in NumPy: batch by batch, the running maximum of a
    block times its count against the budget."""
    rng = np.random.Generator(np.random.PCG64(seed))
    bucket = np.searchsorted(edges, lengths, side="left")
    batches = []
    for b in range(1, len(edges)):
        members = rng.permutation(np.flatnonzero(bucket == b))
        shuffled = lengths[members].astype(np.int64)
        most = token_budget // (edges[b - 1] + 1) + 1
        counts = np.arange(1, min(most, 4 * token_budget // edges[b] + 1) + 1)
        position = 0
        while position < len(members):
            running = np.maximum.accumulate(shuffled[position : position + len(counts)])
            fits = int(np.searchsorted(running * counts[: len(running)], token_budget, side="right"))
            batches.append(members[position : position + fits])
            position += fits
    return [batches[b] for b in rng.permutation(len(batches))]


def padding_ratio(lengths: npt.NDArray[np.integer[Any]], batches: Any, token_budget: int) -> float:
    """Returns padded tokens over real tokens of batches, once it is known that they hold every sample once and keep the
    budget.

    Raises:
        ValueError: they do not.
    """
    sizes = np.array([len(batch) for batch in batches], np.int64)
    indices = np.concatenate([np.asarray(batch, np.int64) for batch in batches] or [np.empty(0, np.int64)])
    starts = np.cumsum(sizes) - sizes
    longest = np.maximum.reduceat(lengths[indices], starts).astype(np.int64) if len(sizes) else np.empty(0, np.int64)
    if not np.array_equal(np.sort(indices), np.arange(len(lengths))) or (sizes * longest > token_budget).any():
        raise ValueError("batches lack a sample, repeat one, or exceed the budget")
    return float(sizes @ longest) / max(float(lengths.sum(dtype=np.float64)), 1.0)


def timed(plans: dict[str, Plan], n_rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each call, by candidate. They take turns in random order, one call each a round, because a
    shared machine slows down and speeds up for seconds at a time."""
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    turns = random.Random(0)
    for seed in range(n_rounds):
        for name in turns.sample(list(plans), len(plans)):
            start = time.perf_counter()
            plans[name](seed)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _table(seconds: dict[str, list[float]], padding: dict[str, float]) -> Table:
    reference = np.array(next(iter(seconds.values())))
    rows = []
    for name, own in seconds.items():
        low, median, high = np.quantile(np.array(own) * 1e3, [0.25, 0.5, 0.75])
        times = float(np.median(np.array(own) / reference))
        rows.append((name, f"{median:,.1f}", f"{low:,.1f}-{high:,.1f}", f"{times:,.1f}", f"{padding[name]:.4f}"))
    head = ("candidate", "ms", "quartiles", "times the first", "padded / real")
    legend = (
        ("Planner.plan", "lengths are checked and sorted once for all epochs; pack_epoch does it in every call"),
        ("times the first", "median of the ratios of calls in one round"),
    )
    return Table("Planning an epoch", head, tuple(rows), legend)
