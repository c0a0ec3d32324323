"""A report as HTML: one page with plots, or a fragment of tables for notebooks."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bucketshuffle.report.report import Report
    from bucketshuffle.report.tables import Table

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --faint: #667084; --rule: #d5dae3;
  --mark: #eef3fd; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ef; --paper: #14181f; --faint: #98a2b3; --rule: #343c49; --mark: #1d2a41; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, li { overflow-wrap: anywhere; }
.notes { background: var(--mark); border-left: 4px solid #2f6fde; padding: .75rem 1rem .75rem 2rem; margin: 1rem 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem; }
.plots figure { margin: 0; }
.plots svg { width: 100%; height: auto; display: block; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.own { background: var(--mark); font-weight: 600; }
dl { color: var(--faint); font-size: .85rem; display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; }
dd { margin: 0; }
"""
# The colour of text and axes in a plot, replaced by the page's.
_INK = "#010203"


def page(report: Report) -> str:
    """Returns one page that needs no network; see `Report.to_html`."""
    title = html.escape(f"{report.name}: batches by length")
    plots = ""
    if report.heaviest is not None:
        plots = f'<h2>Plots</h2>\n<div class="plots">\n{_plots(report)}\n</div>\n'
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{_words(report, 'h1')}\n{plots}{_tables(report)}\n</main>\n"
        "</body>\n</html>\n"
    )


def fragment(report: Report) -> str:
    """Returns the words and tables without a page around them, in the style of the notebook that shows them."""
    return f"<div>\n{_words(report, 'h4')}\n{_tables(report)}\n</div>"


def _words(report: Report, heading: str) -> str:
    first, *others = map(html.escape, report.summary())
    lines = [f"<{heading}>{first}</{heading}>", *(f"<p>{line[0].upper()}{line[1:]}.</p>" for line in others)]
    if report.advice:
        items = "".join(f"<li>{html.escape(sentence)}</li>\n" for sentence in report.advice)
        lines.append(f'<ul class="notes">\n{items}</ul>')
    return "\n".join(lines)


def _tables(report: Report) -> str:
    return "\n".join(map(_table, report.tables()))


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.head)
    rows = "\n".join(
        f"<tr{' class=own' if i == table.own else ''}>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for i, cells in enumerate(table.rows)
    )
    legend = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(words)}</dd>\n" for name, words in table.legend)
    return (
        f'<h2>{html.escape(table.title)}</h2>\n<div class="table" tabindex="0">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n"
        + (f"<dl>\n{legend}</dl>" if legend else "")
    )


def _plots(report: Report) -> str:
    from bucketshuffle.report.draw import PLOTS  # says what to install

    return "\n".join(f"<figure>\n{_svg(report, plot)}\n</figure>" for plot in PLOTS)


def _svg(report: Report, plot: str) -> str:
    """A plot whose text is text and whose ink is the page's."""
    import matplotlib

    ink = dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor"), _INK
    )
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": plot, "font.family": "sans-serif", "font.size": 11, **ink}
    with matplotlib.rc_context(options):
        file = io.StringIO()
        report.figure(plot).savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "var(--ink)")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[a-z0-9]+_[0-9]+"', "", svg)  # names of parts, the same in every plot
    svg = re.sub(r' (width|height)="[0-9.]+pt"', "", svg, count=2)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(plot)}"', 1).rstrip()
