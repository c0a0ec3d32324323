"""Strategies side by side on the same lengths: what padding, mix and freshness each gives, and how fast it plans."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from typing import Any

from bucketshuffle.lengths import as_lengths
from bucketshuffle.metrics import Metrics, of_epochs, predicted_throughput
from bucketshuffle.plan import DFLASH_BOUNDARIES, EpochPlan, Planner

WRITE_UP_KTOK_PER_S = 32.0
"""Measured throughput of sorted batches in the DFlash write-up, thousand real tokens per second."""

_OWN = ("boundaries", "strategy", "align_ranks", "constant_count")
_SEARCH = ("repeat_weight", "padding_target")


@dataclasses.dataclass(frozen=True)
class Row:
    """One strategy over some epochs; means, and the median planning time."""

    name: str
    metrics: Metrics
    construct_ms: float
    """`Planner(lengths, ...)`, once."""
    plan_ms: float
    """`Planner.plan(seed, epoch)`, median."""


def compare(
    lengths: Any, *, seed: int = 0, n_epochs: int = 6, window: int = 64, world_size: int = 8, **options: Any
) -> list[Row]:
    """Returns one row for each of: sorted, random, the write-up's six buckets, and ours in stratified order; and a row
    of the caller's own where the options name other buckets, another strategy or another order.

    Args:
        lengths: [n_samples], tokens per sample.
        n_epochs: how many epochs of each to plan, 2 or more.
        window: batches between two optimizer updates, over all ranks.
        world_size: ranks that share a step, for the cost of the slowest.
        options: further options of `pack_epoch`. Those that say what a batch may cost hold for all rows,
            `padding_target` and `repeat_weight` for ours, and `boundaries`, `strategy`, `align_ranks` and
            `constant_count` for the caller's own row.

    Raises:
        TypeError, ValueError: as `pack_epoch`.
    """
    lengths = as_lengths(lengths)
    rows = []
    for name, strategy in strategies(lengths, window=window, **options).items():
        start = time.perf_counter()
        planner = Planner(lengths, **strategy)
        construct_ms = (time.perf_counter() - start) * 1e3
        times_ms: list[float] = []
        plans = _timed_plans(planner, seed, n_epochs, times_ms)
        figures = of_epochs(plans, lengths, window=window, world_size=world_size)
        rows.append(Row(name, figures, construct_ms, statistics.median(times_ms)))
    return rows


def strategies(lengths: Any, *, window: int, **options: Any) -> dict[str, dict[str, Any]]:
    """Returns the options of the planner behind each row of `compare`, by the row's name."""
    longest = int(as_lengths(lengths).max(initial=0))
    # The write-up's last edge suits its data; longer samples get a seventh bucket.
    edges = [*DFLASH_BOUNDARIES, *([longest] if longest > DFLASH_BOUNDARIES[-1] else [])]
    own = {name: options.pop(name) for name in _OWN if name in options}
    search = {name: options.pop(name) for name in _SEARCH if name in options}
    rows: dict[str, dict[str, Any]] = {
        "sorted": {"strategy": "sorted"},
        "random": {"strategy": "random"},
        "six buckets": {"boundaries": edges},
        "bucketshuffle": {"window": window, **search},
    }
    if own:
        rows["your options"] = {"window": window, **search, **own}
    return {name: {**options, **row} for name, row in rows.items()}


def _timed_plans(planner: Planner, seed: int, n_epochs: int, times_ms: list[float]) -> Iterator[EpochPlan]:
    for epoch in range(n_epochs):
        start = time.perf_counter()
        plan = planner.plan(seed, epoch)
        times_ms.append((time.perf_counter() - start) * 1e3)
        yield plan


def notes(lengths: Any, *, seed: int = 0, window: int = 64, **options: Any) -> tuple[str, ...]:
    """Returns a sentence for everything that is worth a change of the options of a training run with updates of
    `window` batches: the notes of its first plan, with the constant count that a sampler plans.

    Args:
        lengths: [n_samples], tokens per sample.
        window: batches between two optimizer updates, over all ranks.
        options: further options of `pack_epoch`.

    Raises:
        TypeError, ValueError: as `pack_epoch`.
    """
    Planner(lengths, window=window, **options)  # raises all but what follows
    try:
        planner = Planner(lengths, window=window, constant_count=True, **options)
    except ValueError as error:  # fewer samples than batches of a window
        return (str(error),)
    return planner.plan(seed).stats.notes


def to_table(rows: list[Row], window: int, world_size: int) -> str:
    """Returns rows that begin with the sorted one as a Markdown table."""
    head = (
        "strategy",
        "padded / real",
        "batches",
        "shapes",
        f"mix of {window}",
        "pairs repeated",
        "neighbours",
        "longest run",
        f"slowest of {world_size}",
        "Ktok/s",
        "build ms",
        "plan ms",
    )
    least = rows[0].metrics.padding_ratio
    body = [
        (
            row.name,
            f"{row.metrics.padding_ratio:.4f}",
            f"{row.metrics.n_batches:,.0f}",
            f"{row.metrics.n_shapes:,.0f}",
            "-" if row.metrics.mix is None else f"{row.metrics.mix:.4f}",
            "-" if row.metrics.pairs_repeated is None else f"{row.metrics.pairs_repeated:.2%}",
            f"{row.metrics.neighbour_correlation:+.3f}",
            str(row.metrics.longest_run or "-"),
            f"{row.metrics.slowest_over_mean:.3f}",
            f"{predicted_throughput(row.metrics.padding_ratio, WRITE_UP_KTOK_PER_S, least):.1f}",
            f"{row.construct_ms:.1f}",
            f"{row.plan_ms:.1f}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [
        " | ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
        for cells in (head, *body)
    ]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join(["| " + lines[0] + " |", "|" + rule + "|", *("| " + line + " |" for line in lines[1:])])
