"""Sentences for figures that are bad, and what to do: judged by fixed limits, each named here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bucketshuffle.epoch_plan import EpochPlan
from bucketshuffle.metrics import Metrics
from bucketshuffle.report.distribution import Distribution

FEW_BATCHES = 50
"""Batches of an epoch below which samples meet few others and padding is high, even sorted."""
SPIKE = 0.005
"""Share of samples of one length above which it is looked at whether they were cut or padded."""
SPIKE_OVER_NEIGHBOURS = 10
"""A spike is so many times as frequent as the lengths around it."""
OUTLIER = 10
"""A longest sample of so many times the 99th percentile is worth a look."""
HIGH_PADDING = 0.05
"""Padding over sorted."""
HIGH_REPETITION = 0.1
"""Share of pairs repeated."""
HIGH_SKEW = 1.1
"""Slowest rank over the mean."""
FEW_SAMPLES = 4
"""Mean samples of a batch below which much of the budget stays free, because one more sample does not fit."""


def of_lengths(
    lengths: np.ndarray[Any, Any], found: Distribution, budget: int, dropped: np.ndarray[Any, Any]
) -> Iterator[str]:
    """Yields what the lengths by themselves call for.

    Args:
        lengths: [n_samples], integer, tokens per sample.
        found: their distribution.
        budget: `token_budget`.
        dropped: [n_dropped], the samples that were left out because of their length.
    """
    if found.n_empty == found.n_samples:
        yield f"all {found.n_samples:,} samples have length 0, so there is nothing to plan; look at the counting"
        return
    if found.n_empty:
        yield f"{_of(found.n_empty, found.n_samples)} have length 0 and are left out; look at how they were counted"
    overlong = lengths[dropped]
    overlong = overlong[overlong > 0]
    if len(overlong):
        yield (
            f"{_of(len(overlong), found.n_samples)}, with {overlong.sum(dtype=float) / found.tokens:.1%} of the "
            f"tokens, exceed token_budget = {budget:,} and are left out; the longest has {found.longest:,} tokens: "
            'raise token_budget, cut them, or keep them with overlong="keep"'
        )
    if found.n_distinct == 1:
        yield (
            f"every sample has {found.longest:,} tokens, so no order pads anything; if the samples were padded before "
            "they were counted, count their real tokens"
        )
        return
    yield from _spike(lengths, found)
    high = found.percentiles[99]
    if high and found.longest > OUTLIER * high:
        yield (
            f"the longest sample has {found.longest:,} tokens, {found.longest / high:.0f} times the 99th percentile "
            f"({high:,}); such samples fill batches of their own: look at them"
        )


def of_plan(
    ours: Metrics, best: Metrics, random: Metrics, plan: EpochPlan, window: int, options: Mapping[str, Any]
) -> Iterator[str]:
    """Yields what the user's plan calls for.

    Args:
        ours: the figures of the user's plan.
        best: those of sorted batches.
        random: those of random ones.
        plan: the user's plan of epoch 0.
        window: batches between two optimizer updates, over all ranks.
        options: every option of the user's plan.
    """
    if not len(plan):
        return
    is_soft = options["strategy"] == "bucketed" and options["boundaries"] == "auto"
    if len(plan) < FEW_BATCHES:
        yield (
            f"an epoch has {len(plan):,} batches, fewer than {FEW_BATCHES}: padding and repetition are both high then; "
            "lower token_budget if memory is not full, or add data"
        )
    over = ours.padding_ratio / best.padding_ratio - 1
    if over > HIGH_PADDING:
        way_out = "lower repeat_weight or token_budget, or set padding_target" if is_soft else "try soft buckets"
        yield f"batches pad {over:.1%} over sorted ones; {way_out} (docs/choosing.md)"
    samples = len(plan.indices) / len(plan)
    if samples < FEW_SAMPLES:
        yield (
            f"a batch holds {samples:.1f} samples on average and fills {ours.fill:.0%} of token_budget; raise it "
            "if memory allows"
        )
    if ours.pairs_repeated is not None and ours.pairs_repeated > HIGH_REPETITION:
        way_out = "raise repeat_weight, or lower token_budget" if is_soft else "try soft buckets"
        yield (
            f"{ours.pairs_repeated:.1%} of the pairs of samples in a batch share one in the next epoch too; {way_out}"
        )
    if ours.slowest_over_mean > HIGH_SKEW:
        yield (
            f"the slowest rank of a step has {ours.slowest_over_mean:.2f} times the mean of its ranks; set "
            "balance_ranks=True in the sampler (here: align_ranks)"
        )
    if ours.mix is not None and random.mix is not None and ours.mix > random.mix > 0:
        yield (
            f"windows of {window:,} batches are {ours.mix / random.mix:.1f} times as far from the data set as random "
            "ones, whose batches are fair samples by themselves; accumulate more batches, or smaller ones"
        )


def of_edges(name: str, edges: Sequence[int], lengths: np.ndarray[Any, Any]) -> Iterator[str]:
    """Yields whether buckets of fixed edges divide these lengths at all.

    Args:
        name: what the edges are called.
        edges: [n_buckets + 1], tokens, ascending.
        lengths: [n_samples], integer, tokens per sample.
    """
    inside = lengths[(lengths > edges[0]) & (lengths <= edges[-1])]
    counts = np.bincount(np.searchsorted(edges, inside) - 1, minlength=len(edges) - 1)
    n_empty = int((counts == 0).sum())
    if not len(inside):
        return
    fullest = int(counts.argmax())
    bounds = f"{edges[fullest]:,} < length <= {edges[fullest + 1]:,}"
    if len(counts) > 1 and counts[fullest] > 0.95 * len(inside):
        yield (
            f"{name} do little here: {counts[fullest] / len(inside):.1%} of the samples are in one of {len(counts)}, "
            f"{bounds}; choose edges from the counts by range, or soft buckets"
        )
    elif n_empty:
        yield f"{name}: {n_empty} of {len(counts)} hold no sample; choose edges from the counts by range"


def _spike(lengths: np.ndarray[Any, Any], found: Distribution) -> Iterator[str]:
    for length in {found.longest: 0, found.most_frequent: 0}:
        reach = max(length // 20, 5)
        count = int((lengths == length).sum())
        around = int(((lengths >= length - reach) & (lengths <= length + reach)).sum()) - count
        usual = max(around / (reach if length == found.longest else 2 * reach), 1)
        if length and count > max(SPIKE * found.n_samples, SPIKE_OVER_NEIGHBOURS * usual):
            place = f"{length:,} tokens, the longest length" if length == found.longest else f"{length:,} tokens"
            yield (
                f"{_of(count, found.n_samples)} have exactly {place}, {count / usual:,.0f} times as many as lengths "
                "near it: look whether they were cut or padded there, or are copies"
            )


def _of(n: int, n_samples: int) -> str:
    share = n / n_samples
    return f"{n:,} of {n_samples:,} samples ({share:.1%})" if share >= 0.0005 else f"{n:,} of {n_samples:,} samples"
