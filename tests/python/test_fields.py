"""Plans of samples with several lengths equal the oracle, keep the budget and refuse what they cannot plan."""

from __future__ import annotations

import pickle
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from bucketshuffle import EpochPlan, Planner, pack_epoch
from conftest import examples, uneven_lengths
from hypothesis import given
from inputs import WORDS, field_problems, several_of
from promises import assert_is_plan_of_oracle

OWN = {"pad_to_multiple_of", "padded_lengths", "quadratic_length", "field_weights", "combine"}
"""Options that the oracle has in `Several`."""


def oracle_plan(rows: list[list[int]], seed: int, edges: list[int], **options: Any) -> oracle.Plan:
    several = several_of(rows, options)
    of_all = {name: options[name] for name in ("token_budget", "max_batch_size", "per_sample") if name in options}
    others = {name: value for name, value in options.items() if name not in {*OWN, *of_all}}
    if others.get("boundaries", "auto") != "auto":
        others["boundaries"] = edges
    return oracle.pack_epoch(several, seed, cost=oracle.Cost(**of_all), **others)


def assert_equals_oracle(rows: list[list[int]], seed: int, **options: Any) -> None:
    """Both plan alike, or both refuse."""
    lengths = np.array(rows, np.int64).reshape(len(rows), -1 if rows else 2)
    try:
        plan = pack_epoch(lengths, seed, **options)
    except ValueError:
        with pytest.raises(ValueError, match=r"lengths|samples"):
            oracle_plan(rows, seed, edges_of_refused(lengths, **options), **options)
        return
    expected = oracle_plan(rows, seed, plan.boundaries.tolist(), **options)
    assert_is_plan_of_oracle(plan, expected)
    assert_budget_exact(plan, rows, **options)


def edges_of_refused(lengths: np.ndarray, **options: Any) -> list[int]:
    """The edges that a plan would have had, were it not for its count or for what it refuses."""
    lenient = {**options, "constant_count": False, "overlong": "drop", "empty": "drop"}
    return pack_epoch(lengths, 0, **lenient).boundaries.tolist()


def assert_budget_exact(plan: EpochPlan, rows: list[list[int]], **options: Any) -> None:
    """What every batch pads and costs, computed from its samples alone."""
    several = several_of(rows, options)
    combine = max if options.get("combine") == "max" else sum
    real = padded = 0
    for batch, padded_lengths, cost, bucket in zip(plan, plan.padded_lengths, plan.costs, plan.buckets, strict=True):
        of_samples = [rows[i] for i in batch.tolist()]
        longest = [max(of_field) for of_field in zip(*of_samples, strict=True)]
        assert padded_lengths.tolist() == [
            of_field.padded(length) for of_field, length in zip(several.costs, longest, strict=True)
        ]
        fields = zip(several.weights, several.costs, padded_lengths.tolist(), strict=True)
        of_fields = [ceil(weight * of_field.sample(length)) for weight, of_field, length in fields]
        assert cost == len(batch) * (options.get("per_sample", 0) + combine(of_fields))
        assert len(batch) == 1 if bucket < 0 else cost <= options["token_budget"]
        real += sum(map(sum, of_samples))
        padded += len(batch) * sum(padded_lengths.tolist())
    assert plan.stats.real_tokens == real
    assert plan.stats.padded_tokens == padded
    assert plan.stats.dropped_tokens == sum(sum(rows[i]) for i in plan.dropped.tolist())
    assert sorted([*plan.indices.tolist(), *plan.dropped.tolist()]) == list(range(len(rows)))


@examples(500)
@given(problem=field_problems(), seed=WORDS)
def test_every_option_gives_the_plan_of_the_oracle(problem: tuple[list[list[int]], dict[str, Any]], seed: int) -> None:
    rows, options = problem
    assert_equals_oracle(rows, seed, **options)


def pairs(n: int, correlation: float, seed: int = 0, longest: int = 2_000) -> np.ndarray:
    """lengths [n, 2], int64, about log-normal, of about this correlation of their logarithms."""
    rng = np.random.Generator(np.random.PCG64(seed))
    first, own = rng.normal(size=(2, n))
    second = correlation * first + np.sqrt(1 - correlation**2) * own
    return np.clip(np.exp(np.log(longest / 6) + 0.8 * np.stack([first, second], 1)), 1, longest).astype(np.int64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "sorted"},
        {"boundaries": 4},
        {"padding_target": 0.1},
        {"combine": "max", "window": 8, "align_ranks": 2, "constant_count": True},
    ],
    ids=["soft", "sorted", "hard", "padding-target", "max"],
)
def test_many_pairs_give_the_plan_of_the_oracle(options: dict[str, Any]) -> None:
    assert_equals_oracle(pairs(1_500, 0.5).tolist(), 3, token_budget=16_384, overlong="drop", epoch=1, **options)


@pytest.mark.parametrize("options", [{}, {"boundaries": 5, "overlong": "drop"}, {"window": 4, "constant_count": True}])
def test_one_column_is_planned_as_one_field(options: dict[str, Any]) -> None:
    lengths = uneven_lengths(3_000)
    plan = pack_epoch(lengths, 1, **options)
    assert pack_epoch(lengths[:, None], 1, **options) == plan
    assert pack_epoch({"tokens": lengths}, 1, **options) == plan
    assert plan.padded_lengths.ndim == 1


def test_a_field_of_zeros_changes_no_batch() -> None:
    lengths = uneven_lengths(3_000)
    both = pack_epoch(np.stack([lengths, 0 * lengths], 1), 1)
    plan = pack_epoch(lengths, 1)
    assert both.indices.tolist() == plan.indices.tolist()
    assert both.offsets.tolist() == plan.offsets.tolist()
    assert both.padded_lengths.tolist() == [[length, 0] for length in plan.padded_lengths.tolist()]


def test_a_mapping_names_the_fields_and_its_options() -> None:
    lengths = pairs(500, 0.5)
    plan = pack_epoch(
        {"source": lengths[:, 0], "target": lengths[:, 1]},
        0,
        token_budget=8_192,
        pad_to_multiple_of={"target": 8},
        quadratic_length={"source": 4_096},
        field_weights={"source": 0.25},
    )
    assert plan.field_names == ("source", "target")
    by_column = pack_epoch(
        lengths, 0, token_budget=8_192, pad_to_multiple_of=[1, 8], quadratic_length={0: 4_096}, field_weights=[0.25, 1]
    )
    assert by_column.field_names is None
    assert by_column.indices.tolist() == plan.indices.tolist()
    assert by_column.padded_lengths.tolist() == plan.padded_lengths.tolist()
    assert (plan.padded_lengths[:, 1] % 8 == 0).all()
    assert not (plan.padded_lengths[:, 0] % 8 == 0).all()


def test_an_integer_of_padded_lengths_chooses_as_many_for_each_field() -> None:
    lengths = pairs(2_000, 0.5)
    planner = Planner(lengths, token_budget=16_384, padded_lengths={0: 5, 1: [500, 1_000, 2_000]}, overlong="drop")
    chosen, given_ = planner.padded_lengths
    assert len(chosen) == 5
    assert given_.tolist() == [500, 1_000, 2_000]
    padded_lengths = planner.plan(0).padded_lengths
    assert set(padded_lengths[:, 0]) <= set(chosen)
    assert set(padded_lengths[:, 1]) <= {500, 1_000, 2_000}
    same = pack_epoch(lengths, 0, token_budget=16_384, padded_lengths=[chosen, given_], overlong="drop")
    assert same == planner.plan(0)


def test_a_planner_of_several_fields_pickles_and_says_what_it_plans() -> None:
    lengths = pairs(300, 0.9)
    planner = Planner(
        {"a": lengths[:, 0], "b": lengths[:, 1]}, token_budget=8_192, pad_to_multiple_of=[8, 1], combine="max"
    )
    again = pickle.loads(pickle.dumps(planner))
    assert again.plan(5, 2) == planner.plan(5, 2)
    assert again.options == planner.options
    assert planner.options["pad_to_multiple_of"] == {"a": 8, "b": 1}
    assert planner.padding == ((8, ()), (1, ()))
    assert planner.padded_length([[9, 9], [1, 0]]).tolist() == [[16, 9], [8, 0]]
    assert planner.batch_cost([2, 3], [[9, 17], [9, 2]]).tolist() == [34, 48]


def test_a_plan_of_several_fields_is_saved_whole(tmp_path: Path) -> None:
    lengths = pairs(300, 0.9)
    for given_ in (lengths, {"a": lengths[:, 0], "b": lengths[:, 1]}):
        plan = pack_epoch(given_, 0, token_budget=8_192)
        plan.save(tmp_path / "plan.npz")
        assert EpochPlan.load(tmp_path / "plan.npz") == plan
        assert pickle.loads(pickle.dumps(plan)) == plan


def test_the_weights_are_the_nearest_ratios_of_small_integers() -> None:
    # 0.1 as a float is above 1 / 10, and 10 tokens of it would round up to 2.
    plan = pack_epoch(np.array([[10, 30]]), 0, token_budget=100, field_weights=[0.1, 1 / 3])
    assert plan.costs.tolist() == [1 + 10]


# Bands: with unrelated lengths an order by combined length alone would pad far more; see benches/python/fields.py.
def test_neighbours_are_alike_in_the_second_length_too() -> None:
    lengths = pairs(20_000, 0.0)
    stats = pack_epoch(lengths, 0, token_budget=32_768).stats
    by_sum = pack_epoch(lengths.sum(1), 0, token_budget=32_768)
    padded = sum(len(batch) * int(lengths[batch].max(0).sum()) for batch in by_sum)
    assert stats.padding_ratio - 1 < 0.5 * (padded / stats.real_tokens - 1)


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        (
            np.array([[5, 3], [0, 0], [0, 4]]), {},
            'lengths[1, 0] = 0 and lengths[1, 1] = 0 leave a sample without tokens; remove the sample, or set '
            'empty="drop" (1 of 3 samples are empty)',
        ),
        (
            {"source": [5, 9], "target": [3, 8]}, {"token_budget": 16},
            'lengths["source"][1] = 9 and lengths["target"][1] = 8 cost 17, which exceeds token_budget = 16; raise '
            'token_budget, or set overlong="drop" or "keep" (1 of 2 samples are over-long)',
        ),
        (
            {"source": [5, 9], "target": [3, 8]}, {"padded_lengths": {"target": [4, 6]}},
            'lengths["target"][1] = 8 exceeds the last padded length padded_lengths["target"][1] = 6; append a padded '
            'length of 8 or more, or set overlong="drop" or "keep" (1 of 2 samples are over-long, the longest is 8)',
        ),
        (
            np.array([[5, -3]]), {},
            "lengths[0, 1] = -3 is outside [0, 4294967295]; choose a value in that range",
        ),
        (
            {"a": [5, 2**32], "b": [1, 1]}, {},
            'lengths["a"][1] = 4294967296 is outside [0, 4294967295]; choose a value in that range',
        ),
        (
            np.array([[5, 3]]), {"boundaries": [0, 7]},
            'combined lengths[0] = 8 exceeds the last edge boundaries[1] = 7; append an edge of 8 or more, or set '
            'boundaries="auto" (1 of 1 samples exceed it, this one is the longest)',
        ),
        (np.ones((3, 9), int), {}, "lengths has 9 fields, outside [2, 8]; pass one dimension for one field"),
        (
            np.ones((3, 2, 2), int), {},
            "lengths has shape (3, 2, 2), not one or two dimensions; pass one length per sample, or one per sample and "
            "field",
        ),
        (
            {"a": [5, 2], "b": [1]}, {},
            'lengths["b"] has 1 samples, lengths["a"] has 2; pass one length of every field for each sample',
        ),
        (
            np.ones((3, 2), int), {"pad_to_multiple_of": [8, 8, 8]},
            "pad_to_multiple_of has 3 values for 2 fields; pass one value for all, or one for each",
        ),
        (
            {"a": [1], "b": [1]}, {"quadratic_length": {"c": 8}},
            'quadratic_length["c"] is of no field; the fields are "a", "b"',
        ),
        (
            {"a": [1], "b": [1]}, {"padded_lengths": {"a": [8, 8]}},
            'padded_lengths["a"][1] = 8 does not exceed padded_lengths["a"][0] = 8; pass strictly ascending lengths, '
            "such as [512, 1024, 2048]",
        ),
        (
            np.ones((3, 2), int), {"field_weights": [1, 0]},
            "field_weights[1] = 0 is outside [0.001, 1000]; choose a value in that range",
        ),
        ([5], {"field_weights": 2}, "field_weights has no effect with lengths of one field; leave field_weights out"),
        ([5], {"combine": "max"}, "combine has no effect with lengths of one field; leave combine out"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_by_name(lengths: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        pack_epoch(lengths, 0, **options)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ({"a": [0.5]}, {}, 'lengths["a"] has dtype float64, not an integer dtype; convert with .astype(numpy.int64) if '
         "the values are whole"),
        ({3: [1], "b": [1]}, {}, "lengths has the key 3, which is not a string; name every field"),
        (np.ones((3, 2), int), {"field_weights": [1, "x"]}, "field_weights[1] = 'x' is not a number"),
        (np.ones((3, 2), int), {"pad_to_multiple_of": {1: 0.5}}, "pad_to_multiple_of[1] = 0.5 is not an integer"),
    ],
)  # fmt: skip
def test_what_is_of_the_wrong_kind_is_refused_by_name(lengths: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as raised:
        pack_epoch(lengths, 0, **options)
    assert str(raised.value) == message


def test_the_oracle_tells_wrong_bands_apart() -> None:
    """A comparison that holds without bands would not have tested them."""
    rows = pairs(400, 0.0).tolist()
    several = oracle.Several(rows, [oracle.Cost()] * 2, [Fraction(1)] * 2)
    plan = oracle.pack_epoch(several, 0, cost=oracle.Cost(token_budget=16_384))
    assert several.bands is not None
    assert [batch.tolist() for batch in pack_epoch(np.array(rows), 0, token_budget=16_384)] == plan.batches


@pytest.mark.parametrize(("correlation", "n_samples", "token_budget"), [(0.0, 3_000, 12_000), (0.5, 2_000, 9_000)])
def test_wide_bands_are_those_of_the_oracle(correlation: float, n_samples: int, token_budget: int) -> None:
    # Hundreds of batches, so bands of 32 and more.
    assert_equals_oracle(pairs(n_samples, correlation).tolist(), 0, token_budget=token_budget)
