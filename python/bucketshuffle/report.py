"""What a plan is worth: padding, mix and freshness, beside the same figures for sorted, random and six buckets.

`python -m bucketshuffle` prints it.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from typing import Any

import numpy as np

from bucketshuffle.lengths import as_lengths
from bucketshuffle.plan import DFLASH_BOUNDARIES, EpochPlan, Planner

SORTED_KTOK_PER_S = 32.0
"""Measured throughput of sorted batches in the DFlash write-up, thousand real tokens per second."""


def window_mix(plan: EpochPlan, lengths: Any, window: int) -> float:
    """Returns how far windows are from the data set, in [0, 1]: the Wasserstein-1 distance between the token-weighted
    length distributions of a window of `window` batches and of the whole plan, over the longest length; mean over all
    full windows. 0.0 where there is none.

    Args:
        lengths: [n_samples], tokens per sample.
    """
    lengths = as_lengths(lengths)
    distinct, inverse = np.unique(lengths[plan.indices], return_inverse=True)
    values = distinct.astype(np.float64)  # data sets may have 2^63 tokens and more
    if len(plan) < window:
        return 0.0
    weights = np.bincount(inverse, minlength=len(values)) * values
    whole = np.cumsum(weights) / weights.sum()
    gaps = np.diff(values, append=values[-1])
    starts = plan.offsets[::window][: len(plan) // window + 1]
    distances = []
    for start, end in itertools.pairwise(starts.tolist()):
        part = np.cumsum(np.bincount(inverse[start:end], minlength=len(values)) * values)
        distances.append(np.abs(part / part[-1] - whole) @ gaps / values[-1])
    return float(np.mean(distances))


def pairs_repeated(plan: EpochPlan, next_plan: EpochPlan) -> float:
    """Returns the share of pairs of samples in one batch of `plan` that share a batch of `next_plan` too; 0.0 where no
    batch has two samples."""

    sizes, next_sizes = np.diff(plan.offsets), np.diff(next_plan.offsets)
    next_batch = np.empty(1 + plan.indices.max(initial=-1), np.int64)
    next_batch[next_plan.indices] = np.repeat(np.arange(len(next_plan)), next_sizes)
    batch = np.repeat(np.arange(len(plan)), sizes)
    _, in_both = np.unique(batch * max(len(next_plan), 1) + next_batch[plan.indices], return_counts=True)
    n_pairs = (sizes * (sizes - 1)).sum()
    return float((in_both * (in_both - 1)).sum() / n_pairs) if n_pairs else 0.0


def neighbour_correlation(plan: EpochPlan) -> float:
    """Returns the correlation of the padded lengths of neighbouring batches, in [-1, 1]; a sawtooth loss curve shows
    here first. 0.0 where all are equal."""
    lengths = plan.padded_lengths
    if len(lengths) < 3 or np.ptp(lengths[1:]) == 0 or np.ptp(lengths[:-1]) == 0:
        return 0.0
    return float(np.corrcoef(lengths[:-1], lengths[1:])[0, 1])


def longest_run(plan: EpochPlan) -> int:
    """Returns the most consecutive batches from one bucket."""
    if len(plan) == 0:
        return 0
    changes = np.flatnonzero(np.diff(plan.buckets)) + 1
    return int(np.diff(changes, prepend=0, append=len(plan)).max())


def slowest_over_mean(plan: EpochPlan, world_size: int) -> float:
    """Returns the padded tokens of the slowest rank of a step over the mean of its ranks; mean over all full steps. 1.0
    where there is none."""
    n_steps = len(plan) // world_size
    if n_steps == 0:
        return 1.0
    padded_tokens = np.diff(plan.offsets) * plan.padded_lengths.astype(np.float64)
    tokens = padded_tokens[: n_steps * world_size].reshape(n_steps, world_size)
    return float((tokens.max(axis=1) / tokens.mean(axis=1)).mean())


@dataclasses.dataclass(frozen=True)
class Row:
    """One strategy over some epochs; means, and the median planning time."""

    name: str
    padding_ratio: float
    """Padded tokens / real tokens."""
    n_batches: float
    n_shapes: float
    """Distinct shapes `(B, L)` of an epoch."""
    mix: float
    """See `window_mix`."""
    pairs_repeated: float
    """See `pairs_repeated`, from each epoch to the next."""
    neighbour_correlation: float
    longest_run: float
    slowest_over_mean: float
    """See `slowest_over_mean`."""
    ktok_per_s: float
    """Predicted thousand real tokens per second: speed follows padded tokens, sorted batches run at 32."""
    construct_ms: float
    """`Planner(lengths, ...)`, once."""
    plan_ms: float
    """`Planner.plan(seed, epoch)`, median."""


def compare(
    lengths: Any, *, seed: int = 0, n_epochs: int = 6, window: int = 64, world_size: int = 8, **options: Any
) -> list[Row]:
    """Returns one row for each of: sorted, random, the write-up's six buckets, and ours in stratified order.

    Args:
        lengths: [n_samples], tokens per sample.
        n_epochs: how many epochs of each to plan, 2 or more.
        window: batches between two optimizer updates, over all ranks.
        world_size: ranks that share a step, for the cost of the slowest.
        options: further options of `pack_epoch` for all four, such as `token_budget`; `padding_target` and
            `repeat_weight` for ours, the only one that they concern.
    """
    lengths = as_lengths(lengths)
    # The write-up's last edge suits its data; longer samples get a seventh bucket.
    edges = [*DFLASH_BOUNDARIES, *([int(lengths.max())] if lengths.max(initial=0) > DFLASH_BOUNDARIES[-1] else [])]
    search: dict[str, Any] = {
        name: options.pop(name) for name in ("padding_target", "repeat_weight") if name in options
    }
    strategies: dict[str, dict[str, Any]] = {
        "sorted": {"strategy": "sorted"},
        "random": {"strategy": "random"},
        "six buckets": {"boundaries": edges},
        "bucketshuffle": {"window": window, **search},
    }
    rows: list[Row] = []
    for name, strategy in strategies.items():
        start = time.perf_counter()
        planner = Planner(lengths, **{**options, **strategy})
        construct_ms = (time.perf_counter() - start) * 1e3
        before: EpochPlan | None = None
        times_ms, figures, longest_runs, repeated = [], [], [], []
        for epoch in range(n_epochs):
            start = time.perf_counter()
            plan = planner.plan(seed, epoch)
            times_ms.append((time.perf_counter() - start) * 1e3)
            figures.append(_figures(plan, lengths, window, world_size))
            longest_runs.append(longest_run(plan))
            if before is not None:
                repeated.append(pairs_repeated(before, plan))
            before = plan
        means = {figure: statistics.fmean(of_epoch[figure] for of_epoch in figures) for figure in figures[0]}
        padding_ratio = means["padding_ratio"]
        least = rows[0].padding_ratio if rows else padding_ratio
        rows.append(
            Row(
                name=name,
                **means,
                pairs_repeated=statistics.fmean(repeated),
                longest_run=max(longest_runs) if len(planner.boundaries) > 2 else 0,
                ktok_per_s=SORTED_KTOK_PER_S * least / padding_ratio,
                construct_ms=construct_ms,
                plan_ms=statistics.median(times_ms),
            )
        )
    return rows


def _figures(plan: EpochPlan, lengths: Any, window: int, world_size: int) -> dict[str, float]:
    """The figures of `Row` that are means over plans."""
    return {
        "padding_ratio": plan.stats.padding_ratio,
        "n_batches": len(plan),
        "n_shapes": plan.stats.n_shapes,
        "mix": window_mix(plan, lengths, window),
        "neighbour_correlation": neighbour_correlation(plan),
        "slowest_over_mean": slowest_over_mean(plan, world_size),
    }


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
    """Returns the rows as a Markdown table."""
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
    body = [
        (
            row.name,
            f"{row.padding_ratio:.4f}",
            f"{row.n_batches:,.0f}",
            f"{row.n_shapes:,.0f}",
            f"{row.mix:.4f}" if row.n_batches >= window else "-",
            f"{row.pairs_repeated:.2%}",
            f"{row.neighbour_correlation:+.3f}",
            str(row.longest_run or "-"),
            f"{row.slowest_over_mean:.3f}",
            f"{row.ktok_per_s:.1f}",
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
