"""A report on a terminal: rich tables where rich is installed and somebody looks, plain text everywhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from bucketshuffle.report.report import Report
    from bucketshuffle.report.tables import Table


def show(report: Report) -> None:
    """Prints a report on stdout."""
    if not sys.stdout or not sys.stdout.isatty():
        print(report)
        return
    try:
        from rich.console import Console
        from rich.padding import Padding
        from rich.text import Text
    except ImportError:
        print(report)
        return
    console = Console(highlight=False)
    first, *others = report.summary()
    console.print(Text(first, "bold"))
    for line in others:
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    for table in report.tables():
        console.print()
        _print_table(console, table)
    for sentence in report.advice:
        console.print()
        console.print(Text.assemble(("note: ", "bold yellow"), sentence))


def _print_table(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    console.print(Text(table.title, "bold"))
    for columns in _parts(table, console.width):
        shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i in columns:
            shown.add_column(table.head[i], justify="right" if i else "left", no_wrap=i == 0)
        for i, cells in enumerate(table.rows):
            shown.add_row(*(Text(cells[c]) for c in columns), style="bold green" if i == table.own else None)
        console.print(shown)
    for name, meaning in table.legend:
        console.print(Text.assemble((f"{name}  ", "cyan"), (meaning, "dim")))


def _parts(table: Table, width: int) -> list[list[int]]:
    """The columns of each part of a table that is too wide to be shown as one; all parts begin with the first."""
    # A head wraps between words, a cell does not.
    needed = [
        2 + max(map(len, [*head.split(), *cells]), default=0)
        for head, cells in zip(table.head, zip(*table.rows, strict=True), strict=True)
    ]
    parts = [[0]]
    for column in range(1, len(needed)):
        if sum(needed[i] for i in parts[-1]) + needed[column] > width - 2 and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(column)
    return parts
