"""The figures of the report, against slow definitions and the write-up's table."""

import hashlib

import numpy as np
import pytest
from bucketshuffle import DFLASH_BOUNDARIES, Planner, pack_epoch
from bucketshuffle.__main__ import main
from bucketshuffle.data import DFLASH902K_SHA256, dflash902k
from bucketshuffle.report import (
    compare,
    longest_run,
    neighbour_correlation,
    notes,
    pairs_repeated,
    slowest_over_mean,
    window_mix,
)


@pytest.fixture(scope="module")
def lengths() -> np.ndarray:
    return dflash902k()


def test_dflash902k_is_the_same_array_everywhere(lengths: np.ndarray) -> None:
    assert hashlib.sha256(lengths.astype("<i4").tobytes()).hexdigest() == DFLASH902K_SHA256


def test_padding_on_dflash902k_is_what_the_readme_says(lengths: np.ndarray) -> None:
    def ratio(**options: object) -> float:
        return pack_epoch(lengths, 0, **options).stats.padding_ratio  # type: ignore[arg-type]

    assert ratio() <= 1.0085
    assert ratio(boundaries=DFLASH_BOUNDARIES) == pytest.approx(1.277, abs=0.003)
    assert ratio(strategy="random") == pytest.approx(2.67, abs=0.02)
    assert ratio(strategy="sorted") <= 1.0005


def test_windows_of_64_mix_at_least_twice_as_well_as_random_ones(lengths: np.ndarray) -> None:
    ours = pack_epoch(lengths, 0, window=64)
    assert window_mix(ours, lengths, 64) <= 0.5 * window_mix(pack_epoch(lengths, 0, strategy="random"), lengths, 64)
    assert window_mix(pack_epoch(lengths, 0, window=16), lengths, 16) < window_mix(
        pack_epoch(lengths, 0, strategy="random"), lengths, 16
    )


def test_window_mix_is_the_distance_between_token_weighted_distributions() -> None:
    lengths = np.array([1, 2, 3, 4, 4, 2, 7, 1])
    plan = pack_epoch(lengths, 0, token_budget=8, boundaries=[0, 7])
    window = 2

    def share_up_to(x: float, samples: np.ndarray) -> float:
        return lengths[samples][lengths[samples] <= x].sum() / lengths[samples].sum()

    grid = np.arange(0, 7, 0.5)  # Both distributions are steps at integers.
    distances = []
    for w in range(len(plan) // window):
        samples = np.concatenate([plan[b] for b in range(w * window, (w + 1) * window)])
        distances.append(sum(0.5 * abs(share_up_to(x, samples) - share_up_to(x, plan.indices)) for x in grid) / 7)
    assert window_mix(plan, lengths, window) == pytest.approx(np.mean(distances))


def test_pairs_repeated_counts_pairs() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    planner = Planner(lengths, token_budget=300)
    first, second = planner.plan(0, 0), planner.plan(0, 1)

    def pairs(plan: object) -> set[tuple[int, int]]:
        return {(i, j) for batch in plan for i in batch.tolist() for j in batch.tolist() if i < j}  # type: ignore[attr-defined]

    assert pairs_repeated(first, second) == pytest.approx(len(pairs(first) & pairs(second)) / len(pairs(first)))
    assert pairs_repeated(first, first) == 1.0


def test_order_of_windows_shows_no_sawtooth() -> None:
    lengths = np.random.default_rng(1).integers(1, 1_000, 20_000)
    plan = pack_epoch(lengths, 0, token_budget=8_192, window=16)
    # For independent lengths the correlation has standard deviation 1 / sqrt(n_batches): six of them, 1 in 10^9.
    assert abs(neighbour_correlation(plan)) < 6 / np.sqrt(len(plan))
    assert 1 <= longest_run(plan) <= 16
    aligned = pack_epoch(lengths, 0, token_budget=8_192, window=16, align_ranks=4)
    assert neighbour_correlation(aligned) > 0.5
    assert 1.0 <= slowest_over_mean(aligned, 4) <= slowest_over_mean(plan, 4)


def test_figures_hold_beyond_2_63_tokens() -> None:
    lengths = np.array([2**62, 2**62 - 1, 2**61, 2**60, 3 * 2**60, 2**61 + 7])
    large = pack_epoch(lengths, 0, token_budget=2**63 - 1, boundaries=[0, 2**62])
    small = pack_epoch(lengths >> 50, 0, token_budget=2**13 - 1, boundaries=[0, 2**12])
    # The same in units of 2^50 tokens; two lengths lose a token to the rounding.
    assert np.array_equal(large.indices, small.indices)
    assert window_mix(large, lengths, 2) == pytest.approx(window_mix(small, lengths >> 50, 2), abs=1e-3)
    assert slowest_over_mean(large, 2) == pytest.approx(slowest_over_mean(small, 2), abs=1e-3)
    assert neighbour_correlation(large) == pytest.approx(neighbour_correlation(small), abs=1e-3)
    assert pairs_repeated(large, large) == pairs_repeated(small, small)
    assert large.stats.padding_ratio == pytest.approx(small.stats.padding_ratio, abs=1e-3)


@pytest.mark.parametrize("lengths", [[], [7], [7, 7]])
def test_figures_of_tiny_plans_are_defined(lengths: list[int]) -> None:
    plan = pack_epoch(lengths, 0, token_budget=8)
    assert window_mix(plan, np.array(lengths, np.int64), 2) == 0.0
    assert pairs_repeated(plan, plan) == 0.0
    assert neighbour_correlation(plan) == 0.0
    assert longest_run(plan) == len(plan)
    assert slowest_over_mean(plan, 4) == 1.0


def test_compare_has_a_row_for_each_strategy(lengths: np.ndarray) -> None:
    rows = compare(lengths[:50_000], n_epochs=2, window=16)
    assert [row.name for row in rows] == ["sorted", "random", "six buckets", "bucketshuffle"]
    assert rows[0].ktok_per_s == 32.0
    assert rows[3].padding_ratio < rows[2].padding_ratio < rows[1].padding_ratio


def test_command_line_prints_the_table(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "lengths.npy", np.random.default_rng(0).integers(1, 9_000, 5_000))
    assert main([str(tmp_path / "lengths.npy"), "--epochs", "2"]) == 0
    assert "| bucketshuffle |" in capsys.readouterr().out
    np.save(tmp_path / "lengths.npy", np.array([5, 0]))
    assert main([str(tmp_path / "lengths.npy")]) == 2
    assert capsys.readouterr().err == (
        'bucketshuffle: lengths[1] = 0 is below the shortest length = 1; remove the sample, or set empty="drop" '
        "(1 of 2 samples are empty)\n"
    )


def test_a_smaller_repeat_weight_pads_less(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "lengths.npy", np.arange(1, 2001))
    ratios = []
    for weight in ("0.5", "0.05"):
        assert main([str(tmp_path / "lengths.npy"), "--epochs", "2", "--repeat-weight", weight]) == 0
        row = next(row for row in capsys.readouterr().out.splitlines() if row.startswith("| bucketshuffle"))
        ratios.append(float(row.split("|")[2]))
    assert ratios[1] < ratios[0]


@pytest.mark.parametrize(
    ("window", "starts"), [(1, []), (64, ["constant_count splits "]), (300, ["constant_count with window = 300 asks "])]
)
def test_the_command_line_states_what_a_window_costs(tmp_path, capsys, window, starts) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "lengths.npy"
    np.save(path, np.arange(1, 201))
    assert main([str(path), "--epochs", "2", "--window", str(window), "--token-budget", "512"]) == 0
    stated = [line.removeprefix("note: ") for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(stated) == len(starts)
    assert all(map(str.startswith, stated, starts)), stated


@pytest.mark.parametrize("longest", [9, 2**40, 2**62])
def test_shapes_are_counted_whatever_their_size(longest: int) -> None:
    lengths = np.random.default_rng(0).integers(longest // 2, longest, 300)
    plan = pack_epoch(lengths, 0, token_budget=2**63 - 1, max_batch_size=3)
    assert plan.stats.n_shapes == len(
        {(len(batch), length) for batch, length in zip(plan, plan.padded_lengths, strict=True)}
    )


def test_a_mistake_in_the_options_is_no_note() -> None:
    with pytest.raises(ValueError, match=r"^token_budget = 0 is outside "):
        notes([1, 2], token_budget=0)
    with pytest.raises(ValueError, match=r"^lengths\[1\] = 9 exceeds token_budget = 8; "):
        notes([1, 9], token_budget=8)
