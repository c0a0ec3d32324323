"""How far a long read is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_LINE_EVERY_S = 30.0


@contextlib.contextmanager
def progress(name: str, total: int | None, unit: str) -> Iterator[Callable[[int], object]]:
    """Shows on stderr how far a read is; what it yields is called with the units done since the last call.

    Args:
        name: what the line begins with.
        total: units to do; None: not known.
        unit: what is counted, such as "rows".
    """
    if sys.stderr is not None and sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            # A thousand rows are 1k of them; a thousand bytes are 1 kB.
            with tqdm(desc=name, total=total, unit="B" if unit == "bytes" else f" {unit}", unit_scale=True) as bar:
                yield bar.update
            return
    yield _Lines(name, total, unit).update


class _Lines:
    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._done, self._said_at = 0, time.monotonic()

    def update(self, n: int) -> None:
        self._done += n
        if time.monotonic() - self._said_at >= _LINE_EVERY_S:
            self._said_at = time.monotonic()
            of = "" if not self._total else f" of {self._total:,} ({self._done / self._total:.0%})"
            print(f"{self._name}: {self._done:,}{of} {self._unit}", file=sys.stderr, flush=True)
