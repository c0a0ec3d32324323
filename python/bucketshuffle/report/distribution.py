"""The distribution of lengths: percentiles, and counts by range, from which boundaries are chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bucketshuffle.fields import sample_tokens
from bucketshuffle.report.tables import Table

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_MAX_RANGES = 16


@dataclasses.dataclass(frozen=True)
class Range:
    """The samples with `above < length <= up_to`."""

    above: int
    up_to: int
    n_samples: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class Distribution:
    """What the lengths are, before any plan."""

    n_samples: int
    tokens: int
    """Of all samples."""
    shortest: int
    """Tokens; 0 where there are no samples, as in `longest` and `mean`."""
    longest: int
    mean: float
    n_empty: int
    """Samples of length 0."""
    n_distinct: int
    """Distinct lengths."""
    percentiles: dict[int, int]
    """Tokens by per cent: the shortest length that so many per cent of the samples do not exceed."""
    ranges: tuple[Range, ...]
    """All samples but the empty ones; the edges are powers of two and, where that gives few ranges, 1.5 times these."""
    most_frequent: int
    """The length that most samples have."""
    n_most_frequent: int
    """Samples of that length."""

    @classmethod
    def of(cls, lengths: Any) -> Distribution:
        """Returns the distribution of `lengths`, [n_samples], integer, tokens per sample. No overflow at any size.

        Raises:
            TypeError, ValueError: `lengths` are none; see `bucketshuffle.fields.as_fields`.
        """
        values, counts = np.unique(sample_tokens(lengths), return_counts=True)
        if not len(values):
            return cls(0, 0, 0, 0, 0.0, 0, 0, {}, (), 0, 0)
        up_to = np.cumsum(counts)
        n_samples = int(up_to[-1])
        tokens = _tokens(values, counts)
        mode = int(counts.argmax())
        return cls(
            n_samples=n_samples,
            tokens=tokens,
            shortest=int(values[0]),
            longest=int(values[-1]),
            mean=tokens / n_samples,
            n_empty=int(counts[0]) if values[0] == 0 else 0,
            n_distinct=len(values),
            percentiles={p: int(values[np.searchsorted(up_to, -(-n_samples * p // 100))]) for p in PERCENTILES},
            ranges=_ranges(values, counts),
            most_frequent=int(values[mode]),
            n_most_frequent=int(counts[mode]),
        )

    def tables(self) -> tuple[Table, Table]:
        """Returns the percentiles and the counts by range."""
        names = ["shortest", *(f"{p} %" for p in self.percentiles), "longest", "mean"]
        figures = [self.shortest, *self.percentiles.values(), self.longest, round(self.mean)]
        percentiles = Table("Lengths: percentiles", ("", *names), (("tokens", *(f"{n:,}" for n in figures)),))
        below = 0
        rows = []
        for part in self.ranges:
            below += part.n_samples
            rows.append(
                (
                    f"{part.above:,} < length <= {part.up_to:,}",
                    f"{part.n_samples:,}",
                    f"{part.n_samples / self.n_samples:.1%}",
                    f"{(below + self.n_empty) / self.n_samples:.1%}",
                    f"{part.tokens / max(self.tokens, 1):.1%}",
                )
            )
        if self.n_empty:
            share = f"{self.n_empty / self.n_samples:.1%}"
            rows.insert(0, ("length = 0", f"{self.n_empty:,}", share, share, "0.0%"))
        head = ("range", "samples", "share", "so far", "share of tokens")
        return percentiles, Table("Lengths: counts by range", head, tuple(rows))


def _ranges(values: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> tuple[Range, ...]:
    values, counts = values[values > 0], counts[values > 0]
    if not len(values):
        return ()
    low, high = int(values[0] - 1).bit_length() - 1, int(values[-1] - 1).bit_length()
    octaves = [1 << k for k in range(max(low, 0), high + 1)]
    edges = sorted({*octaves, *(edge * 3 // 2 for edge in octaves[:-1] if edge > 1)})
    if len(edges) > _MAX_RANGES:
        edges = octaves
    if values[0] <= edges[0]:
        edges.insert(0, 0)
    places = np.searchsorted(values, edges, "right")
    parts = [
        Range(above, up_to, int(counts[first:last].sum()), _tokens(values[first:last], counts[first:last]))
        for above, up_to, first, last in zip(edges, edges[1:], places, places[1:], strict=False)
    ]
    # Half an octave at either end may hold nothing.
    held = [i for i, part in enumerate(parts) if part.n_samples]
    return tuple(parts[held[0] : held[-1] + 1])


def _tokens(values: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> int:
    if len(values) and float(values[-1]) * float(counts.sum()) >= 2**62:
        return sum(value * count for value, count in zip(values.tolist(), counts.tolist(), strict=True))
    return int(values.astype(np.int64) @ counts)
