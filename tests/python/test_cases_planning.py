"""What went wrong with other samplers: the cases of public bug reports that concern planning.

Each test names its case in its id, with the report it retells; the right behaviour is what is asserted.
"""

from __future__ import annotations

import array
import re
from typing import Any

import numpy as np
import pytest
from bucketshuffle import EpochPlan, Planner, pack_epoch
from conftest import uneven_lengths
from inputs import cost_of
from promises import assert_promises_kept

STRATEGIES = ("bucketed", "random", "sorted")


def case(case_id: str, *values: Any) -> Any:
    return pytest.param(*values, id=case_id)


def checked(lengths: Any, seed: int = 0, **options: Any) -> EpochPlan:
    """The plan, every promise checked."""
    plan = pack_epoch(lengths, seed, **options)
    assert_promises_kept(plan, lengths, **options)
    return plan


def batches_of_lengths(plan: EpochPlan, lengths: list[int]) -> list[list[int]]:
    """The batches as sorted lengths, sorted: what is in them, whatever their order."""
    return sorted(sorted(lengths[i] for i in batch) for batch in plan)


# Section 1: coverage, every index exactly once.


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        case("C01-fairseq#5036", [10] * 12, {"max_batch_size": 8}),
        case("C02-fairseq#5351", [20] * 876, {"token_budget": 20 * 109}),
        case("C03-lhotse#610", list(range(1, 1_001)), {"boundaries": 500}),
        case("C04-ms-swift#9907", list(range(1, 11)), {"max_batch_size": 4, "window": 4, "constant_count": True}),
        case(
            "C05-AnimaLoraStudio#102",
            [1] * 41 + [2] * 31 + [3] * 27 + [4] * 20 + [5] * 10,
            {"max_batch_size": 2, "boundaries": (0, 1, 2, 3, 4, 5)},
        ),
        case("C06-pyg#10467-skip", [3, 50, 3], {"token_budget": 10, "overlong": "drop"}),
        case("C06-pyg#10467-zeros", [0, 0, 0], {"empty": "drop"}),
        case("C07-transformers#9574", list(range(1, 101)), {"window": 2, "align_ranks": 2}),
        case("C09-trl#4554-cut", [4, 2, 3, 1], {"token_budget": 3, "overlong": "drop"}),
        case("C09-trl#4554-keep", [2, 4, 5, 1], {"token_budget": 1, "overlong": "keep"}),
    ],
)
def test_every_sample_appears_once(lengths: list[int], options: dict[str, Any], strategy: str) -> None:
    if strategy != "bucketed":
        options = {name: value for name, value in options.items() if name != "boundaries"}
    for seed in range(5):
        checked(lengths, seed, strategy=strategy, **options)


@pytest.mark.parametrize(
    ("sizes", "n_batches"),
    [case("C05-AnimaLoraStudio#102", (41, 31, 27, 20, 10), 66), case("C05-one-each", (1,) * 5, 5)],
)
def test_short_tails_of_buckets_are_kept_and_counted(sizes: tuple[int, ...], n_batches: int) -> None:
    lengths = np.repeat(np.arange(1, 6), sizes)
    planner = Planner(lengths, max_batch_size=2, boundaries=(0, 1, 2, 3, 4, 5))
    assert len(planner.plan(0)) == planner.n_batches() == n_batches


@pytest.mark.parametrize(
    ("lengths", "budget", "dropped", "tokens"),
    [
        case("C06-pyg#10467", [3, 50, 3], 10, [1], 50),
        case("C09-trl#4554", [4, 2, 3, 1], 3, [0], 4),
        case("C09-trl#4554-row-1", [2, 4, 5, 1], 1, [0, 1, 2], 11),
        case("B19-instructlab#52", [900], 512, [0], 900),
    ],
)
def test_what_is_dropped_is_reported_in_samples_and_tokens(
    lengths: list[int], budget: int, dropped: list[int], tokens: int
) -> None:
    plan = checked(lengths, token_budget=budget, overlong="drop")
    assert plan.dropped.tolist() == dropped
    assert (plan.stats.n_dropped, plan.stats.dropped_tokens) == (len(dropped), tokens)
    assert Planner(lengths, token_budget=budget, overlong="drop").dropped.tolist() == dropped


@pytest.mark.parametrize("lengths", [case("C13-xnmt#70", list(range(1, 101)))])
def test_different_lengths_share_a_batch(lengths: list[int]) -> None:
    assert len(checked(lengths, max_batch_size=32)) <= 8  # 100 where only equal lengths may meet, 4 at the least


# Section 2: the budget is never exceeded, over-long samples.


@pytest.mark.parametrize(
    ("lengths", "options", "batches"),
    [
        case("B01-torchdata#788", [100, 10, 10, 10, 100], {"token_budget": 150}, [[10, 10, 10], [100], [100]]),
        case("B02-lhotse#1590", [1, 1, 1, 1, 1, 20], {"token_budget": 50}, [[1] * 5, [20]]),
        case("B06-CTranslate2#939", [1] * 20 + [12], {"token_budget": 32}, [[1] * 20, [12]]),
        case("B07-verl#7553", [7] * 8, {"token_budget": 8}, [[7]] * 8),
        case("B09-speechbrain#1881", [35] * 200, {"token_budget": 6_000, "max_batch_size": 64},
             [[35] * 8, *[[35] * 64] * 3]),
        case("B09-speechbrain#2174", [35] * 400, {"token_budget": 6_000}, [[35] * 58, *[[35] * 171] * 2]),
        case("B17-fairseq#3335", [200] * 64, {"token_budget": 4_400}, [[200] * 20, *[[200] * 22] * 2]),
        case("B22-trl#5075", [13, 11], {"token_budget": 13}, [[11], [13]]),
        case("B25-tf-models#5699", [5, 10, 10], {"token_budget": 10}, [[5], [10], [10]]),
    ],
)  # fmt: skip
def test_the_padded_batch_is_what_the_budget_limits(
    lengths: list[int], options: dict[str, Any], batches: list[list[int]]
) -> None:
    plan = checked(lengths, strategy="sorted", **options)
    assert batches_of_lengths(plan, lengths) == batches


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        case("B01-torchdata#788", [100, 10, 10, 10, 100], {"token_budget": 150}),
        case("B02-lhotse#1590", [1, 1, 1, 1, 1, 20], {"token_budget": 50}),
        case("B03-lhotse#640", [73] * 25 + [114] * 10, {"token_budget": 3_000}),
        case("B04-lhotse#1145", [1 + i * 7 % 30 for i in range(2_000)], {"token_budget": 1_800}),
        case("B06-CTranslate2#939", [1] * 20 + [12], {"token_budget": 32}),
        case("B07-verl#7553", [7] * 8, {"token_budget": 8}),
        case("B08-torchtext#250", np.maximum([5, 5, 5], [5, 90, 5]), {"token_budget": 64, "overlong": "keep"}),
        case("B09-speechbrain#1881", [35] * 400, {"token_budget": 6_000, "max_batch_size": 64}),
        case("B10-lhotse#943", [1 + i % 20 for i in range(3_000)], {"token_budget": 4_000, "per_sample": 50}),
        case("B10-lhotse#943-count", [1 + i % 20 for i in range(3_000)], {"token_budget": 4_000, "max_batch_size": 90}),
        case(
            "B10-lhotse#943-attention",
            [1 + i % 20 for i in range(3_000)],
            {"token_budget": 4_000, "quadratic_length": 5},
        ),
    ],
)
def test_the_budget_holds_in_every_order(lengths: Any, options: dict[str, Any], strategy: str) -> None:
    for seed in range(10):
        checked(lengths, seed, strategy=strategy, window=4, **options)


@pytest.mark.parametrize("budget", [case("B04-lhotse#1145", 1_800)])
def test_batches_of_mixed_lengths_are_nearly_full_and_the_fill_is_reported(budget: int) -> None:
    lengths = [1 + i * 7 % 30 for i in range(20_000)]
    plan = checked(lengths, token_budget=budget)
    assert plan.stats.fill > 0.9


@pytest.mark.parametrize(
    ("lengths", "budget"),
    [
        case("B11-OpenNMT-py#1484", [40, 5], 32),
        case("B12-OpenNMT-py#1819", [40], 32),
        case("B19-instructlab#52", [900], 512),
    ],
)
@pytest.mark.parametrize("overlong", ["drop", "keep"])
def test_an_overlong_sample_never_makes_an_empty_batch(lengths: list[int], budget: int, overlong: str) -> None:
    plan = checked(lengths, token_budget=budget, overlong=overlong, constant_count=True)
    assert (np.diff(plan.offsets) > 0).all()
    assert (plan.buckets == -1).sum() == (overlong == "keep")
    assert len(plan) == len(lengths) - (overlong == "drop")


@pytest.mark.parametrize(
    ("lengths", "budget", "index"),
    [
        case("B11-OpenNMT-py#1484", [40, 5], 32, 0),
        case("B12-OpenNMT-py#1819", [5, 40], 32, 1),
        case("B15-fairseq#2561", [200_000, 6_922_994, 200_000, 6_922_993], 1_280_000, 1),
        case("B16-fairseq#2568", [9_223_372_036_854_775_807, 10], 100_000_000, 0),
    ],
)
def test_the_refusal_names_index_length_budget_and_the_way_out(lengths: list[int], budget: int, index: int) -> None:
    message = re.escape(f"lengths[{index}] = {lengths[index]} exceeds token_budget = {budget}") + '.*overlong="drop"'
    for plan in (pack_epoch, lambda lengths, _, **options: Planner(lengths, **options)):
        with pytest.raises(ValueError, match=message):
            plan(lengths, 0, token_budget=budget)


@pytest.mark.parametrize(
    ("lengths", "options", "closed"),
    [
        case("B17-fairseq#3335", [200] * 64, {"token_budget": 4_400, "max_batch_size": 64}, (2, 0, 1)),
        case("B17-count", [200] * 64, {"token_budget": 4_400, "max_batch_size": 10}, (0, 6, 1)),
    ],
)
def test_the_plan_says_which_limit_closed_how_many_batches(
    lengths: list[int], options: dict[str, Any], closed: tuple[int, int, int]
) -> None:
    stats = checked(lengths, **options).stats
    assert (stats.closed_by_budget, stats.closed_by_max_batch_size, stats.closed_by_bucket_end) == closed


@pytest.mark.parametrize("word", [case("B18-fairseq#1338", "padded tokens")])
def test_the_documentation_says_what_the_budget_counts(word: str) -> None:
    assert pack_epoch.__doc__ is not None
    line = next(line for line in pack_epoch.__doc__.splitlines() if "token_budget" in line)
    assert word in line


@pytest.mark.parametrize(
    ("lengths", "boundaries"),
    [
        case("B27-lhotse#670", [1, 2], 5),
        case("B27-lhotse#898", [1, 2], (0, 1, 2, 3, 4, 5)),
        case("B27-one", [7], 5),
        case("B27-auto", [1, 2], "auto"),
    ],
)
def test_more_buckets_than_samples_work(lengths: list[int], boundaries: Any) -> None:
    assert len(checked(lengths, boundaries=boundaries)) <= len(lengths)


# Section 3: len and counts.


@pytest.mark.parametrize(
    ("n", "max_batch_size", "n_batches"),
    [
        case("L01-lhotse#212", 11_611, 16, 726),
        case("L05-accelerate#4122", 3, 2, 2),
        case("L06-accelerate#121", 100, 16, 7),
    ],
)
def test_len_counts_batches(n: int, max_batch_size: int, n_batches: int) -> None:
    planner = Planner([9] * n, max_batch_size=max_batch_size)
    plan = planner.plan(0)
    assert len(plan) == len(list(plan)) == plan.stats.n_batches == planner.n_batches() == n_batches


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        case("L02-sentence-transformers#3348", [5, 5, 5, 5, 8, 8, 1] * 30, {"max_batch_size": 4, "window": 2}),
        case("L04-pyg#7724", list(range(1, 300)), {"token_budget": 1_000}),
        case("L05-accelerate#4122", [9, 9, 9], {"max_batch_size": 2, "window": 2, "align_ranks": 2}),
        case("L06-accelerate#121", [9] * 100, {"max_batch_size": 16, "window": 4, "align_ranks": 4}),
        case("L07-axolotl#3152", [1 + i * 37 % 900 for i in range(4_000)], {"token_budget": 8_192, "window": 8}),
        case("L11-OpenNMT-py#1887", [1 + i * 37 % 100 for i in range(30_000)], {"token_budget": 12_000}),
        case("L13-lightning", [1 + i * i % 977 for i in range(700)], {"token_budget": 2_000, "window": 3}),
    ],
)
def test_the_count_is_known_before_the_first_epoch_and_stays(lengths: list[int], options: dict[str, Any]) -> None:
    n_batches = Planner(lengths, constant_count=True, **options).n_batches()
    window = options.get("window", 1)
    assert n_batches % window == 0
    for epoch in range(8):
        plan = checked(lengths, 4, epoch=epoch, constant_count=True, **options)
        assert len(plan) == n_batches
        # Ranks of a step take turns: each gets as many batches, whatever their number is.
        assert len({len(range(rank, len(plan), window)) for rank in range(window)}) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        case("L09-axolotl#3848", [9, 9, 9], {"token_budget": 8, "overlong": "drop"}),
        case("T12-transformers", [], {}),
        case("T12-float-list", np.array([], np.float64).astype(int), {}),
        case("C06-all-zero", [0, 0], {"empty": "drop"}),
    ],
)
@pytest.mark.parametrize("constant_count", [False, True])
def test_nothing_to_plan_is_an_empty_plan(
    lengths: Any, options: dict[str, Any], strategy: str, constant_count: bool
) -> None:
    plan = checked(lengths, strategy=strategy, window=4, constant_count=constant_count, **options)
    assert len(plan) == len(list(plan)) == 0
    assert plan.offsets.tolist() == [0]
    stats = plan.stats
    assert (stats.n_batches, stats.real_tokens, stats.padded_tokens, stats.n_shapes) == (0, 0, 0, 0)
    assert np.isfinite([stats.padding_ratio, stats.fill]).all()
    assert Planner(lengths, strategy=strategy, window=4, **options).n_batches() == 0


# Section 8: types, size, memory, speed.

LENGTHS_FIT_BYTE = uneven_lengths(200, longest=100)


@pytest.mark.parametrize(
    "lengths",
    [
        case("T01-fairseq#4400-int32", LENGTHS_FIT_BYTE.astype(np.int32)),
        case("T01-fairseq#2483-uint16", LENGTHS_FIT_BYTE.astype(np.uint16)),
        case("T01-C-long", array.array("l", LENGTHS_FIT_BYTE.tolist())),
        case("T01-C-int", array.array("i", LENGTHS_FIT_BYTE.tolist())),
        case("T10-transformers#19295", LENGTHS_FIT_BYTE.tolist()),
        case("T10-axolotl#563", tuple(LENGTHS_FIT_BYTE.tolist())),
    ],
)
def test_any_integers_are_accepted_as_they_are(lengths: Any) -> None:
    assert checked(lengths, 1).indices.tolist() == pack_epoch(LENGTHS_FIT_BYTE.astype(np.int64), 1).indices.tolist()


@pytest.mark.parametrize(
    "length",
    [case(f"T02-fairseq#3765-{n}", n) for n in (127, 128, 255, 256, 32_767, 32_768, 65_535, 65_536, 65_537)]
    + [case(f"B16-{n}", n) for n in (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**53 + 1, 2**62, 2**63 - 1)],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_length_is_narrowed(length: int, strategy: str) -> None:
    plan = checked([length, 3, length - 1], token_budget=2**63 - 1, strategy=strategy, window=2)
    assert int(plan.padded_lengths.max()) == length
    assert plan.stats.real_tokens == 2 * length + 2


@pytest.mark.parametrize("n", [case("T03-pytorch#50201", 100_000), case("T04-pytorch#5902", 100_001)])
def test_a_plan_is_flat_arrays_of_8_bytes_to_the_sample(n: int) -> None:
    plan = pack_epoch(uneven_lengths(n), 0)
    per_batch = plan.offsets.nbytes + plan.padded_lengths.nbytes + plan.buckets.nbytes
    assert plan.indices.nbytes == 8 * n
    assert per_batch <= 20 * len(plan) + 8
    assert all(
        isinstance(getattr(plan, name), np.ndarray) for name in ("indices", "offsets", "padded_lengths", "buckets")
    )


# Each was quadratic somewhere; a million samples here is minutes in code that is, and no time is asserted.
@pytest.mark.parametrize(
    "lengths",
    [
        case("T06-Soup#694", np.full(1_000_000, 78_643)),
        case("T07-bergson#24", uneven_lengths(1_000_000)),
        case("T07-sorted", np.sort(uneven_lengths(1_000_000))),
        case("T07-reversed", np.sort(uneven_lengths(1_000_000))[::-1]),
        case("T07-equal", np.full(1_000_000, 265)),
        case("T07-all-distinct", np.arange(1, 131_073)),
    ],
)
def test_inputs_that_made_others_quadratic_are_planned(lengths: np.ndarray) -> None:
    plan = pack_epoch(lengths, 0, window=16)
    np.testing.assert_array_equal(np.bincount(plan.indices, minlength=len(lengths)), 1)


# Extremes: nothing that a caller can pass may panic. A panic arrives as an exception that is no ValueError.


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("overlong", ["error", "drop", "keep"])
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        case("one-sample", [1], {"token_budget": 1}),
        case("budget-1", [1, 1, 2, 3], {"token_budget": 1}),
        case("budget-largest", [1, 2**63 - 1], {"token_budget": 2**63 - 1}),
        case("all-overlong", [10, 11, 12], {"token_budget": 9}),
        case("all-equal", [7] * 50, {"token_budget": 20}),
        case("one-overlong", [1, 10**6, 1], {}),
        case("longest-possible", [2**63 - 1], {}),
        case("sum-past-64-bits", [2**63 - 1] * 5, {}),
        case("sum-past-64-bits-admitted", [2**63 - 1] * 5, {"token_budget": 2**63 - 1}),
        case("padding-past-63-bits", [2**63 - 1, 3], {"pad_to_multiple_of": 2**62 + 1}),
        case("per-sample-past-63-bits", [5, 6], {"per_sample": 2**62}),
        case("square-past-64-bits", [2**40, 2**32, 5], {"quadratic_length": 1, "token_budget": 2**62}),
        case("square-past-127-bits", [2**63 - 1, 5], {"quadratic_length": 1, "token_budget": 2**63 - 1}),
        case("quadratic-largest", [2**40, 5], {"quadratic_length": 2**62, "token_budget": 2**62}),
        case("batch-size-largest", [5, 6], {"max_batch_size": 2**62}),
        case("window-larger-than-plan", [5, 6], {"window": 1_000}),
        case("ranks-more-than-batches", [5, 6], {"window": 1_000, "align_ranks": 500}),
    ],
)
def test_extremes_are_planned_or_refused(
    lengths: list[int], options: dict[str, Any], overlong: str, strategy: str
) -> None:
    options = options | {"overlong": overlong, "strategy": strategy}
    cost = cost_of(options)
    if overlong == "error" and any(cost.overlong(length) for length in lengths):
        refusal = r"lengths\[\d+\] = \d+ (costs \d+, which )?exceeds token_budget = \d+"
    elif overlong == "keep" and any(cost.padded(length) >= 2**63 for length in lengths):
        refusal = r"lengths\[0\] = \d+ padded to pad_to_multiple_of = \d+ exceeds the longest padded length = \d+"
    else:
        refusal = ""
    if refusal:
        with pytest.raises(ValueError, match=refusal):
            pack_epoch(lengths, 2**64 - 1, epoch=2**64 - 1, **options)
    else:
        checked(lengths, 2**64 - 1, epoch=2**64 - 1, **options)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1])
def test_lengths_past_63_bits_are_refused_or_overlong(length: int) -> None:
    lengths = np.array([3, length], np.uint64)
    with pytest.raises(ValueError, match=re.escape(f"lengths[1] = {length}")):
        pack_epoch(lengths, 0)


@pytest.mark.parametrize("window", [case("L05-too-few-samples", 8)])
def test_a_constant_count_that_the_samples_cannot_fill_is_refused(window: int) -> None:
    """3 samples cannot be 8 batches that are not empty, and repeating one is not ours to do."""
    with pytest.raises(ValueError, match="window = 8 asks for 8 batches, more than the 3 samples"):
        pack_epoch([1, 2, 3], 0, window=window, constant_count=True)
