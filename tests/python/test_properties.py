"""One test for every sentence that promises something about plans."""

from __future__ import annotations

import array
import hashlib
import multiprocessing
import pickle
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import factorial
from pathlib import Path
from typing import Any

import bucketshuffle
import numpy as np
import oracle
import pytest
from bucketshuffle import DFLASH_BOUNDARIES, EpochPlan, Planner, pack_epoch
from bucketshuffle.metrics import pairs_repeated
from conftest import examples, uneven_lengths
from hypothesis import assume, given
from hypothesis import strategies as st
from inputs import WORDS, problems
from promises import assert_promises_kept

ARRAYS = ("indices", "offsets", "padded_lengths", "costs", "buckets", "boundaries", "dropped")


def digest(plan: EpochPlan) -> str:
    """Changes with any bit of any array."""
    h = hashlib.sha256()
    for name in ARRAYS:
        values = getattr(plan, name)
        h.update(f"{name}{values.dtype}{values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    return h.hexdigest()


def assert_same_plan(a: EpochPlan, b: EpochPlan) -> None:
    for name in ARRAYS:
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype, name
        np.testing.assert_array_equal(x, y, err_msg=name)
    assert a.stats == b.stats
    assert (a.order_version, a.seed, a.epoch) == (b.order_version, b.seed, b.epoch)


def plan_or_refuse(lengths: Sequence[int], seed: int, **options: Any) -> EpochPlan:
    """The plan, or hypothesis looks for another example: refusals are for test_oracle.py and tests of messages."""
    try:
        return pack_epoch(lengths, seed, **options)
    except ValueError:
        assume(False)
        raise


# Coverage, budget, caps, buckets, counts.


@examples(400)
@given(problem=problems(), seed=WORDS)
def test_every_promise_is_kept_under_every_option(problem: tuple[list[int], dict[str, Any]], seed: int) -> None:
    lengths, options = problem
    assert_promises_kept(plan_or_refuse(lengths, seed, **options), lengths, **options)


@pytest.mark.parametrize("strategy", ["bucketed", "random", "sorted"])
def test_every_promise_is_kept_on_real_lengths(real_lengths: np.ndarray, strategy: str) -> None:
    options: dict[str, Any] = {"strategy": strategy, "overlong": "drop", "empty": "drop", "window": 8}
    options["constant_count"] = True
    assert_promises_kept(pack_epoch(real_lengths, 5, **options), real_lengths, **options)


@pytest.mark.parametrize("edge", DFLASH_BOUNDARIES[1:])
def test_a_length_on_an_edge_belongs_to_the_bucket_below(edge: int) -> None:
    lengths = [edge, edge + 1] if edge < DFLASH_BOUNDARIES[-1] else [edge]
    plan = pack_epoch(lengths, 0, boundaries=DFLASH_BOUNDARIES)
    bucket = DFLASH_BOUNDARIES.index(edge) - 1
    assert {int(batch[0]): int(b) for batch, b in zip(plan, plan.buckets, strict=True)} == {
        i: bucket + i for i in range(len(lengths))
    }


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40), seed=WORDS)
def test_only_the_last_batch_of_a_bucket_is_smaller_than_the_budget_allows(lengths: list[int], seed: int) -> None:
    edges, budget = (0, 3, 6, 9), 40
    plan = pack_epoch(lengths, seed, boundaries=edges, token_budget=budget)
    for bucket, top in enumerate(edges[1:]):
        sizes = np.diff(plan.offsets)[plan.buckets == bucket]
        assert (sizes < budget // top).sum() <= 1


# Constant count.


@examples(25)
@given(problem=problems(max_n=40))
def test_constant_count_is_the_same_for_every_seed_and_epoch(problem: tuple[list[int], dict[str, Any]]) -> None:
    lengths, options = problem
    del options["epoch"]
    options["constant_count"] = True
    counts = {len(plan_or_refuse(lengths, seed, epoch=epoch, **options)) for seed in range(4) for epoch in range(20)}
    assert counts == {Planner(lengths, **options).n_batches()}
    assert counts.pop() % options["window"] == 0


def test_constant_count_is_the_same_for_20_epochs_of_real_lengths(real_lengths: np.ndarray) -> None:
    options: dict[str, Any] = {"overlong": "drop", "empty": "drop", "window": 12, "constant_count": True}
    for boundaries in (8, "auto"):
        planner = Planner(real_lengths, boundaries=boundaries, **options)
        assert {len(planner.plan(3, epoch)) for epoch in range(20)} == {planner.n_batches()}


@pytest.mark.parametrize("budget", [8_192, 131_072])
@pytest.mark.parametrize("options", [{}, {"boundaries": 6}, {"strategy": "random"}, {"strategy": "sorted"}])
def test_the_constant_count_is_what_packing_needs(
    real_lengths: np.ndarray, budget: int, options: dict[str, Any]
) -> None:
    """At most 1 % or two batches above the largest count of 20 epochs, before it is rounded up to the window."""
    planner = Planner(real_lengths, token_budget=budget, overlong="drop", empty="drop", **options)
    most = max(len(planner.plan(1, epoch)) for epoch in range(20))
    assert planner.n_packed_batches() <= max(1.01 * most, most + 2)
    assert planner.n_batches() == planner.n_packed_batches()  # window = 1


def test_a_random_baseline_with_a_constant_count_stays_random(real_lengths: np.ndarray) -> None:
    def padding(**options: Any) -> float:
        plan = pack_epoch(real_lengths, 2, strategy="random", overlong="drop", empty="drop", **options)
        return plan.stats.padding_ratio

    assert padding(constant_count=True) == pytest.approx(padding(), rel=0.01)


def test_a_window_that_splits_small_data_into_crumbs_is_stated() -> None:
    lengths = uneven_lengths(1_000)
    plan = pack_epoch(lengths, 0, window=64, constant_count=True)
    n_packed = len(plan) - plan.stats.n_splits
    assert plan.stats.window == 64
    assert (len(plan), n_packed <= 20) == (64, True)
    assert plan.stats.notes == (
        f"constant_count splits {n_packed} batches into 64, a multiple of window = 64: they fill "
        f"{plan.stats.fill:.0%} of token_budget and pad {plan.stats.padding_ratio - 1:.1%}; "
        "lower window (in a sampler: world_size * accumulation_steps) or token_budget",
    )
    plan = pack_epoch(lengths, 0, window=64)
    assert plan.stats.notes == (
        f"window = 64 exceeds the {len(plan)} batches of the epoch, which come in random order; lower window or "
        "token_budget",
    )
    assert pack_epoch(lengths, 0, constant_count=True).stats.notes == ()


def test_splitting_loses_and_repeats_no_sample() -> None:
    lengths = uneven_lengths(3_000)
    plan = pack_epoch(lengths, 1, window=64, constant_count=True)
    assert plan.stats.n_splits > 0
    assert sorted(plan.indices.tolist()) == list(range(len(lengths)))


# Seeds, epochs, threads, processes.


@pytest.mark.parametrize("options", [{}, {"strategy": "random"}, {"window": 4, "align_ranks": 2}])
def test_seed_and_epoch_are_mixed_and_not_added(options: dict[str, Any]) -> None:
    lengths = uneven_lengths(2_000)
    words = [(s, e) for s in (0, 1, 2, 2**64 - 1) for e in (0, 1, 2, 2**64 - 1)]
    plans = {word: digest(pack_epoch(lengths, word[0], epoch=word[1], **options)) for word in words}
    assert plans[0, 1] != plans[1, 0]
    assert len(set(plans.values())) == len(words)


@pytest.mark.parametrize(
    "options",
    [{}, {"padding_target": 0.01}, {"boundaries": DFLASH_BOUNDARIES}, {"boundaries": (0, 8_191)},
     {"strategy": "random"}, {"strategy": "sorted"}],
)  # fmt: skip
@pytest.mark.parametrize("n", [1_000, 2_500_000])  # below and above the size from which threads are used
def test_the_plan_does_not_depend_on_threads(n: int, options: dict[str, Any]) -> None:
    lengths = uneven_lengths(n)
    plans = [
        digest(pack_epoch(lengths, 11, window=16, constant_count=True, threads=threads, **options))
        for threads in (1, 2, 3, 8, None)
    ]
    assert len(set(plans)) == 1


def _digest_in_child(queue: Any, n: int) -> None:
    queue.put(digest(pack_epoch(uneven_lengths(n), 23, epoch=4, window=8, threads=2)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_another_process_makes_the_same_plan(method: str) -> None:
    n = 1_200_000  # enough for the planner to use threads before the fork and after it
    here = digest(pack_epoch(uneven_lengths(n), 23, epoch=4, window=8, threads=2))
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=_digest_in_child, args=(queue, n))
    child.start()
    assert queue.get() == here
    child.join()
    assert child.exitcode == 0


def test_planner_plans_bit_for_bit_what_pack_epoch_plans() -> None:
    lengths = uneven_lengths(5_000)
    planner = Planner(lengths, window=8, constant_count=True)
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0)):  # the first once more: planning leaves no state behind
        assert_same_plan(
            planner.plan(seed, epoch), pack_epoch(lengths, seed, epoch=epoch, window=8, constant_count=True)
        )


@examples(200)
@given(problem=problems(), seed=WORDS)
def test_planner_equals_pack_epoch_under_every_option(problem: tuple[list[int], dict[str, Any]], seed: int) -> None:
    lengths, options = problem
    plan = plan_or_refuse(lengths, seed, **options)
    epoch = options.pop("epoch")
    planner = Planner(lengths, **options)
    assert_same_plan(planner.plan(seed, epoch), plan)
    assert planner.boundaries.tolist() == plan.boundaries.tolist()
    assert planner.dropped.tolist() == plan.dropped.tolist()
    assert planner.n_batches() % options["window"] == 0
    if options["constant_count"]:
        assert planner.n_batches() == len(plan)
    assert_same_plan(pickle.loads(pickle.dumps(planner)).plan(seed, epoch), plan)


def test_planner_keeps_its_own_lengths() -> None:
    lengths = uneven_lengths(1_000)
    planner = Planner(lengths)
    before = planner.plan(0)
    lengths[:] = 1
    assert_same_plan(planner.plan(0), before)


# Boundaries from the data.

HISTOGRAMS = st.lists(st.sampled_from([1, 2, 3, 4, 7, 8, 9, 15, 16, 30]), min_size=1, max_size=40)


def assert_boundaries_describe(boundaries: np.ndarray, lengths: list[int]) -> None:
    assert boundaries.dtype == np.int64
    assert boundaries[0] == 0
    assert boundaries[-1] == max(lengths)
    assert (np.diff(boundaries) > 0).all()


@examples(300)
@given(lengths=HISTOGRAMS, k=st.integers(1, 8), multiple=st.sampled_from([1, 2, 4, 8]))
def test_k_boundaries_pad_as_little_as_the_best_of_all_partitions(lengths: list[int], k: int, multiple: int) -> None:
    cost = oracle.Cost(pad_to_multiple_of=multiple)
    boundaries = Planner(lengths, boundaries=k, pad_to_multiple_of=multiple).boundaries
    assert_boundaries_describe(boundaries, lengths)
    k = min(k, len({cost.padded(length) for length in lengths}))
    assert len(boundaries) - 1 == k
    assert oracle.partition_total(lengths, boundaries.tolist(), cost) == oracle.optimal_total(lengths, k, cost)


@examples(50)
@given(lengths=HISTOGRAMS)
def test_both_oracles_of_the_boundaries_agree(lengths: list[int]) -> None:
    """The recursion that checks long histograms, against the enumeration that checks short ones."""
    n_distinct = len(set(lengths))
    cost = oracle.Cost(token_budget=60)
    by_recursion = oracle.optimal_totals(lengths, n_distinct, cost)
    assert by_recursion == [oracle.optimal_total(lengths, k, cost) for k in range(1, n_distinct + 1)]


@pytest.mark.parametrize("real_set", ["gsm8k_train_gpt2", "tau_airline_traj_gpt2", "flip_gb1_residues"])
@pytest.mark.parametrize("budget", [2_048, 16_384])
def test_boundaries_of_real_lengths_are_optimal(real_lengths: np.ndarray, budget: int) -> None:
    lengths, cost = real_lengths.tolist(), oracle.Cost(token_budget=budget)
    admitted = [length for length in lengths if not cost.overlong(length)]
    if not admitted:
        pytest.skip("every sample is over-long")
    totals = oracle.optimal_totals(admitted, min(6, len(set(admitted))), cost)
    for k in range(1, len(totals) + 1):
        edges = Planner(lengths, boundaries=k, token_budget=budget, overlong="drop").boundaries.tolist()
        assert (len(edges) - 1, oracle.partition_total(admitted, edges, cost)) == (k, totals[k - 1])


def test_a_spike_gets_a_bucket_of_its_own() -> None:
    lengths = np.concatenate([uneven_lengths(50_000, longest=4_000), np.full(5_000, 6_000)])
    edges = Planner(lengths, boundaries=12).boundaries.tolist()
    assert edges[-1] == 6_000
    assert edges[-2] == int(lengths[lengths < 6_000].max())


# Few padded lengths.


@examples(200)
@given(lengths=HISTOGRAMS, k=st.integers(1, 6), multiple=st.sampled_from([1, 4]), seed=WORDS)
def test_k_padded_lengths_are_the_ones_that_pad_least(lengths: list[int], k: int, multiple: int, seed: int) -> None:
    planner = Planner(lengths, padded_lengths=k, pad_to_multiple_of=multiple, token_budget=200)
    assert planner.padded_lengths is not None
    chosen = planner.padded_lengths.tolist()
    cost = oracle.Cost(pad_to_multiple_of=multiple)
    assert len(chosen) == min(k, len({cost.padded(length) for length in lengths}))
    total = sum(min(padded for padded in chosen if padded >= length) for length in lengths)
    assert total == oracle.optimal_total(lengths, len(chosen), cost)
    assert set(planner.plan(seed).padded_lengths.tolist()) <= set(chosen)


def test_padded_lengths_of_the_users_own_count_against_the_budget() -> None:
    lengths = [5, 9, 17, 3, 40]
    planner = Planner(lengths, padded_lengths=[8, 32], token_budget=64, overlong="drop")
    assert (planner.padded_lengths.tolist(), planner.dropped.tolist()) == ([8, 32], [4])  # type: ignore[union-attr]
    for seed in range(20):
        plan = planner.plan(seed)
        for batch, padded in zip(plan, plan.padded_lengths.tolist(), strict=True):
            assert padded == (8 if max(lengths[i] for i in batch) <= 8 else 32)
            assert len(batch) * padded <= 64
    assert Planner(lengths).padded_lengths is None


# Soft buckets.

BUDGETS = pytest.mark.parametrize("budget", [8_192, 32_768, 131_072])


def plans(lengths: np.ndarray, n_epochs: int = 2, **options: Any) -> list[EpochPlan]:
    planner = Planner(lengths, overlong="drop", empty="drop", **options)
    return [planner.plan(0, epoch) for epoch in range(n_epochs)]


def padded_tokens(lengths: np.ndarray, n_epochs: int = 2, **options: Any) -> float:
    return float(np.mean([plan.stats.padded_tokens for plan in plans(lengths, n_epochs, **options)]))


@BUDGETS
def test_soft_buckets_pad_little_more_than_sorted_order(real_lengths: np.ndarray, budget: int) -> None:
    """At most 20 % on the smallest sets, never more than random order, nor 2 % more than the write-up's buckets."""
    edges = [*DFLASH_BOUNDARIES, max(int(real_lengths.max()), 8_193)]
    soft = padded_tokens(real_lengths, token_budget=budget)
    assert soft <= 1.2 * padded_tokens(real_lengths, token_budget=budget, strategy="sorted")
    assert soft <= padded_tokens(real_lengths, token_budget=budget, strategy="random")
    assert soft <= 1.02 * padded_tokens(real_lengths, token_budget=budget, boundaries=edges)


@BUDGETS
def test_a_larger_repeat_weight_pads_more_and_repeats_fewer_pairs(real_lengths: np.ndarray, budget: int) -> None:
    if np.ptp(real_lengths) == 0:
        pytest.skip("equal lengths leave nothing to weigh")
    by_weight = [plans(real_lengths, 3, token_budget=budget, repeat_weight=weight) for weight in (0.02, 0.5, 12.5)]
    padded = [sum(plan.stats.padded_tokens for plan in of) for of in by_weight]
    repeated = [sum(pairs_repeated(*pair) for pair in pairwise(of)) for of in by_weight]
    assert padded == sorted(padded)
    assert repeated == sorted(repeated, reverse=True)


@BUDGETS
def test_a_repeat_weight_of_zero_pads_like_sorted_order(real_lengths: np.ndarray, budget: int) -> None:
    ours = padded_tokens(real_lengths, token_budget=budget, repeat_weight=0.0)
    least = padded_tokens(real_lengths, token_budget=budget, strategy="sorted")
    # Above 8,192 tokens neighbouring lengths share a cell.
    assert least <= ours <= (1.0005 if real_lengths.max() > 8_192 else 1.0) * least


@BUDGETS
@pytest.mark.parametrize("target", [0.01, 0.05])
def test_the_padding_target_is_met_over_sorted_order(real_lengths: np.ndarray, budget: int, target: float) -> None:
    least = padded_tokens(real_lengths, 1, token_budget=budget, strategy="sorted")
    most = padded_tokens(real_lengths, token_budget=budget, strategy="random") / least - 1
    if most < 2 * target or len(plans(real_lengths, 1, token_budget=budget)[0]) < 100:
        pytest.skip("random order does not pad so much, or an epoch is too small to hit it")
    over = padded_tokens(real_lengths, 8, token_budget=budget, padding_target=target) / least - 1
    assert over == pytest.approx(target, rel=0.2)


def test_a_soft_plan_has_one_short_batch_and_not_one_a_bucket() -> None:
    stats = pack_epoch(uneven_lengths(50_000), 0).stats
    assert stats.closed_by_bucket_end == 1
    assert stats.closed_by_budget == stats.n_batches - 1


def test_samples_of_one_length_are_mixed_whatever_the_weight() -> None:
    """Equal lengths cost nothing to mix: of 1,000 samples in batches of 10, 0.9 % of pairs meet again by chance."""
    first, second = (Planner([7] * 1_000, token_budget=70, repeat_weight=0.0).plan(0, epoch) for epoch in (0, 1))
    assert pairs_repeated(first, second) < 0.03


# Order.


def distinct_cost_plan(n: int, seed: int, **options: Any) -> np.ndarray:
    """Rank in cost of each batch of a plan with n batches of one sample and n different costs: [n], a permutation."""
    lengths = np.random.Generator(np.random.PCG64(n)).permutation(n) + 1
    return lengths[pack_epoch(lengths, seed, boundaries=(0, n), max_batch_size=1, **options).indices] - 1


def runs(n: int, k: int) -> list[range]:
    """`range(n)` cut into k runs of about equal length."""
    return [range(i * n // k, (i + 1) * n // k) for i in range(k)]


@pytest.mark.parametrize("window", [2, 3, 8, 64])
@pytest.mark.parametrize("n", [5, 64, 100, 1_000, 1_003])
def test_every_window_takes_one_batch_of_every_stratum(n: int, window: int) -> None:
    ranks = distinct_cost_plan(n, 9, window=window).tolist()
    n_over = n % window
    last_window, full = sorted(ranks[n - n_over :]), ranks[: n - n_over]
    # The last window too draws from the whole range: one batch of each of n_over runs.
    assert all(rank in run for rank, run in zip(last_window, runs(n, max(n_over, 1)), strict=False))
    place = {rank: i for i, rank in enumerate(sorted(full))}
    strata = runs(len(full), window)
    for start in range(0, len(full), window):
        of_window = sorted(place[rank] for rank in full[start : start + window])
        assert all(i in stratum for i, stratum in zip(of_window, strata, strict=True))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("n", [96, 101])
def test_the_batches_of_a_step_are_neighbours_in_cost(n: int, ranks: int, accumulation: int) -> None:
    costs = distinct_cost_plan(n, 2, window=ranks * accumulation, align_ranks=ranks).tolist()
    n_over = n % ranks
    last_step, full = sorted(costs[n - n_over :]), costs[: n - n_over]
    assert all(cost in run for cost, run in zip(last_step, runs(n, max(n_over, 1)), strict=False))
    place = {cost: i for i, cost in enumerate(sorted(full))}
    steps = [sorted(place[cost] for cost in full[start : start + ranks]) for start in range(0, len(full), ranks)]
    assert all(step == list(range(step[0], step[0] + ranks)) and step[0] % ranks == 0 for step in steps)
    # Accumulation steps cover the range: one step of every stratum in each full window.
    numbers = [step[0] // ranks for step in steps]
    n_steps_over = len(numbers) % accumulation
    left = {number: i for i, number in enumerate(sorted(numbers[: len(numbers) - n_steps_over]))}
    strata = runs(len(left), accumulation)
    for start in range(0, len(left), accumulation):
        of_window = sorted(left[number] for number in numbers[start : start + accumulation])
        assert all(i in stratum for i, stratum in zip(of_window, strata, strict=True))


def test_any_batch_may_come_last() -> None:
    """9 batches in windows of 4 leave one over: 9 outcomes, drawn evenly."""
    planner = Planner(range(1, 10), strategy="sorted", max_batch_size=1, window=4)
    assert_uniform(Counter(int(planner.plan(seed).indices[-1]) for seed in range(2_000)), 9)


def test_ranks_take_turns_at_random_within_a_step() -> None:
    """Else one rank would get the dearest batch of every step. Binomial(500, 1/2) is in 150..350 with P > 1 - 1e-18."""
    costs = distinct_cost_plan(1_000, 0, window=2, align_ranks=2)
    assert 150 <= (costs[0::2] > costs[1::2]).sum() <= 350


# Uniformity. Each statistic is chi-square if all outcomes are equally likely, and the bound is its quantile at 1 -
# 1e-6: with other seeds a test here would fail once in a million runs. The seeds are fixed, so every run has the same
# outcome.

FALSE_ALARM_Z = 4.753424  # standard normal quantile at 1 - 1e-6


def chi_square_bound(df: int) -> float:
    """Chi-square quantile at 1 - 1e-6 (Wilson and Hilferty 1931; within 1 % for df >= 5)."""
    return df * (1 - 2 / (9 * df) + FALSE_ALARM_Z * (2 / (9 * df)) ** 0.5) ** 3


def assert_uniform(counts: Counter[Any], n_outcomes: int) -> None:
    expected = sum(counts.values()) / n_outcomes
    assert expected >= 5, "too few draws for the chi-square approximation"
    seen = sum((count - expected) ** 2 / expected for count in counts.values())
    statistic = seen + expected * (n_outcomes - len(counts))
    assert statistic < chi_square_bound(n_outcomes - 1)


def in_one_batch(n: int, seed: int, epoch: int = 0) -> tuple[int, ...]:
    return tuple(pack_epoch([1] * n, seed, epoch=epoch, boundaries=(0, 1)).indices.tolist())


# Up to 6 samples take one draw from a word, 7 and 8 take six draws from the first word.
@pytest.mark.parametrize(("n", "n_draws"), [(2, 2_000), (3, 2_000), (5, 6_000), (7, 40_320), (8, 201_600)])
def test_all_permutations_of_a_bucket_are_equally_likely(n: int, n_draws: int) -> None:
    planner = Planner([1] * n, boundaries=(0, 1))
    assert_uniform(Counter(planner.plan(seed).indices.tobytes() for seed in range(n_draws)), factorial(n))


@pytest.mark.parametrize("words", ["seeds", "epochs", "seed and epoch"])
def test_neighbouring_seeds_and_epochs_are_independent(words: str) -> None:
    """The pair of permutations of 3 samples under two neighbouring words: 36 outcomes."""
    other = {"seeds": (1, 0), "epochs": (0, 1), "seed and epoch": (1, -1)}[words]
    pairs = [(in_one_batch(3, seed, 1), in_one_batch(3, seed + other[0], 1 + other[1])) for seed in range(0, 6_000, 2)]
    assert_uniform(Counter(pairs), 36)


def test_buckets_are_shuffled_independently_of_each_other() -> None:
    """3 samples in each of two buckets: 36 pairs of permutations."""
    planner = Planner([1, 2, 1, 2, 1, 2], boundaries=(0, 1, 2))
    pairs = []
    for seed in range(3_000):
        plan = planner.plan(seed)
        of_bucket = {int(b): tuple(batch.tolist()) for batch, b in zip(plan, plan.buckets, strict=True)}
        pairs.append((of_bucket[0], of_bucket[1]))
    assert_uniform(Counter(pairs), 36)


@pytest.mark.parametrize("n", [600, 3_000, 40_000, 700_000])
def test_every_sample_may_land_anywhere(n: int) -> None:
    """Samples and positions in 20 groups each, and who lands where over n_seeds plans: a 20 x 20 table with fixed
    margins, so chi-square with 19 * 19 degrees of freedom (the factor (n - 1) / n is the finite population's)."""
    n_seeds = max(3, 60_000 // n)
    planner = Planner(np.ones(n, np.uint8), boundaries=(0, 1), token_budget=n)
    group = np.arange(n) * 20 // n
    table = np.zeros((20, 20))
    for seed in range(n_seeds):
        np.add.at(table, (group[planner.plan(seed).indices], group), 1)
    expected = n_seeds * np.outer(np.bincount(group), np.bincount(group)) / n
    assert ((table - expected) ** 2 / expected).sum() * (n - 1) / n < chi_square_bound(19 * 19)


@pytest.mark.parametrize("window", [1, 5])
def test_all_orders_of_the_batches_are_equally_likely(window: int) -> None:
    """Strategy "sorted" packs without a draw, which leaves the order of 5 batches: 120 outcomes."""
    planner = Planner([1, 2, 3, 4, 5], strategy="sorted", max_batch_size=1, window=window)
    assert_uniform(Counter(planner.plan(seed).indices.tobytes() for seed in range(6_000)), factorial(5))


def test_every_batch_of_a_stratum_may_come_in_every_window() -> None:
    """4 strata of 6 batches each: the cheapest stratum comes in 6 windows in 720 orders, all equally likely."""
    planner = Planner(range(1, 25), strategy="sorted", max_batch_size=1, window=4)
    orders = Counter(
        tuple(i for i in planner.plan(seed).indices.tolist() if i < 6) for seed in range(14_400)
    )  # fmt: skip
    assert_uniform(orders, 720)


def test_any_batch_is_as_likely_to_be_split() -> None:
    """8 batches of two samples and one split asked for (window 9): 8 outcomes."""
    planner = Planner([1] * 16, max_batch_size=2, window=9, constant_count=True, strategy="sorted")
    split = Counter()
    for seed in range(2_000):
        plan = planner.plan(seed)
        singles = sorted(int(batch[0]) for batch in plan if len(batch) == 1)
        assert len(singles) == 2
        split[singles[0]] += 1
    assert_uniform(split, 8)


# Freshness.


@pytest.mark.parametrize("real_set", ["azure_conv_context", "t0_50k_gpt2", "vidur_arxiv_total"])
def test_two_epochs_share_almost_no_batch(real_lengths: np.ndarray) -> None:
    planner = Planner(real_lengths)
    first, second = ({frozenset(batch.tolist()) for batch in planner.plan(0, epoch)} for epoch in (0, 1))
    assert len(first & second) <= 0.01 * len(first)


def test_pairs_repeat_about_once_in_the_number_of_batches_of_their_bucket() -> None:
    """One bucket, 20,000 samples, 50 batches of 400: of 3,990,000 pairs 1 in 50.1 meets again, 79,600 of them with a
    standard deviation near 280 (Poisson). +- 2 % is 5.6 of these: a false alarm in 1e7 draws, and the seed is fixed."""
    planner = Planner([1] * 20_000, token_budget=400, boundaries=(0, 1))
    assert pairs_repeated(planner.plan(0, 0), planner.plan(0, 1)) == pytest.approx(399 / 19_999, rel=0.02)


# Manners.


def test_random_state_of_the_caller_is_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (the global state is what is tested)
    before = random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002
    pack_epoch(uneven_lengths(1_000), 5, window=4, constant_count=True)
    assert (random.getstate(), pickle.dumps(np.random.get_state())) == before  # noqa: NPY002


def test_the_interpreter_lock_is_released_while_planning() -> None:
    """Another Python thread notes the time over and over; some of its notes lie in the middle half of a plan.

    With the lock held none could. A busy machine may starve that thread, so that one of several plans is enough.
    """
    planner = Planner(np.tile(uneven_lengths(1_000_000), 6), boundaries=DFLASH_BOUNDARIES)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0)

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        for _ in range(20):
            start = time.perf_counter()
            planner.plan(0)
            quarter = (time.perf_counter() - start) / 4
            if any(start + quarter < t < start + 3 * quarter for t in ticks):
                break
        else:
            pytest.fail("the other thread stood still during 20 plans")
    finally:
        done.set()
        ticker.join()


LENGTHS_UP_TO_127 = uneven_lengths(300, longest=127)


def _torch(lengths: np.ndarray) -> Any:
    return pytest.importorskip("torch").tensor(lengths)


def _arrow(lengths: np.ndarray) -> Any:
    return pytest.importorskip("pyarrow").array(lengths)


def _arrow_chunked(lengths: np.ndarray) -> Any:
    return pytest.importorskip("pyarrow").chunked_array([lengths[:100], lengths[100:100], lengths[100:]])


def _pandas(lengths: np.ndarray) -> Any:
    return pytest.importorskip("pandas").Series(lengths, index=np.arange(len(lengths))[::-1])


def _dataset_column(lengths: np.ndarray) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict({"length": lengths.tolist()})["length"]


INPUTS: dict[str, Callable[[np.ndarray], Any]] = {
    **{f"numpy {t}": (lambda x, t=t: x.astype(t)) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")},
    **{f"numpy big-endian {t}": (lambda x, t=t: x.astype(t)) for t in (">i2", ">i4", ">i8", ">u2", ">u4", ">u8")},
    "numpy strided": lambda x: np.repeat(x, 3)[::3],
    "numpy reversed": lambda x: x[::-1].copy()[::-1],
    "numpy column": lambda x: np.stack([x, x + 1], axis=1)[:, 0],
    "numpy read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype),
    "numpy unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype),
    "list": lambda x: x.tolist(),
    "list of numpy scalars": list,
    "tuple": lambda x: tuple(x.tolist()),
    "range": lambda _: range(1, 128),
    **{f"array.array {code}": (lambda x, code=code: array.array(code, x.tolist())) for code in "bBhHiIlLqQ"},
    "memoryview": lambda x: memoryview(x),
    "torch": _torch,
    "torch int64 strided": lambda x: _torch(np.repeat(x.astype(np.int64), 2))[::2],
    "Arrow": _arrow,
    "Arrow chunked": _arrow_chunked,
    "pandas": _pandas,
    "datasets column": _dataset_column,
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_integer_input_gives_the_same_plan(kind: str) -> None:
    lengths = np.arange(1, 128) if kind == "range" else LENGTHS_UP_TO_127
    given_lengths = INPUTS[kind](lengths)
    options = {"token_budget": 1_000, "boundaries": 4, "window": 2}
    expected = pack_epoch(lengths.astype(np.int64), 8, **options)
    assert_same_plan(pack_epoch(given_lengths, 8, **options), expected)
    assert_same_plan(Planner(given_lengths, **options).plan(8), expected)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_a_plan_are_read_only(name: str) -> None:
    plan = pack_epoch([5, 6, 7, 900], 0, token_budget=20, overlong="drop")
    values = getattr(plan, name)
    assert len(values) > 0
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1
    with pytest.raises(AttributeError):
        setattr(plan, name, values)


def test_batches_are_views_of_the_plan() -> None:
    plan = pack_epoch(uneven_lengths(1_000), 0)
    assert len(plan) > 3
    for b, batch in enumerate(plan):
        np.testing.assert_array_equal(batch, plan.indices[plan.offsets[b] : plan.offsets[b + 1]])
        np.testing.assert_array_equal(batch, plan[b])
        assert np.shares_memory(batch, plan.indices)
        assert not batch.flags.writeable
    np.testing.assert_array_equal(plan[-1], plan[len(plan) - 1])
    for b in (len(plan), -len(plan) - 1):
        with pytest.raises(IndexError):
            plan[b]


@pytest.mark.parametrize("name", ["indices", "offsets", "padded_lengths", "boundaries", "dropped", "buckets"])
@pytest.mark.parametrize("lengths", [[], [5], [5, 900]])
def test_dtypes_do_not_depend_on_the_input(name: str, lengths: list[int]) -> None:
    plan = pack_epoch(np.array(lengths, np.uint16), 0, token_budget=20, overlong="drop")
    assert getattr(plan, name).dtype == (np.int32 if name == "buckets" else np.int64)


def test_a_plan_pickles() -> None:
    plan = pack_epoch([*uneven_lengths(500).tolist(), 10**9], 2**64 - 1, epoch=7, overlong="drop")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(plan, protocol))
        assert_same_plan(copy, plan)
        assert not copy.indices.flags.writeable


def test_a_plan_survives_saving_and_loading(tmp_path: Path) -> None:
    plan = pack_epoch([*uneven_lengths(500).tolist(), 10**9], 2**64 - 1, epoch=7, overlong="keep", window=4)
    plan.save(tmp_path / "plan.npz")
    assert_same_plan(EpochPlan.load(tmp_path / "plan.npz"), plan)


def test_a_saved_plan_needs_no_pickle_to_load(tmp_path: Path) -> None:
    pack_epoch([1, 2], 0).save(tmp_path / "plan.npz")
    with np.load(tmp_path / "plan.npz", allow_pickle=False) as archive:
        assert all(archive[name].dtype != object for name in archive.files)


def test_plans_made_at_the_same_time_by_several_threads_are_right() -> None:
    planner = Planner(uneven_lengths(200_000), boundaries=DFLASH_BOUNDARIES)
    expected = [digest(planner.plan(seed)) for seed in range(8)]
    got: list[str] = [""] * 8

    def plan(seed: int) -> None:
        got[seed] = digest(planner.plan(seed))

    threads = [threading.Thread(target=plan, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


def test_importing_the_package_imports_numpy_and_nothing_heavier() -> None:
    heavy = {"torch", "pandas", "pyarrow", "scipy", "matplotlib", "numba", "transformers", "datasets", "tqdm"}
    heavy.add("typing_extensions")  # For the type checker alone.
    code = "import sys, bucketshuffle, bucketshuffle.lengths; print(*{name.partition('.')[0] for name in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", *heavy} & set(out.stdout.split()) == {"numpy"}
    assert bucketshuffle.__version__


def test_the_write_ups_boundaries_have_a_name() -> None:
    assert bucketshuffle.DFLASH_BOUNDARIES == (0, 512, 1024, 2048, 3072, 4096, 8192)


# The figures that the library is for, on the stand-in data set.


@pytest.fixture(scope="module")
def dflash902k() -> np.ndarray:
    return pytest.importorskip("bucketshuffle.data").dflash902k()


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ({}, 1.0, 1.0085),
        ({"boundaries": DFLASH_BOUNDARIES}, 1.274, 1.280),
        ({"strategy": "random"}, 2.65, 2.69),
        ({"strategy": "sorted"}, 1.0, 1.0005),
    ],
)
def test_padding_on_dflash902k_is_what_the_readme_says(
    dflash902k: np.ndarray, options: dict[str, Any], low: float, high: float
) -> None:
    plan = pack_epoch(dflash902k, 1, **options)
    assert low <= plan.stats.padding_ratio <= high
    assert np.bincount(plan.indices, minlength=len(dflash902k)).tolist() == [1] * len(dflash902k)


def window_mix(plan: EpochPlan, lengths: np.ndarray, window: int) -> float:
    """Mean over windows of the Wasserstein-1 distance from the data set's token-weighted lengths, over the longest."""
    longest = int(lengths.max())
    whole = np.cumsum(np.bincount(lengths, weights=lengths.astype(float), minlength=longest + 1))
    whole /= whole[-1]
    distances = []
    for start in range(0, len(plan) - window + 1, window):
        inside = lengths[plan.indices[plan.offsets[start] : plan.offsets[start + window]]]
        here = np.cumsum(np.bincount(inside, weights=inside.astype(float), minlength=longest + 1))
        distances.append(np.abs(here / here[-1] - whole).sum() / longest)
    return float(np.mean(distances))


def test_windows_of_64_mix_at_least_twice_as_well_as_a_random_shuffle(dflash902k: np.ndarray) -> None:
    stratified = window_mix(pack_epoch(dflash902k, 1, window=64), dflash902k, 64)
    shuffled = window_mix(pack_epoch(dflash902k, 1, strategy="random"), dflash902k, 64)
    assert stratified <= shuffled / 2


def test_pairs_repeated_on_dflash902k_are_what_the_readme_says(dflash902k: np.ndarray) -> None:
    first, second = plans(dflash902k)
    assert pairs_repeated(first, second) <= 0.010
    assert pairs_repeated(*plans(dflash902k, padding_target=0.01)) <= 0.0075
