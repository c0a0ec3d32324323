"""Every figure that the README claims, on the real length sets: `python benches/python/length_sets.py [FOLDER]`.

Plans each set of FOLDER (default: those of the tests) at three budgets under the default plan, sorted, random and six
buckets, and prints a row for each set and budget, and the medians and the worst. Over-long and empty samples are
dropped. `--sets` and `--budgets` choose, `--option NAME=VALUE` changes the plan. `--same-repetition FILE` compares with
the plans of another version instead: padding over sorted order where as many pairs are repeated.
"""

from __future__ import annotations

import argparse
import ast
import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from bucketshuffle import DFLASH_BOUNDARIES, EpochPlan, Planner
from bucketshuffle.metrics import pairs_repeated, slowest_over_mean, window_mix

SETS = Path(__file__).parents[2] / "tests" / "python" / "lengths"
BUDGETS = (8_192, 32_768, 131_072)
N_EPOCHS = 3
WINDOWS = (16, 64)


def plans(lengths: np.ndarray, budget: int, n_epochs: int = N_EPOCHS, **options: Any) -> list[EpochPlan]:
    planner = Planner(lengths, token_budget=budget, overlong="drop", empty="drop", **options)
    return [planner.plan(0, epoch) for epoch in range(n_epochs)]


def padding(of: list[EpochPlan]) -> float:
    return statistics.fmean(plan.stats.padding_ratio for plan in of)


def mix(of: list[EpochPlan], lengths: np.ndarray, window: int) -> float:
    """Of one window, or of less, there is none: it is the whole epoch."""
    if len(of[0]) < 2 * window:
        return float("nan")
    return statistics.fmean(window_mix(plan, lengths, window) for plan in of)


def row(lengths: np.ndarray, budget: int, options: dict[str, Any]) -> dict[str, float]:
    """The figures of one set at one budget."""
    ours = plans(lengths, budget, **options)
    least = plans(lengths, budget, 1, strategy="sorted")
    random = plans(lengths, budget, 2, strategy="random")
    edges = [*DFLASH_BOUNDARIES, *([int(lengths.max())] if lengths.max() > DFLASH_BOUNDARIES[-1] else [])]
    six = plans(lengths, budget, 2, boundaries=edges)
    figures = {
        "samples": len(ours[0].indices),
        "batches": len(least[0]),
        "sorted": padding(least),
        "over sorted": padding(ours) / padding(least) - 1,
        "six": padding(six) / padding(least) - 1,
        "random": padding(random) / padding(least) - 1,
        "repeated": statistics.fmean(map(pairs_repeated, ours[:-1], ours[1:])),
        "six repeated": pairs_repeated(six[0], six[1]),
        "batches/sorted": statistics.fmean(map(len, ours)) / len(least[0]),
        "slowest of 8": statistics.fmean(slowest_over_mean(plan, 8) for plan in ours),
    }
    for window in WINDOWS:
        windowed = plans(lengths, budget, **options, window=window)
        of_random = mix(random, lengths, window)
        figures[f"mix {window}"] = mix(windowed, lengths, window) / of_random if of_random else float("nan")
    return figures


def same_repetition(folder: Path, record: Path) -> None:
    """Prints the padding over sorted order of a recorded version and of this one at the same repetition, for every set
    and budget where that version had four buckets or more."""
    print("| set | budget | repeated | over sorted, then | now | ratio |\n|---|---:|---:|---:|---:|---:|")
    ratios = []
    with open(record, newline="") as file:
        recorded = [row for row in csv.DictReader(file) if int(row["n_buckets"]) >= 4]
    for then in recorded:
        lengths, budget = np.load(folder / f"{then['set']}.npz")["lengths"], int(then["budget"])
        repeated, over_then = float(then["pairs_repeated"]), float(then["over_sorted"])
        low, high = -14.0, 10.0  # binary logarithm of the weight
        for _ in range(12):
            middle = (low + high) / 2
            ours = plans(lengths, budget, repeat_weight=2.0**middle)
            if statistics.fmean(map(pairs_repeated, ours[:-1], ours[1:])) > repeated:
                low = middle
            else:
                high = middle
        over = padding(ours) / padding(plans(lengths, budget, 1, strategy="sorted")) - 1
        ratios.append(over / over_then)
        cells = (f"{repeated:.2%}", f"{over_then:.2%}", f"{over:.2%}", f"{ratios[-1]:.2f}")
        print(f"| {then['set']} | {budget:,} | {' | '.join(cells)} |", flush=True)
    low_quartile, median, high_quartile = statistics.quantiles(ratios, n=4)
    spread = f"{median:.2f} ({low_quartile:.2f}-{high_quartile:.2f})"
    print(f"| **median of {len(ratios)}** (quartiles) | | | | | {spread} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=SETS)
    parser.add_argument("--sets", nargs="*")
    parser.add_argument("--budgets", nargs="*", type=int, default=BUDGETS)
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of the plan")
    parser.add_argument("--same-repetition", type=Path, metavar="FILE", help="record/order-v1.csv")
    given = parser.parse_args()
    if given.same_repetition:
        same_repetition(given.folder, given.same_repetition)
        return
    options = {name: ast.literal_eval(value) for name, _, value in (text.partition("=") for text in given.option)}
    rows: list[dict[str, float]] = []
    for path in sorted(given.folder.glob("*.npz")):
        if given.sets and path.stem not in given.sets:
            continue
        lengths = np.load(path)["lengths"]
        for budget in given.budgets:
            figures = row(lengths, budget, options)
            if not rows:
                print("| set | budget | " + " | ".join(figures) + " |\n" + "|---|" + "---:|" * (len(figures) + 1))
            print(f"| {path.stem} | {budget:,} | " + " | ".join(cells(figures)) + " |", flush=True)
            rows.append(figures)
    for name, of in (("median", np.nanmedian), ("least", np.nanmin), ("most", np.nanmax)):
        print(f"| **{name}** | | " + " | ".join(cells({key: of([row[key] for row in rows]) for key in rows[0]})) + " |")


def cells(figures: dict[str, float]) -> list[str]:
    formats = dict.fromkeys(("over sorted", "six", "random", "repeated", "six repeated"), ".2%")
    formats |= dict.fromkeys(("samples", "batches"), ",.0f")
    return ["-" if np.isnan(value) else format(value, formats.get(key, ".3f")) for key, value in figures.items()]


if __name__ == "__main__":
    main()
