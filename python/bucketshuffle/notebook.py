"""What a notebook shows of an object: a small table, in the notebook's own style."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping


def html_table(title: str, facts: Mapping[str, str | None], notes: Iterable[str] = ()) -> str:
    """Returns a table of facts by name, and the notes under it; a fact that is None is left out."""
    rows = "".join(
        f'<tr><th style="text-align: left">{html.escape(name)}</th>'
        f'<td style="text-align: left">{html.escape(fact)}</td></tr>'
        for name, fact in facts.items()
        if fact is not None
    )
    words = "".join(f"<p>note: {html.escape(note)}</p>" for note in notes)
    return f"<div><b>{html.escape(title)}</b><table><tbody>{rows}</tbody></table>{words}</div>"
