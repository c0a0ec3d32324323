"""The report: its figures against slow definitions and other functions, its words where a figure is bad."""

import dataclasses
import hashlib
import itertools
import json
import math

import numpy as np
import pytest
from bucketshuffle import DFLASH_BOUNDARIES, Planner, metrics, pack_epoch
from bucketshuffle.data import DFLASH902K_SHA256, dflash902k
from bucketshuffle.report import (
    Distribution,
    Report,
    compare,
    notes,
    strategies_table,
    sweep_budgets,
    sweep_repeat_weights,
)
from conftest import examples, uneven_lengths
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = uneven_lengths(4_000)
OPTIONS = {"token_budget": 16_384, "window": 8}


@pytest.fixture(scope="module")
def lengths() -> np.ndarray:
    return dflash902k()


@pytest.fixture(scope="module")
def report() -> Report:
    return Report.of(LENGTHS, name="some", n_epochs=2, **OPTIONS)


def test_dflash902k_is_the_same_array_everywhere(lengths: np.ndarray) -> None:
    assert hashlib.sha256(lengths.astype("<i4").tobytes()).hexdigest() == DFLASH902K_SHA256


def test_compare_has_a_row_for_each_strategy(lengths: np.ndarray) -> None:
    rows = compare(lengths[:50_000], n_epochs=2, window=16)
    assert [row.name for row in rows] == ["sorted", "random", "six buckets", "bucketshuffle"]
    ratios = [row.metrics.padding_ratio for row in rows]
    assert ratios[0] < ratios[3] < ratios[2] < ratios[1]
    own = compare(lengths[:50_000], n_epochs=2, window=16, boundaries=3)
    assert own[-1].name == "your options"
    assert own[-1].metrics.padding_ratio == pytest.approx(
        np.mean([pack_epoch(lengths[:50_000], 0, epoch=e, window=16, boundaries=3).stats.padding_ratio for e in (0, 1)])
    )


def test_one_measured_point_gives_the_speeds_of_the_write_up(lengths: np.ndarray) -> None:
    rows = compare(lengths, n_epochs=2)
    speeds = [row[9] for row in strategies_table(rows, window=64, world_size=8, measured=("sorted", 32.0)).rows]
    assert [float(speed) for speed in speeds[:3]] == pytest.approx([32.0, 12.0, 25.1], abs=0.11)
    shares = [float(row[9]) for row in strategies_table(rows, window=64, world_size=8).rows]
    assert shares == pytest.approx([float(speed) / 32 for speed in speeds], abs=0.006)
    with pytest.raises(ValueError, match=r"^measured = 'fast' is not a strategy; choose one of 'sorted', 'random', "):
        strategies_table(rows, window=64, world_size=8, measured=("fast", 32.0))


def test_a_mistake_in_the_options_is_no_note() -> None:
    with pytest.raises(ValueError, match=r"^token_budget = 0 is outside "):
        notes([1, 2], token_budget=0)
    with pytest.raises(ValueError, match=r"^lengths\[1\] = 9 exceeds token_budget = 8; "):
        notes([1, 9], token_budget=8)


@given(st.lists(st.integers(0, 300) | st.sampled_from([2**40, 2**62])))
@examples(100)
def test_the_distribution_counts_every_sample_once(drawn: list[int]) -> None:
    found = Distribution.of(drawn)
    assert (found.n_samples, found.tokens, found.n_empty) == (len(drawn), sum(drawn), drawn.count(0))
    for part in found.ranges:
        inside = [length for length in drawn if part.above < length <= part.up_to]
        assert (part.n_samples, part.tokens) == (len(inside), sum(inside))
    assert sum(part.n_samples for part in found.ranges) + found.n_empty == len(drawn)
    assert all(part.up_to == after.above for part, after in zip(found.ranges, found.ranges[1:], strict=False))
    if drawn:
        ordered = sorted(drawn)
        assert (found.shortest, found.longest, found.n_distinct) == (ordered[0], ordered[-1], len(set(drawn)))
        assert found.n_most_frequent == max(map(drawn.count, drawn)) == drawn.count(found.most_frequent)
        for percent, length in found.percentiles.items():
            assert length == min(x for x in ordered if sum(y <= x for y in ordered) * 100 >= percent * len(ordered))


def test_ranges_have_the_edges_of_the_write_up(lengths: np.ndarray) -> None:
    edges = [part.up_to for part in Distribution.of(lengths).ranges]
    assert set(DFLASH_BOUNDARIES[1:]) <= set(edges)
    assert len(edges) <= 16


def test_a_sweep_has_the_figures_of_its_plans() -> None:
    points = sweep_budgets(LENGTHS, **OPTIONS)
    assert [point.value for point in points if point.is_own] == [16_384]
    assert [point.value for point in points] == sorted({point.value for point in points})
    assert min(point.value for point in points) >= LENGTHS.max()
    weights = sweep_repeat_weights(LENGTHS, **OPTIONS, repeat_weight=0.3)
    assert [point.value for point in weights if point.is_own] == [0.3]
    sweeps = [(point, {"token_budget": point.value}) for point in points]
    sweeps += [(point, {"repeat_weight": point.value}) for point in weights]
    for point, changed in sweeps:
        planner = Planner(LENGTHS, **{**OPTIONS, **changed})
        plans = [planner.plan(0, epoch) for epoch in (0, 1)]
        least = pack_epoch(LENGTHS, 0, token_budget=planner.options["token_budget"], strategy="sorted")
        assert point.n_batches == len(plans[0])
        assert point.padding_ratio == pytest.approx(np.mean([plan.stats.padding_ratio for plan in plans]))
        assert point.over_sorted == pytest.approx(point.padding_ratio / least.stats.padding_ratio - 1)
        assert point.pairs_repeated == pytest.approx(metrics.pairs_repeated(*plans))
        mix = metrics.window_mix(plans[0], LENGTHS, 8) if len(plans[0]) >= 16 and point in points else None
        assert point.mix == pytest.approx(mix)


def test_more_weight_repeats_less_and_pads_more() -> None:
    points = sweep_repeat_weights(LENGTHS, **OPTIONS, weights=[0.1, 1.0], padding_target=0.5)
    assert not any(point.is_own for point in points)  # a padding target has no weight
    assert not any(point.is_own for point in sweep_repeat_weights(LENGTHS, **OPTIONS, boundaries=3))
    assert not any(point.is_own for point in sweep_repeat_weights(LENGTHS, **OPTIONS, strategy="random"))
    assert points[0].over_sorted < points[1].over_sorted
    assert points[0].pairs_repeated > points[1].pairs_repeated


def test_no_smaller_budget_of_a_sweep_leaves_more_out() -> None:
    lengths = np.append(LENGTHS, [16_000, 50_000])
    points = sweep_budgets(lengths, **OPTIONS, overlong="drop")
    assert points[0].value == 16_384
    assert points[0].n_dropped == 1
    assert points[-1].n_dropped == 0


def test_the_report_says_what_an_epoch_is(report: Report) -> None:
    plan = pack_epoch(LENGTHS, 0, **OPTIONS)
    worst = int(plan.costs.argmax())
    assert dataclasses.astuple(report.heaviest) == pytest.approx(
        (worst, len(plan[worst]), plan.padded_lengths[worst], plan.costs[worst], plan.costs.max() / plan.costs.mean())
    )
    assert report.options == Planner(LENGTHS, **OPTIONS, overlong="drop", empty="drop").options
    text = "\n".join(report.summary())
    n_batches = round((len(plan) + len(pack_epoch(LENGTHS, 0, epoch=1, **OPTIONS))) / 2)
    assert text.startswith(f"some: 4,000 samples, {LENGTHS.sum():,} tokens\nan epoch has {n_batches:,} batches of ")
    assert str(report).count("\n\n") > 10


def test_curves_are_those_of_the_plans(report: Report) -> None:
    curves = report.curves
    edges = curves.edges
    assert list(curves.padding) == list(curves.order) == [row.name for row in report.strategies]
    in_bin = [[i for i, n in enumerate(LENGTHS) if low < n <= high] for low, high in itertools.pairwise(edges)]
    assert list(curves.n_samples) == [len(samples) for samples in in_bin]
    assert sum(curves.n_samples) == len(LENGTHS)
    plan = pack_epoch(LENGTHS, 0, **OPTIONS)
    padded = np.zeros(len(LENGTHS), np.int64)
    for batch, length in zip(plan, plan.padded_lengths, strict=True):
        padded[batch] = length
    for samples, ratio in zip(in_bin, curves.padding["bucketshuffle"], strict=True):
        assert ratio == (pytest.approx(padded[samples].sum() / LENGTHS[samples].sum()) if samples else None)
    assert list(curves.order["bucketshuffle"]) == plan.padded_lengths[:256].tolist()
    assert curves.mix["bucketshuffle"] == pytest.approx(metrics.window_distances(plan, LENGTHS, 8))


@pytest.mark.parametrize(
    "lengths", [[7], [7, 7], [1, 2**40], [2**62, 2**62 - 1], [0, 5], range(1, 30), [3] * 500 + [4]]
)
def test_any_lengths_have_a_report(lengths: list[int]) -> None:
    report = Report.of(np.array(lengths, np.int64), token_budget=2**63 - 1)
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert values["distribution"]["n_samples"] == len(lengths)
    assert sum(values["curves"]["n_samples"]) == len(lengths) - values["n_dropped"]
    assert str(report)


@pytest.mark.parametrize(
    "options",
    [
        {"overlong": "keep", "token_budget": 4_096},
        {"padded_lengths": 20},
        {"padded_lengths": [512, 4_096, 9_000]},
        {"pad_to_multiple_of": 64, "quadratic_length": 8_192, "per_sample": 3},
        {"max_batch_size": 4},
        {"strategy": "random"},
        {"strategy": "sorted"},
        {"constant_count": True},
        {"padding_target": 0.01},
        {"boundaries": 20, "align_ranks": 4},
        {"boundaries": np.array([0, 700, 8_191])},
        {"window": 1},
        {"threads": 2},
        {"admitted": LENGTHS > 300},
    ],
)
def test_any_options_have_a_report(options: dict[str, object]) -> None:
    report = Report.of(LENGTHS, **{**OPTIONS, **options})
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert "nan" not in str(report)
    assert json.loads(text)["options"]["token_budget"] == options.get("token_budget", 16_384)
    assert report.figure() is not None


def test_small_sets_are_planned_for_more_epochs() -> None:
    assert [Report.of(LENGTHS[:n]).n_epochs for n in (10, 4_000)] == [32, 32]
    assert Report.of(np.tile(LENGTHS, 25)).n_epochs == 5
    assert Report.of(LENGTHS, n_epochs=3).n_epochs == 3


def test_no_lengths_have_no_report() -> None:
    with pytest.raises(
        ValueError, match=r"^lengths has 0 samples, fewer than the 1 that a report needs; pass one length per sample$"
    ):
        Report.of(np.array([], np.int64))


def advice(lengths: object, **options: object) -> list[str]:
    return list(Report.of(lengths, **{"token_budget": 8_192, "window": 4, **options}).advice)


def test_good_lengths_call_for_nothing(lengths: np.ndarray) -> None:
    report = Report.of(lengths[lengths < 8_191])
    assert report.advice == ()


@pytest.mark.parametrize(
    ("lengths", "options", "start"),
    [
        (np.zeros(9, np.int64), {}, "all 9 samples have length 0, so there is nothing to plan; look at the counting"),
        (np.append(LENGTHS, 0), {}, "1 of 4,001 samples have length 0 and are left out; "),
        (
            np.append(LENGTHS, 9_000),
            {},
            f"1 of 4,001 samples, with {9_000 / (LENGTHS.sum() + 9_000):.1%} of the tokens, exceed token_budget = "
            "8,192 and are left out; the longest has 9,000 tokens: raise token_budget, ",
        ),
        ([265] * 900, {}, "every sample has 265 tokens, so no order pads anything; if the samples were padded before "),
        (
            np.minimum(LENGTHS, 2_000),
            {},
            f"{(LENGTHS >= 2_000).sum():,} of 4,000 samples ({(LENGTHS >= 2_000).mean():.1%}) have exactly 2,000 "
            "tokens, the longest length, ",
        ),
        (np.append(LENGTHS, [1_001] * 200), {}, "203 of 4,200 samples (4.8%) have exactly 1,001 tokens, 1"),
        (np.append(LENGTHS // 100 + 1, 8_000), {}, "the longest sample has 8,000 tokens, "),
        (
            LENGTHS // 20 + 1,
            {},
            "the six buckets do little here: 100.0% of the samples are in one of 6, 0 < length <= 512;",
        ),
        (
            LENGTHS,
            {"boundaries": [0, 100, 4_000, 8_192, 9_000]},
            "boundaries: 1 of 4 hold no sample; choose edges from ",
        ),
        (LENGTHS // 200 + 1, {}, "an epoch has "),
        (LENGTHS[:200], {"window": 300}, "constant_count with window = 300 asks "),
        (uneven_lengths(200), {"window": 64, "token_budget": 131_072}, "constant_count splits "),
        (LENGTHS, {"boundaries": 1}, "batches pad "),
        (LENGTHS // 4 + 2_000, {}, "a batch holds 2.8 samples on average and fills 83% of token_budget; "),
        (LENGTHS // 20 + 1, {"repeat_weight": 0.0, "n_epochs": 2}, "87.2% of the pairs of samples "),
        (LENGTHS, {"world_size": 64, "max_batch_size": 3}, "the slowest rank of a step has "),
    ],
)
def test_a_bad_figure_has_a_sentence(lengths: object, options: dict[str, object], start: str) -> None:
    sentences = advice(lengths, **options)
    assert [sentence for sentence in sentences if sentence.startswith(start)], sentences
    assert not any("nan" in sentence or "inf" in sentence for sentence in sentences)


def test_samples_that_are_not_admitted_are_not_called_overlong() -> None:
    admitted = np.arange(len(LENGTHS)) > 99
    assert not [sentence for sentence in advice(LENGTHS, admitted=admitted) if "exceed token_budget" in sentence]
    assert Report.of(LENGTHS, admitted=admitted).n_dropped == 100


def test_what_is_usual_has_no_sentence() -> None:
    # One length in eleven is the most frequent here, and its neighbours are nearly as frequent.
    narrow = Report.of(np.random.default_rng(0).poisson(12, 20_000) + 1, token_budget=1_024, window=4)
    assert not [sentence for sentence in narrow.advice if "have exactly" in sentence]
    # The longest has four times the 99th percentile.
    lengths = np.append(np.arange(1, 1_001), 4_000)
    assert not [sentence for sentence in advice(lengths) if sentence.startswith("the longest sample has")]
    assert [
        sentence for sentence in advice([*lengths, 11_000], token_budget=16_384) if "the longest sample has" in sentence
    ]


def test_windows_farther_than_random_ones_have_a_sentence() -> None:
    lengths = np.random.default_rng(0).poisson(12, 60_000) + 1
    report = Report.of(lengths, token_budget=2_048, window=16)
    mix = report.strategies[-1].metrics.mix, report.strategies[1].metrics.mix
    said = [sentence for sentence in report.advice if sentence.startswith("windows of 16 batches are ")]
    assert len(said) == (mix[0] > mix[1])
    assert mix[0] > mix[1]


def test_a_real_set_has_a_report_without_nonsense(real_lengths: np.ndarray, real_set: str) -> None:
    report = Report.of(real_lengths, name=real_set)
    for row in report.strategies:
        figures = dataclasses.asdict(row.metrics)
        assert all(value is None or math.isfinite(value) for value in figures.values()), row
        assert 1 <= figures["padding_ratio"] < 20
        assert 0 < figures["fill"] <= 1
    assert report.speeds[0] == 1.0
    assert all(0 < speed <= 1.001 for speed in report.speeds)
    json.dumps(report.to_dict(), allow_nan=False)


def test_a_report_of_several_fields() -> None:
    pairs = np.random.default_rng(0).integers(1, 60, (3_000, 2))
    options = {"token_budget": 2_000, "window": 4, "world_size": 2}
    report = Report.of({"source": pairs[:, 0], "target": pairs[:, 1]}, **options)
    assert [row.name for row in report.strategies] == ["sorted", "random", "bucketshuffle"]
    assert report.strategies[2].metrics.padding_ratio < report.strategies[1].metrics.padding_ratio
    assert report.summary()[0] == f"lengths: 3,000 samples, {pairs.sum():,} tokens"
    plan = Planner(pairs, token_budget=2_000, window=4).plan(0)
    worst = int(plan.costs.argmax())
    first, second = plan.padded_lengths[worst].tolist()
    assert any(f"samples padded to {first} and {second}, a cost of " in line for line in report.summary())
    assert "<svg" in report.to_html()
