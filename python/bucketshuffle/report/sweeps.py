"""What another budget or another `repeat_weight` would change."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bucketshuffle.fields import as_fields
from bucketshuffle.metrics import pairs_repeated, window_mix
from bucketshuffle.plan import Planner
from bucketshuffle.report.compare import on_threads
from bucketshuffle.report.tables import Table

REPEAT_WEIGHTS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 8.0)
"""The weights of a sweep: from sorted order to much fresher batches."""
BUDGET_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The budgets of a sweep, as shares of the user's."""
_MAX_SAMPLES = 200_000  # pairs are counted on so many: 2 % of the figure


@dataclasses.dataclass(frozen=True)
class Point:
    """A plan at one place of a sweep."""

    value: float
    """The option that the sweep changes."""
    is_own: bool
    """Whether it is the user's."""
    n_batches: int
    """Batches of epoch 0."""
    n_dropped: int
    """Samples left out."""
    padding_ratio: float
    """Padded tokens / real tokens, mean of epochs 0 and 1."""
    over_sorted: float
    """Padded tokens over those of sorted batches under the same budget, minus 1."""
    pairs_repeated: float
    """Of the pairs of samples in one batch of epoch 0, the share that share one in epoch 1; see `metrics`."""
    mix: float | None = None
    """See `bucketshuffle.metrics.window_mix`, of epoch 0; None below two windows, and in a sweep of weights."""


def sweep_budgets(
    lengths: Any, *, budgets: Iterable[int] | None = None, seed: int = 0, window: int = 64, **options: Any
) -> tuple[Point, ...]:
    """Returns a plan for each budget, in ascending order.

    Args:
        lengths: [n_samples], tokens per sample.
        budgets: values of `token_budget`. None: `BUDGET_FACTORS` times the user's, and none at which samples are
            over-long that the user's budget admits.
        seed: see `pack_epoch`.
        window: batches between two optimizer updates, over all ranks.
        options: the user's other options of `pack_epoch`.

    Raises:
        TypeError, ValueError: as `pack_epoch`.
    """
    own = Planner(lengths, window=window, **options)
    budget = own.options["token_budget"]
    if budgets is None:
        kept = np.delete(as_fields(lengths)[0], own.dropped, axis=0)
        costs = own.batch_cost(np.ones(len(kept), np.int64), kept)
        least = min(int(costs.max(initial=0)), budget)
        budgets = (int(budget * factor) for factor in BUDGET_FACTORS if least <= budget * factor < 2**63)

    def point(value: int) -> Point:
        given = {**options, "token_budget": value}
        least = _sorted_tokens(lengths, seed, given)
        return _point(lengths, value, value == budget, seed, least, {**given, "window": window}, window)

    return on_threads(point, sorted({budget, *budgets}))


def sweep_repeat_weights(
    lengths: Any, *, weights: Iterable[float] = REPEAT_WEIGHTS, seed: int = 0, window: int = 64, **options: Any
) -> tuple[Point, ...]:
    """Returns a plan of soft buckets for each weight and the user's own, in ascending order: what less repetition costs
    in padding.

    Args:
        lengths: [n_samples], tokens per sample.
        weights: values of `repeat_weight`.
        seed: see `pack_epoch`.
        window: batches between two optimizer updates, over all ranks.
        options: the user's other options of `pack_epoch`. Where these are not of soft buckets with a weight, no point
            is marked as the user's.

    Raises:
        TypeError, ValueError: as `pack_epoch`.
    """
    own = Planner(lengths, window=window, **options).options
    options = {name: value for name, value in options.items() if name not in ("boundaries", "strategy")}
    has_weight = options.pop("padding_target", None) is None and own["strategy"] == "bucketed"
    weight = own["repeat_weight"] if has_weight and own["boundaries"] == "auto" else None
    least = _sorted_tokens(lengths, seed, options)

    def point(value: float) -> Point:
        given = {**options, "window": window, "repeat_weight": value}
        return _point(lengths, value, value == weight, seed, least, given)

    return on_threads(point, sorted({*weights, *([] if weight is None else [weight])}))


def _sorted_tokens(lengths: Any, seed: int, options: dict[str, Any]) -> int:
    """Padded tokens of sorted batches."""
    cost = {name: value for name, value in options.items() if name not in _ORDER}
    return Planner(lengths, **cost, strategy="sorted").plan(seed).stats.padded_tokens


_ORDER = ("strategy", "boundaries", "align_ranks", "constant_count", "repeat_weight", "padding_target")


def _point(
    lengths: Any, value: float, is_own: bool, seed: int, least: int, options: dict[str, Any], mix_of: int | None = None
) -> Point:
    planner = Planner(lengths, **options)
    first, second = planner.plan(seed, 0), planner.plan(seed, 1)
    padded_tokens = statistics.fmean(plan.stats.padded_tokens for plan in (first, second))
    return Point(
        value=value,
        is_own=is_own,
        n_batches=len(first),
        n_dropped=len(first.dropped),
        padding_ratio=statistics.fmean(plan.stats.padding_ratio for plan in (first, second)),
        over_sorted=padded_tokens / least - 1 if least else 0.0,
        pairs_repeated=pairs_repeated(first, second, max_samples=_MAX_SAMPLES),
        mix=window_mix(first, lengths, mix_of) if mix_of is not None and len(first) >= 2 * mix_of else None,
    )


def budgets_table(points: Sequence[Point], window: int) -> Table:
    """Returns a sweep of budgets as a table; a star marks the user's."""
    head = ("token budget", "batches", f"updates of {window}", "padded / real", "over sorted", "pairs repeated", "mix")
    rows = [
        (
            f"{point.value:,}{' *' if point.is_own else ''}",
            f"{point.n_batches:,}",
            f"{-(-point.n_batches // window):,}",
            f"{point.padding_ratio:.4f}",
            f"{point.over_sorted:.2%}",
            f"{point.pairs_repeated:.2%}",
            "-" if point.mix is None else f"{point.mix:.4f}",
        )
        for point in points
    ]
    return Table("Other budgets (* yours)", head, tuple(rows), own=_own(points))


def repeat_weights_table(points: Sequence[Point]) -> Table:
    """Returns a sweep of `repeat_weight` as a table; a star marks the user's."""
    head = ("repeat_weight", "padded / real", "over sorted", "pairs repeated")
    rows = [
        (
            f"{point.value:g}{' *' if point.is_own else ''}",
            f"{point.padding_ratio:.4f}",
            f"{point.over_sorted:.2%}",
            f"{point.pairs_repeated:.2%}",
        )
        for point in points
    ]
    return Table("Padding against repetition (* yours)", head, tuple(rows), own=_own(points))


def _own(points: Sequence[Point]) -> int | None:
    return next((i for i, point in enumerate(points) if point.is_own), None)
