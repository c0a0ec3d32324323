"""A report on a terminal: rich tables where rich is installed and somebody looks, plain text everywhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def _print_table(console, table: Table) -> None:  # type: ignore[no-untyped-def]  # rich is not always there
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(table.head):
        shown.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for cells in table.rows:
        shown.add_row(*map(Text, cells), style="bold green" if table.is_own(cells) else None)
    console.print(shown)
    for name, meaning in table.legend:
        console.print(Text.assemble((f"{name}  ", "cyan"), (meaning, "dim")))
