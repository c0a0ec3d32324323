"""Strategies side by side on the same lengths: what padding, mix and repetition each gives, and how fast it plans."""

from __future__ import annotations

import dataclasses
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from bucketshuffle.epoch_plan import EpochPlan
from bucketshuffle.fields import as_fields, sample_tokens
from bucketshuffle.metrics import Metrics, of_epochs
from bucketshuffle.plan import DFLASH_BOUNDARIES, Planner

N_THREADS = min(4, os.cpu_count() or 1)
"""Planning and most of NumPy hold no interpreter lock; each thread holds a plan or two."""

_T = TypeVar("_T")
_R = TypeVar("_R")

OWN_OPTIONS = ("boundaries", "strategy", "align_ranks", "constant_count")
OWN_ROW = "your options"
"""The row of a caller whose options name other buckets, another strategy or another order."""

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
    lengths: Any,
    *,
    seed: int = 0,
    n_epochs: int = 6,
    window: int = 64,
    world_size: int = 8,
    n_threads: int = 1,
    **options: Any,
) -> list[Row]:
    """Returns one row for each of: sorted, random, the write-up's six buckets, and ours in stratified order; and a row
    of the caller's own where the options name other buckets, another strategy or another order.

    Args:
        lengths: [n_samples], tokens per sample.
        n_epochs: how many epochs of each to plan, 2 or more.
        window: batches between two optimizer updates, over all ranks.
        world_size: ranks that share a step, for the cost of the slowest.
        n_threads: rows to make at a time. Above 1 the rows' times are those of planners that disturb each other.
        options: further options of `pack_epoch`. Those that say what a batch may cost hold for all rows,
            `padding_target` and `repeat_weight` for ours, and `boundaries`, `strategy`, `align_ranks` and
            `constant_count` for the caller's own row.

    Raises:
        TypeError, ValueError: as `pack_epoch`.
    """
    tokens = sample_tokens(lengths)
    is_over = threading.Event()

    def row(named: tuple[str, dict[str, Any]]) -> Row:
        name, strategy = named
        start = time.perf_counter()
        planner = Planner(lengths, **strategy)
        construct_ms = (time.perf_counter() - start) * 1e3
        times_ms: list[float] = []
        plans = _timed_plans(planner, seed, n_epochs, times_ms, is_over)
        figures = of_epochs(plans, tokens, window=window, world_size=world_size)
        return Row(name, figures, construct_ms, statistics.median(times_ms))

    try:
        return list(on_threads(row, strategies(lengths, window=window, **options).items(), n_threads))
    finally:
        is_over.set()


def strategies(lengths: Any, *, window: int, **options: Any) -> dict[str, dict[str, Any]]:
    """Returns the options of the planner behind each row of `compare`, by the row's name."""
    own = {name: options.pop(name) for name in OWN_OPTIONS if name in options}
    search = {name: options.pop(name) for name in _SEARCH if name in options}
    rows: dict[str, dict[str, Any]] = {"sorted": {"strategy": "sorted"}, "random": {"strategy": "random"}}
    if as_fields(lengths)[0].ndim == 1:  # which the write-up's edges are of
        rows["six buckets"] = {"boundaries": six_edges(lengths)}
    rows["bucketshuffle"] = {"window": window, **search}
    if own:
        rows[OWN_ROW] = {"window": window, **search, **own}
    return {name: {**options, **row} for name, row in rows.items()}


def six_edges(lengths: Any) -> list[int]:
    """Returns the edges of the row "six buckets", tokens: the write-up's, and one more where samples are longer than
    its last."""
    longest = int(sample_tokens(lengths).max(initial=0))
    return [*DFLASH_BOUNDARIES, *([longest] if longest > DFLASH_BOUNDARIES[-1] else [])]


def on_threads(figures: Callable[[_T], _R], of: Iterable[_T], n_threads: int = N_THREADS) -> tuple[_R, ...]:
    """Returns `figures` of each item, in order, `n_threads` at a time. At Ctrl-C it waits for none of them."""
    threads = ThreadPoolExecutor(n_threads)
    try:
        return tuple(threads.map(figures, of))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _timed_plans(
    planner: Planner, seed: int, n_epochs: int, times_ms: list[float], is_over: threading.Event
) -> Iterator[EpochPlan]:
    for epoch in range(n_epochs):
        if is_over.is_set():  # the caller has left at Ctrl-C, and nobody wants the rest
            return
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
        planner = Planner(lengths, window=window, **{**options, "constant_count": True})
    except ValueError as error:  # fewer samples than batches of a window
        return (str(error),)
    return planner.plan(seed).stats.notes
