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


def test_a_mistake_in_the_options_is_no_note() -> None:
    with pytest.raises(ValueError, match=r"^token_budget = 0 is outside "):
        notes([1, 2], token_budget=0)
    with pytest.raises(ValueError, match=r"^lengths\[1\] = 9 exceeds token_budget = 8; "):
        notes([1, 9], token_budget=8)
