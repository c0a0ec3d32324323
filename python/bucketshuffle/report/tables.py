"""Tables of a report as text: one form for the terminal, for Markdown and for pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bucketshuffle.metrics import predicted_throughput
from bucketshuffle.report.compare import Row

SORTED_SPEED = 1.0
"""The speed of sorted batches where none was measured: the others are then shares of it."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells under a head, with the words that explain them."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The first cell of a row names it; the others are figures."""
    legend: tuple[tuple[str, str], ...] = ()
    """What a column means, by its head."""
    own: int | None = None
    """The row of the user's plan."""

    def to_markdown(self) -> str:
        """Returns the cells as a Markdown table, which also reads well as plain text."""
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = [
            " | ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
            for cells in (self.head, *self.rows)
        ]
        rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
        return "\n".join(["| " + lines[0] + " |", "|" + rule + "|", *("| " + line + " |" for line in lines[1:])])

    def to_text(self) -> str:
        """Returns title, cells and legend as plain text."""
        width = max((len(name) for name, _ in self.legend), default=0)
        legend = [f"{name:<{width}}   {meaning}" for name, meaning in self.legend]
        return "\n".join([self.title, "", self.to_markdown(), *([""] if legend else []), *legend])


def strategies_table(
    rows: Sequence[Row], *, window: int, world_size: int, measured: tuple[str, float] | None = None, times: bool = False
) -> Table:
    """Returns the figures of `compare` as a table.

    Args:
        rows: what `compare` returned; the first is that of sorted batches.
        window: batches between two optimizer updates, over all ranks, as for `compare`.
        world_size: ranks that share a step, as for `compare`.
        measured: the name of a row and the real tokens per second that its batches ran at, in any unit.
        times: add what planning takes.

    Raises:
        ValueError: `measured` names no row.
    """
    speeds = predicted_speeds(rows, measured)
    head = ["strategy", "padded / real", "batches", "shapes", f"mix of {window}", "pairs repeated", "neighbours"]
    head += ["longest run", f"slowest of {world_size}", "speed"]
    body = [
        [
            row.name,
            f"{row.metrics.padding_ratio:.4f}",
            f"{row.metrics.n_batches:,.0f}",
            f"{row.metrics.n_shapes:,.0f}",
            "-" if row.metrics.mix is None else f"{row.metrics.mix:.4f}",
            "-" if row.metrics.pairs_repeated is None else f"{row.metrics.pairs_repeated:.2%}",
            f"{round(row.metrics.neighbour_correlation, 3) + 0.0:+.3f}",
            str(row.metrics.longest_run or "-"),
            f"{row.metrics.slowest_over_mean:.3f}",
            f"{speed:.2f}" if measured is None else f"{speed:,.1f}",
        ]
        for row, speed in zip(rows, speeds, strict=True)
    ]
    basis = "sorted batches = 1" if measured is None else f"{measured[0]} batches ran at {measured[1]:g}"
    legend = [
        ("padded / real", "padded tokens over real tokens (1 = no padding)"),
        ("mix", f"distance of a window of {window} batches from the data set's token-weighted lengths (0 = the same)"),
        ("pairs repeated", "of the pairs of samples in one batch, the share that share one in the next epoch too"),
        (
            "neighbours",
            "correlation of the lengths of neighbouring batches; longest run: most in a row from one bucket",
        ),
        ("slowest", f"padded tokens of the slowest of {world_size} ranks over their mean, per step"),
        ("speed", f"predicted real tokens per second: {basis}, and speed follows padded tokens"),
    ]
    if times:
        head += ["build ms", "plan ms"]
        for cells, row in zip(body, rows, strict=True):
            cells += [f"{row.construct_ms:.1f}", f"{row.plan_ms:.1f}"]
        legend.append(("build, plan", "Planner(lengths) once; Planner.plan(seed, epoch), median"))
    return Table("Strategies", tuple(head), tuple(map(tuple, body)), tuple(legend), own=len(body) - 1)


def predicted_speeds(rows: Sequence[Row], measured: tuple[str, float] | None = None) -> list[float]:
    """Returns the real tokens per second that the batches of each row are predicted to run at.

    Args:
        rows: what `compare` returned; the first is that of sorted batches.
        measured: the name of a row and its speed, in any unit. None: the speed of sorted batches is 1.

    Raises:
        ValueError: `measured` names no row.
    """
    name, speed = (rows[0].name, SORTED_SPEED) if measured is None else measured
    padding = {row.name: row.metrics.padding_ratio for row in rows}
    if name not in padding:
        raise ValueError(f"measured = {name!r} is not a strategy; choose one of {', '.join(map(repr, padding))}")
    return [predicted_throughput(ratio, speed, padding[name]) for ratio in padding.values()]
