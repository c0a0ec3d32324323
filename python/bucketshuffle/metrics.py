"""The figures of a plan, each a pure function of its arrays: exact up to rounding, defined for empty and tiny plans."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.fields import sample_tokens
from bucketshuffle.options import integer

if TYPE_CHECKING:
    from bucketshuffle.epoch_plan import EpochPlan

_BLOCK = 1 << 20  # samples at a time: temporary arrays stay small, and sorting them stays in the cache
_MIN_BATCHES = 64  # whose pairs are counted at least, however many samples that is
_DENSE = 8  # distinct lengths for each sample of a window above which sorting the window is faster than a table


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The figures that say whether a plan is good: of one plan, or the means over the plans of some epochs."""

    n_batches: float
    padding_ratio: float
    """Padded tokens / real tokens; see `Stats`."""
    fill: float
    """Cost / budget; see `Stats`."""
    n_shapes: float
    """Distinct shapes `(B, L)` of an epoch."""
    mix: float | None
    """See `window_mix`; None below two windows, one of which is then most of the epoch."""
    pairs_repeated: float | None
    """See `pairs_repeated`, from each epoch to the next; None for one plan by itself."""
    neighbour_correlation: float
    """See `neighbour_correlation`."""
    longest_run: int | None
    """See `longest_run`, the most of all epochs; None where there is one bucket."""
    slowest_over_mean: float
    """See `slowest_over_mean`."""
    heaviest_over_mean: float
    """See `heaviest_over_mean`, the most of all epochs."""


def of_epochs(plans: Iterable[EpochPlan], lengths: Any, *, window: int, world_size: int = 1) -> Metrics:
    """Returns the figures of plans of successive epochs; two of them are in memory at a time where `plans` makes them.

    Args:
        plans: one plan or more, in the order of their epochs.
        lengths: [n_samples], tokens per sample, as for `pack_epoch`.
        window: batches between two optimizer updates, over all ranks.
        world_size: ranks that share a step.

    Raises:
        TypeError: `window` or `world_size` is no integer.
        ValueError: no plan, other lengths than the plans', or `window` or `world_size` below 1.
    """
    lengths = sample_tokens(lengths)
    figures: list[dict[str, float]] = []
    mixes, repeated, runs, heaviest = [], [], [], []
    before: EpochPlan | None = None
    for plan in plans:
        figures.append(
            {
                "n_batches": len(plan),
                "padding_ratio": plan.stats.padding_ratio,
                "fill": plan.stats.fill,
                "n_shapes": plan.stats.n_shapes,
                "neighbour_correlation": neighbour_correlation(plan),
                "slowest_over_mean": slowest_over_mean(plan, world_size),
            }
        )
        mix = window_mix(plan, lengths, window)
        if len(plan) >= 2 * window:
            mixes.append(mix)
        if len(plan.boundaries) > 2:
            runs.append(longest_run(plan))
        heaviest.append(heaviest_over_mean(plan))
        if before is not None:
            repeated.append(pairs_repeated(before, plan))
        before = plan
    if not figures:
        raise ValueError("plans has 0 plans, fewer than the 1 that figures need")
    return Metrics(
        **{name: statistics.fmean(of_plan[name] for of_plan in figures) for name in figures[0]},
        mix=statistics.fmean(mixes) if mixes else None,
        pairs_repeated=statistics.fmean(repeated) if repeated else None,
        longest_run=max(runs) if runs else None,
        heaviest_over_mean=max(heaviest),
    )


def window_mix(plan: EpochPlan, lengths: Any, window: int) -> float:
    """Returns how far windows are from the data set: the mean of `window_distances`; 0.0 where there is no window.

    Raises:
        TypeError, ValueError: as `window_distances`.
    """
    distances = window_distances(plan, lengths, window)
    return float(distances.mean()) if len(distances) else 0.0


def window_distances(plan: EpochPlan, lengths: Any, window: int) -> npt.NDArray[np.float64]:
    """Returns how far each full window is from the data set, [n_windows], float64 in [0, 1]: the Wasserstein-1 distance
    between the token-weighted length distributions of a window of `window` batches and of the whole plan, over the
    longest length.

    The distance of two distributions on a line is the area between their distribution functions F:
    `sum over k of |F_window(k) - F_plan(k)| * (v[k + 1] - v[k]) / v[-1]`, where `v` are the distinct lengths and `F(k)`
    is the share of the tokens in samples of at most `v[k]` tokens (Vallender 1974, https://doi.org/10.1137/1118101).

    Args:
        lengths: [n_samples], tokens per sample, as for `pack_epoch`.
        window: batches between two optimizer updates, over all ranks.

    Raises:
        TypeError: `window` is no integer.
        ValueError: `window` is below 1, or `lengths` are not those of the plan.

    Complexity: O(n + n_windows * V) for V distinct lengths, or O(n log n) where that is less. The rounding error is
    below 1e-9.
    """
    integer("window", window, 1)
    lengths = sample_tokens(lengths)
    n_samples = len(plan.indices) + len(plan.dropped)
    if len(lengths) != n_samples:
        raise ValueError(
            f"lengths has {len(lengths):,} samples, but the plan was made of {n_samples:,}; pass the lengths that the "
            "plan was made from"
        )
    n_windows = len(plan) // window
    if n_windows == 0:
        return np.empty(0)
    values, ranks = _ranked(lengths[plan.indices])
    weights = np.bincount(ranks, minlength=len(values)) * values
    whole = np.cumsum(weights) / weights.sum()
    gaps = np.diff(values, append=values[-1])
    starts = plan.offsets[::window][: n_windows + 1]
    if n_windows * len(values) > _DENSE * len(ranks):
        areas = _sparse_distances(starts, ranks, values, whole, gaps)
        return areas / float(values[-1])
    areas = np.empty(n_windows)
    for w, (start, end) in enumerate(itertools.pairwise(starts.tolist())):
        part = np.cumsum(np.bincount(ranks[start:end], minlength=len(values)) * values)
        areas[w] = (np.abs(part / part[-1] - whole) * gaps).sum()  # not @, whose threads wait for a busy core
    return areas / float(values[-1])


def _sparse_distances(
    starts: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    whole: npt.NDArray[np.float64],
    gaps: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """The areas between the distribution functions of each window and the plan, from the lengths present in the window
    alone: between two of them the window's function is constant, and the plan's crosses it at most once."""
    # Areas left of rank k: of 1, and under the plan's function.
    ones = np.concatenate([[0.0], np.cumsum(gaps)])
    under = np.concatenate([[0.0], np.cumsum(whole * gaps)])
    areas = np.empty(len(starts) - 1)
    for first, last in _blocks(starts):
        start, end = int(starts[first]), int(starts[last])
        sizes = np.diff(starts[first : last + 1])
        window_of = np.repeat(np.arange(last - first), sizes)
        here = np.sort(window_of * len(values) + ranks[start:end]) - window_of * len(values)
        running = np.cumsum(values[here])
        begins = starts[first:last] - start
        ends = begins + sizes - 1
        before = running[begins] - values[here[begins]]
        share = (running - before[window_of]) / (running[ends] - before)[window_of]
        until = np.append(here[1:], 0)
        until[ends] = len(values)
        crossing = np.clip(np.searchsorted(whole, share), here, until)
        area = share * (2 * ones[crossing] - ones[here] - ones[until])
        area += under[here] + under[until] - 2 * under[crossing]
        areas[first:last] = np.add.reduceat(area, begins) + under[here[begins]]
    return areas


def pairs_repeated(plan: EpochPlan, next_plan: EpochPlan, *, max_samples: int | None = None) -> float:
    """Returns the share of pairs of samples in one batch of `plan` that share a batch of `next_plan` too; 0.0 where no
    batch has two samples: `sum over (b, c) of n(n - 1) / sum over b of m(m - 1)`, where batch `b` of `plan` has `m`
    samples and `n` of them are in batch `c` of `next_plan`.

    Args:
        max_samples: count the pairs of about so many samples instead of all: half of them in the largest batches, which
            have most pairs, the others in every k-th of the rest by size, and in 64 of them at least. The error is
            below 2 % of the figure from 200,000 samples on. None: all batches, exactly.

    Raises:
        TypeError: `max_samples` is no integer.
        ValueError: `max_samples` is below 1, or the plans are not of the same samples.

    Complexity: O(n log n).
    """
    n_all = len(next_plan.indices) + len(next_plan.dropped)
    if len(plan.indices) + len(plan.dropped) != n_all:
        raise ValueError(
            f"plan has {len(plan.indices) + len(plan.dropped):,} samples and next_plan {n_all:,}; pass plans of one "
            "data set"
        )
    # What the next plan left out shares no batch: every such sample gets a number of its own.
    next_batch = -1 - np.arange(n_all)
    next_batch[next_plan.indices] = np.repeat(np.arange(len(next_plan)), np.diff(next_plan.offsets))
    sizes = np.diff(plan.offsets)
    n_pairs = sizes * (sizes - 1)
    if max_samples is None or integer("max_samples", max_samples, 1) >= len(plan.indices):
        n_repeated: float = _n_repeated(plan, None, next_batch)
    else:
        by_size = np.argsort(-sizes, kind="stable")
        n_large = int(np.searchsorted(np.cumsum(sizes[by_size]), max_samples // 2))
        large, rest = by_size[:n_large], by_size[n_large:]
        every = -(-int(sizes[rest].sum()) // max(1, max_samples // 2))
        every = min(every, max(1, len(rest) // _MIN_BATCHES))
        some = rest[every // 2 :: every]
        share = _n_repeated(plan, some, next_batch) / max(1, int(n_pairs[some].sum()))
        n_repeated = _n_repeated(plan, large, next_batch) + share * int(n_pairs[rest].sum())
    return n_repeated / int(n_pairs.sum()) if n_pairs.any() else 0.0


def _n_repeated(plan: EpochPlan, batches: npt.NDArray[np.int64] | None, next_batch: npt.NDArray[np.int64]) -> int:
    """The ordered pairs of samples in one of these batches, or of all, that have one `next_batch`, [n_samples]."""
    sizes = np.diff(plan.offsets) if batches is None else np.diff(plan.offsets)[batches]
    places = np.concatenate([[0], np.cumsum(sizes)])
    spread = int(next_batch.max(initial=0)) - int(next_batch.min(initial=0)) + 1
    n_repeated = 0
    for first, last in _blocks(places):
        of_batch = sizes[first:last]
        batch = np.repeat(np.arange(last - first), of_batch)
        if batches is None:
            samples = plan.indices[places[first] : places[last]]
        else:
            within = np.arange(len(batch)) - np.repeat(places[first:last] - places[first], of_batch)
            samples = plan.indices[plan.offsets[batches[first:last]][batch] + within]
        keys = np.sort(batch * spread + next_batch[samples])
        in_both = np.diff(np.flatnonzero(np.diff(keys, prepend=keys[0] - 1)), append=len(keys))
        n_repeated += int((in_both * (in_both - 1)).sum())
    return n_repeated


def neighbour_correlation(plan: EpochPlan) -> float:
    """Returns Pearson's correlation of the padded lengths of neighbouring batches, in [-1, 1]; a sawtooth loss curve
    shows here first. 0.0 where all are equal."""
    lengths = plan.row_tokens
    if len(lengths) < 3 or np.ptp(lengths[1:]) == 0 or np.ptp(lengths[:-1]) == 0:
        return 0.0
    return float(np.corrcoef(lengths[:-1], lengths[1:])[0, 1])


def longest_run(plan: EpochPlan) -> int:
    """Returns the most consecutive batches from one bucket; 0 for an empty plan."""
    if len(plan) == 0:
        return 0
    changes = np.flatnonzero(np.diff(plan.buckets)) + 1
    return int(np.diff(changes, prepend=0, append=len(plan)).max())


def slowest_over_mean(plan: EpochPlan, world_size: int) -> float:
    """Returns the padded tokens of the slowest rank of a step over the mean of its ranks; mean over all full steps. 1.0
    where there is none.

    Raises:
        TypeError: `world_size` is no integer.
        ValueError: `world_size` is below 1.
    """
    n_steps = len(plan) // integer("world_size", world_size, 1)
    if n_steps == 0:
        return 1.0
    padded_tokens = np.diff(plan.offsets) * plan.row_tokens.astype(np.float64)
    tokens = padded_tokens[: n_steps * world_size].reshape(n_steps, world_size)
    return float((tokens.max(axis=1) / tokens.mean(axis=1)).mean())


def heaviest_over_mean(plan: EpochPlan) -> float:
    """Returns the cost of the batch that costs most over the mean cost of a batch; 1.0 for an empty plan."""
    if len(plan) == 0:
        return 1.0
    costs = plan.costs.astype(np.float64)
    return float(costs.max() / costs.mean())


def predicted_throughput(padding_ratio: float, measured: float, measured_padding_ratio: float) -> float:
    """Returns `measured * measured_padding_ratio / padding_ratio`: real tokens per second of batches with
    `padding_ratio`, from one measured point, on the assumption that a step takes as long as it has padded tokens."""
    return measured * measured_padding_ratio / padding_ratio


def _ranked(lengths: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The distinct lengths, ascending, as floats (a data set may have 2^63 tokens and more), and the place of each
    sample's among them."""
    if int(lengths.max(initial=0)) <= len(lengths) + 65_536:
        is_present = np.bincount(lengths.astype(np.int64, copy=False)) > 0
        return np.flatnonzero(is_present).astype(np.float64), (np.cumsum(is_present) - 1)[lengths]
    distinct, ranks = np.unique(lengths, return_inverse=True)
    return distinct.astype(np.float64), ranks


def _blocks(offsets: npt.NDArray[np.int64], n_samples: int = _BLOCK) -> Iterator[tuple[int, int]]:
    """Ranges of batches or windows with about `n_samples` samples each; at least one batch."""
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + n_samples, side="right")) - 1)
        yield first, last
        first = last
