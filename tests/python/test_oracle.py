"""`pack_epoch` equals the oracle: the same samples in the same batches in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
import pytest
from bucketshuffle import Planner, pack_epoch
from conftest import examples, uneven_lengths
from hypothesis import event, given
from hypothesis import strategies as st
from inputs import COST_OPTIONS, WORDS, cost_of, problems
from promises import assert_is_plan_of_oracle, assert_stats_true


def assert_equals_oracle(lengths: Sequence[int], seed: int, **options: Any) -> None:
    """Both plan alike, or both refuse."""
    try:
        plan = pack_epoch(lengths, seed, **options)
    except ValueError:
        with pytest.raises(ValueError, match=r"lengths|samples"):
            oracle_plan(lengths, seed, edges_of_refused(lengths, **options), **options)
        return
    expected = oracle_plan(lengths, seed, plan.boundaries.tolist(), **options)
    assert_is_plan_of_oracle(plan, expected)
    assert_stats_true(plan, lengths, cost_of(options, lengths))


def edges_of_refused(lengths: Sequence[int], **options: Any) -> list[int]:
    """The edges that a plan would have had, were it not for its count."""
    if isinstance(options.get("boundaries"), list):
        return options["boundaries"]
    try:
        return pack_epoch(lengths, 0, **{**options, "constant_count": False}).boundaries.tolist()
    except ValueError:
        return [0, max(lengths)]


def oracle_plan(lengths: Sequence[int], seed: int, edges: list[int], **options: Any) -> oracle.Plan:
    cost = cost_of(options, lengths)
    options = {name: value for name, value in options.items() if name not in (*COST_OPTIONS, "threads")}
    if options.get("boundaries", "auto") != "auto":
        options["boundaries"] = edges
    return oracle.pack_epoch(lengths, seed, cost=cost, **options)


@examples(600)
@given(problem=problems(), seed=WORDS)
def test_every_option_gives_the_plan_of_the_oracle(problem: tuple[list[int], dict[str, Any]], seed: int) -> None:
    lengths, options = problem
    event(options["strategy"])
    assert_equals_oracle(lengths, seed, **options)


@examples(40)
@given(
    n=st.integers(0, 3_000), longest=st.sampled_from([1, 50, 4_000]), budget=st.integers(1, 40_000), seed=WORDS,
    window=st.sampled_from([1, 4, 16]), constant_count=st.booleans(),
)  # fmt: skip
def test_large_inputs_give_the_plan_of_the_oracle(
    n: int, longest: int, budget: int, seed: int, window: int, constant_count: bool
) -> None:
    lengths = uneven_lengths(n, seed % 1_000, longest).tolist()
    options = {"boundaries": 5, "token_budget": budget, "overlong": "drop", "window": window}
    assert_equals_oracle(lengths, seed, constant_count=constant_count, **options)


# Both sides of every place where the number of draws from one word changes, and the ends of the loop after a switch.
# Above 2^20 items are divided into parts first.
SIZES = [0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 511, 512, 513, 518, 2_047, 2_048, 2_049, 16_383, 16_384, 16_385]


@pytest.mark.parametrize("n", [*SIZES, 2**19 + 1, 2**20, 2**20 + 1, 2**20 + 13])
def test_one_bucket_of_any_size_is_shuffled_like_the_oracle(n: int) -> None:
    items = list(range(n))
    oracle.shuffle(items, oracle.stream(3, 1, oracle.SHUFFLE, 0))
    plan = pack_epoch(np.ones(n, np.uint8), 3, epoch=1, token_budget=max(n, 1), boundaries=(0, 1))
    assert plan.indices.tolist() == items


# Records of (index, length) that just fit 32 bits and just do not; lengths of 8 to 63 bits, indices of 8 to 17.
@pytest.mark.parametrize("n", [255, 256, 257, 65_535, 65_536, 65_537])
@pytest.mark.parametrize(
    "longest", [2**8, 2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**24, 2**24 + 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**62]
)
def test_every_width_of_length_and_index_gives_the_plan_of_the_oracle(n: int, longest: int) -> None:
    if n > 1_000 and longest not in (2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**32, 2**62):
        n = n % 1_000 + 1_000  # the widths of the length alone are at stake: a small set will do
    lengths = uneven_lengths(n, longest % 97, 2**31 - 1).astype(np.int64) % longest + 1
    lengths[n // 2] = longest
    edges = (0, longest // 9, longest // 5, longest - 1, longest)
    assert_equals_oracle(lengths.tolist(), 7, boundaries=edges, token_budget=longest + longest // 3, window=2)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "random"},
        {"strategy": "sorted"},
        {"window": 16, "align_ranks": 4, "constant_count": True, "pad_to_multiple_of": 8},
        {"boundaries": 6, "window": 16, "align_ranks": 4, "constant_count": True, "pad_to_multiple_of": 8},
        {"token_budget": 8_192, "padding_target": 0.02},
        {"token_budget": 300_000, "padded_lengths": 12, "quadratic_length": 4_096},
    ],
    ids=["random", "sorted", "soft", "hard", "padding-target", "padded-lengths"],
)
def test_real_length_sets_give_the_plan_of_the_oracle(real_lengths: np.ndarray, options: dict[str, Any]) -> None:
    assert_equals_oracle(real_lengths[:6_000].tolist(), 17, overlong="keep", empty="drop", epoch=2, **options)


# The number of batches that these need differs between epochs by more than the pilots show.
@pytest.mark.parametrize("options", [{"strategy": "random"}, {"boundaries": 3}, {}, {"padding_target": 0.3}])
def test_an_epoch_that_needs_more_batches_than_the_count_is_drawn_again(options: dict[str, Any]) -> None:
    lengths = [20 + (i * i * 7_919 % 10_007) // (3 + i % 17) for i in range(400)]
    options |= {"token_budget": 8_192, "constant_count": True}
    natural = [len(pack_epoch(lengths, 0, epoch=epoch, **options | {"constant_count": False})) for epoch in range(60)]
    count = Planner(lengths, **options).n_batches()
    assert max(natural) > count, "no epoch is above the count: the case forces nothing"
    for epoch in range(60):
        if natural[epoch] > count:
            assert len(pack_epoch(lengths, 0, epoch=epoch, **options)) == count
            assert_equals_oracle(lengths, 0, epoch=epoch, **options)


@pytest.mark.parametrize(
    ("multiple", "lengths", "options"),
    [
        (
            7, "2 2 1 2 5 5 1 6 2 5 1 1 2 5 3 2 3 3 6 2 1 3 4 3 5 1",
            {"token_budget": 112, "padding_target": 1.0, "epoch": 13},
        ),
        (7, "2 3 1 3 2 2 3 1 3 1 2 1 1 1 3 3 1 2 3 1 2", {"token_budget": 24, "boundaries": 1, "epoch": 20}),
    ],
    ids=["soft", "hard"],
)  # fmt: skip
def test_an_epoch_whose_every_draw_needs_too_many_batches_is_planned_in_order_of_length(
    monkeypatch: pytest.MonkeyPatch, multiple: int, lengths: str, options: dict[str, Any]
) -> None:
    attempts: list[int] = []
    stream = oracle.Draw.stream
    monkeypatch.setattr(oracle.Draw, "stream", lambda draw, *of: attempts.append(draw.attempt) or stream(draw, *of))
    assert_equals_oracle([multiple * int(word) for word in lengths.split()], 0, constant_count=True, **options)
    assert max(attempts) == oracle.N_ATTEMPTS, "the case takes no last attempt"


def test_the_oracle_itself_tells_plans_apart() -> None:
    """A comparison that holds between any two plans would hold between wrong ones."""
    lengths = uneven_lengths(500).tolist()
    plan = pack_epoch(lengths, 1)
    other = oracle_plan(lengths, 2, plan.boundaries.tolist())
    assert plan.indices.tolist() != [i for batch in other.batches for i in batch]
