"""Draws the README's picture in characters, which the package index shows too.

python benches/python/readme_picture.py
"""

from __future__ import annotations

import math

from bucketshuffle.data import dflash902k
from bucketshuffle.report import compare
from bucketshuffle.report.sweeps import sweep_repeat_weights

WEIGHTS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
Point = tuple[float, float]


def points() -> tuple[list[Point], dict[str, Point]]:
    """Padding over sorted batches and pairs repeated, %, on dflash902k at a budget of 131,072: of soft buckets by
    `WEIGHTS`, and of each strategy as it is. Sorted batches pad 0 % over themselves; they stand at 0.02 %."""
    lengths = dflash902k()
    curve = [
        (100 * point.over_sorted, 100 * point.pairs_repeated)
        for point in sweep_repeat_weights(lengths, weights=WEIGHTS)
    ]
    rows = {row.name: row.metrics for row in compare(lengths, n_epochs=2)}
    least = rows["sorted"].padding_ratio
    strategies = {
        name: (100 * (rows[name].padding_ratio / least - 1) or 0.02, 100 * (rows[name].pairs_repeated or 0.0))
        for name in ("sorted", "bucketshuffle", "six buckets", "random")
    }
    return curve, strategies


def picture() -> str:
    n_rows, n_columns = 11, 78
    rows = [[" "] * n_columns for _ in range(n_rows)]

    def put(at: Point, text: str) -> None:
        # Logarithmic: 0.01 to 300 % from left to right, 0.001 to 100 % from the bottom up.
        column = round((math.log10(at[0]) + 2) / (math.log10(300) + 2) * (n_columns - 14))
        row = round((2 - math.log10(at[1])) / 5 * (n_rows - 1))
        rows[row][column : column + len(text)] = text

    curve, strategies = points()
    for at in curve:
        put(at, "·")
    for name, at in strategies.items():
        put(at, f"{'●' if name == 'bucketshuffle' else '○'} {name}")
    names = {0: "100 %", 4: "1 %", 8: "0.01 %"}
    lines = [f"{names.get(i, ''):>7} │{''.join(row).rstrip()}" for i, row in enumerate(rows)]
    lines.append(" " * 8 + "└" + "─" * n_columns)
    ticks = [" "] * n_columns
    for value, text in ((0.1, "0.1 %"), (1.0, "1 %"), (10.0, "10 %"), (100.0, "100 %")):
        column = round((math.log10(value) + 2) / (math.log10(300) + 2) * (n_columns - 14))
        ticks[column : column + len(text)] = text
    lines.append(" " * 9 + "".join(ticks).rstrip())
    return "\n".join(["pairs repeated in the next epoch", *lines, f"{'padding over sorted batches':>{n_columns + 8}}"])


if __name__ == "__main__":
    print(picture())
