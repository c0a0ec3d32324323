"""A report: everything that the lengths alone tell about a training run, before it begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bucketshuffle.epoch_plan import EpochPlan
from bucketshuffle.fields import as_fields, sample_tokens
from bucketshuffle.metrics import heaviest_over_mean
from bucketshuffle.plan import Planner
from bucketshuffle.report import advice
from bucketshuffle.report.compare import N_THREADS, Row, compare, notes, six_edges, strategies
from bucketshuffle.report.curves import Curves
from bucketshuffle.report.distribution import Distribution
from bucketshuffle.report.sweeps import (
    Point,
    budgets_table,
    repeat_weights_table,
    sweep_budgets,
    sweep_repeat_weights,
)
from bucketshuffle.report.tables import Table, predicted_speeds, strategies_table
from bucketshuffle.shapes import as_plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_N_SAMPLES = 500_000  # to plan under each strategy, where the data set is smaller


@dataclasses.dataclass(frozen=True)
class Heaviest:
    """The batch that costs most: the one that runs out of memory first."""

    batch: int
    """Its place in epoch 0."""
    n_samples: int
    padded_length: int | tuple[int, ...]
    """Tokens of a row."""
    cost: int
    """Tokens."""
    over_mean: float
    """Its cost over the mean cost of a batch."""


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """Lengths, strategies side by side, and what other options would change; made by `Report.of`.

    >>> from bucketshuffle.data import dflash902k
    >>> from bucketshuffle.report import Report
    >>> report = Report.of(dflash902k()[:20_000], token_budget=65_536, window=16)
    >>> [row.name for row in report.strategies]
    ['sorted', 'random', 'six buckets', 'bucketshuffle']
    """

    name: str
    """What the lengths are called."""
    options: Mapping[str, Any]
    """Every option of the user's plan."""
    seed: int
    n_epochs: int
    """Epochs that the strategies were compared over."""
    window: int
    """Batches between two optimizer updates, over all ranks."""
    world_size: int
    """Ranks that share a step."""
    measured: tuple[str, float] | None
    """A strategy and the speed that it was measured at."""
    distribution: Distribution
    strategies: tuple[Row, ...]
    """Empty where no sample is left to plan; so are the sweeps and curves."""
    speeds: tuple[float, ...]
    """Predicted real tokens per second of each strategy, in the unit of `measured`; else sorted batches = 1."""
    n_dropped: int
    """Samples that the user's plan leaves out."""
    heaviest: Heaviest | None
    """Of the user's plan."""
    budgets: tuple[Point, ...]
    repeat_weights: tuple[Point, ...]
    curves: Curves
    advice: tuple[str, ...]
    """A sentence for each figure that is worth a change."""

    @classmethod
    def of(
        cls,
        lengths: Any,
        *,
        name: str = "lengths",
        seed: int = 0,
        n_epochs: int | None = None,
        window: int = 64,
        world_size: int = 8,
        measured: tuple[str, float] | None = None,
        **options: Any,
    ) -> Report:
        """Returns the report of some lengths. Over-long and empty samples are left out and reported, unless `overlong`
        or `empty` says otherwise.

        Args:
            lengths: [n_samples], integer, tokens per sample, or several fields, as for `pack_epoch`. The figures of
                several are of their sums.
            name: what the lengths are called in the report.
            seed: see `pack_epoch`.
            n_epochs: epochs of each strategy to plan, 2 or more. None: 2 to 32, about half a million samples, since the
                figures of a few batches differ from epoch to epoch.
            window: batches between two optimizer updates, over all ranks.
            world_size: ranks that share a step.
            measured: the name of a strategy (`"sorted"`, `"random"`, `"six buckets"`, `"bucketshuffle"`,
                `"your options"`) and the real tokens per second that its batches ran at, in any unit.
            options: further options of `pack_epoch`: those of the user's plan.

        Raises:
            TypeError, ValueError: as `pack_epoch`; no lengths at all; `measured` names no strategy.
        """
        values, names = as_fields(lengths)
        lengths = values if names is None else dict(zip(names, values.T, strict=True))  # read once
        tokens = sample_tokens(values)
        if not len(tokens):
            raise ValueError("lengths has 0 samples, fewer than the 1 that a report needs; pass one length per sample")
        options = {"overlong": "drop", "empty": "drop", **options}
        found = Distribution.of(tokens)
        n_epochs = min(max(2, _N_SAMPLES // len(tokens)), 32) if n_epochs is None else n_epochs
        shape: dict[str, Any] = {"seed": seed, "n_epochs": n_epochs, "window": window, "world_size": world_size}
        rows = compare(lengths, **shape, n_threads=N_THREADS, **options)
        speeds = predicted_speeds(rows, measured)
        planners = strategies(lengths, window=window, **options)
        own = Planner(lengths, **planners[rows[-1].name])
        plan = own.plan(seed)
        admitted = np.asarray(options.get("admitted", np.ones(len(tokens), np.bool_)))
        by_length = plan.dropped[admitted[plan.dropped]]
        words = list(advice.of_lengths(tokens, found, own.options["token_budget"], by_length))
        given = {**shape, "name": name, "options": own.options, "measured": measured}
        given |= {"distribution": found, "n_dropped": len(plan.dropped)}
        if not len(plan):
            given |= {"strategies": (), "speeds": (), "heaviest": None, "budgets": (), "repeat_weights": ()}
            return cls(**given, curves=Curves((), (), {}, {}, {}), advice=tuple(words))
        if found.n_distinct > 1:
            if values.ndim == 1:
                words += advice.of_edges("the six buckets", six_edges(tokens), tokens)
            if isinstance(options.get("boundaries"), (list, tuple, np.ndarray)):
                words += advice.of_edges("boundaries", options["boundaries"], tokens)
        words += notes(lengths, seed=seed, window=window, **options)
        words += advice.of_plan(rows[-1].metrics, rows[0].metrics, rows[1].metrics, plan, window, own.options)
        return cls(
            **given,
            strategies=tuple(rows),
            speeds=tuple(speeds),
            heaviest=_heaviest(plan),
            budgets=sweep_budgets(lengths, seed=seed, window=window, **options),
            repeat_weights=sweep_repeat_weights(lengths, seed=seed, window=window, **options),
            curves=Curves.of(lengths, planners, window=window, seed=seed),
            advice=tuple(words),
        )

    def summary(self) -> tuple[str, ...]:
        """Returns what the lengths and one epoch of the user's plan are, a sentence each."""
        found = self.distribution
        lines = [f"{self.name}: {found.n_samples:,} samples, {found.tokens:,} tokens"]
        if self.heaviest is None:
            return tuple(lines)
        ours, worst = self.strategies[-1].metrics, self.heaviest
        n_batches, n_samples = round(ours.n_batches), found.n_samples - self.n_dropped
        update = f"fewer than the {self.window:,} of an update"
        if n_batches >= self.window:
            update = f"{_counted(-(-n_batches // self.window), 'update')} of {_counted(self.window, 'batch')}, "
            update += f"each of about {n_samples * self.window / n_batches:,.0f} samples"
        lines += [
            f"an epoch has {_counted(n_batches, 'batch')} of {n_samples / n_batches:,.1f} samples on average: "
            f"{_counted(-(-n_batches // self.world_size), 'step')} of {_counted(self.world_size, 'rank')}, {update}",
            f"batches fill {ours.fill:.1%} of token_budget = {self.options['token_budget']:,} and pad "
            f"{ours.padding_ratio - 1:.2%}; sorted ones pad {self.strategies[0].metrics.padding_ratio - 1:.2%}",
            f"batch {worst.batch:,} costs most: {worst.n_samples:,} samples padded to {_tokens(worst.padded_length)}, "
            f"a cost of {worst.cost:,}, {worst.over_mean:.2f} times the mean",
        ]
        return tuple(lines)

    def tables(self) -> tuple[Table, ...]:
        """Returns all figures as tables."""
        tables = self.distribution.tables()
        if self.heaviest is None:
            return tables
        shown: dict[str, Any] = {"window": self.window, "world_size": self.world_size, "measured": self.measured}
        return (
            *tables,
            strategies_table(self.strategies, **shown),
            budgets_table(self.budgets, self.window),
            repeat_weights_table(self.repeat_weights),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns all figures as plain values, for JSON; what is not defined is None."""
        return {**dataclasses.asdict(self), "options": dict(self.options)}

    def to_html(self) -> str:
        """Returns one page with tables and plots that needs no network; it is light or dark as the browser is.

        Raises:
            ImportError: matplotlib is missing; the extra `bucketshuffle[report]` has it.
        """
        from bucketshuffle.report.page import page

        return page(self)

    def figure(self, plot: str | None = None) -> Figure:
        """Returns the plots as one matplotlib figure; call `savefig` on it, or let a notebook show it.

        Args:
            plot: one of `bucketshuffle.report.draw.PLOTS`, by itself. None: all.

        Raises:
            ImportError: matplotlib is missing; the extra `bucketshuffle[report]` has it.
            ValueError: no such plot, or no sample is left to plan.
        """
        from bucketshuffle.report.draw import figure

        return figure(self, plot)

    def __str__(self) -> str:
        parts = ["\n".join(self.summary()), *(table.to_text() for table in self.tables())]
        return "\n\n".join([*parts, *(f"note: {sentence}" for sentence in self.advice)])

    def __repr__(self) -> str:
        return f"<Report of {self.name}: {self.distribution.n_samples:,} samples, {len(self.advice)} notes>"

    def _repr_html_(self) -> str:
        from bucketshuffle.report.page import fragment

        return fragment(self)


def _tokens(padded_length: int | tuple[int, ...]) -> str:
    of_fields = (padded_length,) if isinstance(padded_length, int) else padded_length
    return " and ".join(f"{tokens:,}" for tokens in of_fields)


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def _heaviest(plan: EpochPlan) -> Heaviest:
    batch = int(plan.costs.argmax())
    return Heaviest(
        batch=batch,
        n_samples=len(plan[batch]),
        padded_length=as_plain(plan.padded_lengths[batch]),
        cost=int(plan.costs[batch]),
        over_mean=heaviest_over_mean(plan),
    )
