"""One epoch of padded batches as NumPy index arrays."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from bucketshuffle import _core
from bucketshuffle.data.plan_file import read_plan, write_plan
from bucketshuffle.metrics import Metrics, of_epochs, pairs_repeated
from bucketshuffle.notebook import html_table
from bucketshuffle.shapes import n_shapes, row_tokens
from bucketshuffle.stats import TOTALS, DomainStats, Stats


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EpochPlan:
    """One epoch: all batches, in order. A sequence of index arrays; all arrays are read-only.

    Examples:
        >>> from bucketshuffle import pack_epoch
        >>> plan = pack_epoch([5, 3, 8, 5, 3, 8], seed=0, token_budget=16)
        >>> [batch.tolist() for batch in plan] == [plan[b].tolist() for b in range(len(plan))]
        True
    """

    indices: npt.NDArray[np.int64]
    """[n_used], int64: sample indices; batch `b` is `indices[offsets[b]:offsets[b + 1]]`."""
    offsets: npt.NDArray[np.int64]
    """[n_batches + 1], int64: positions in `indices`."""
    padded_lengths: npt.NDArray[np.int64]
    """[n_batches], int64: tokens of a row of the padded batch. [n_batches, n_fields] with several fields."""
    costs: npt.NDArray[np.int64]
    """[n_batches], int64: cost of the batch under the cost model, tokens; at most 2^63 - 1."""
    buckets: npt.NDArray[np.int32]
    """[n_batches], int32: the bucket of the largest sample of each batch; -1: an over-long sample, kept by itself."""
    boundaries: npt.NDArray[np.int64]
    """[n_buckets + 1], int64, tokens: bucket `i` holds `boundaries[i] < length <= boundaries[i + 1]`; with several
    fields, the combined length."""
    dropped: npt.NDArray[np.int64]
    """[n_dropped], int64: the samples left out, ascending."""
    seed: int
    epoch: int
    order_version: int
    """The order contract that made the plan."""
    _totals: dict[str, int] = dataclasses.field(repr=False)
    """The totals of `stats` that the arrays do not tell."""
    field_names: tuple[str, ...] | None = None
    """The names of several fields, in the order of `padded_lengths`, where a mapping of lengths gave them."""
    domains: npt.NDArray[np.int64] | None = None
    """[n_batches], int64: the domain of each batch; None without domains. Then `boundaries` holds the edges of one
    domain after the other, in ascending order of domains."""
    _domain_tokens: dict[int, int] | None = dataclasses.field(default=None, repr=False)
    """Tokens of the samples of each domain."""

    def __post_init__(self) -> None:
        for array in self._arrays().values():
            array.flags.writeable = False

    @classmethod
    def _from_core(
        cls, fields: dict[str, Any], seed: int, epoch: int, field_names: tuple[str, ...] | None
    ) -> EpochPlan:
        return cls(
            **fields, seed=int(seed), epoch=int(epoch), order_version=_core.ORDER_VERSION, field_names=field_names
        )

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, batch: SupportsIndex) -> npt.NDArray[np.int64]:
        """Returns the sample indices of one batch, [B], int64, a view."""
        if isinstance(batch, slice):
            raise TypeError(f"batch = {batch} is not an integer; for several batches slice list(plan)")
        b = range(len(self))[batch]
        return self.indices[self.offsets[b] : self.offsets[b + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[np.int64]]:
        start = 0
        for end in self.offsets[1:].tolist():
            yield self.indices[start:end]
            start = end

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpochPlan):
            return NotImplemented
        mine, theirs = vars(self), vars(other)
        return all(np.array_equal(mine[field.name], theirs[field.name]) for field in dataclasses.fields(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"EpochPlan(seed={self.seed}, epoch={self.epoch}, n_samples={len(self.indices)}, n_batches={len(self)}, "
            f"padding_ratio={self._padding_ratio:.4f})"
        )

    def _repr_html_(self) -> str:
        stats = self.stats
        facts = {
            "epoch": f"{self.epoch:,} of seed {self.seed:,}",
            "batches": f"{stats.n_batches:,} of {stats.n_samples:,} samples, {stats.n_shapes:,} shapes",
            "padded / real": f"{stats.padding_ratio:.4f}",
            "tokens": f"{stats.real_tokens:,} real, {stats.padded_tokens:,} padded, {stats.fill:.1%} of the budget",
            "left out": f"{stats.n_dropped:,} samples, {stats.dropped_tokens:,} tokens" if stats.n_dropped else None,
        }
        return html_table(type(self).__name__, facts, stats.notes)

    @property
    def row_tokens(self) -> npt.NDArray[np.int64]:
        """[n_batches], int64: tokens of a row of the padded batch, over all fields."""
        return row_tokens(self.padded_lengths)

    @property
    def _padding_ratio(self) -> float:
        real_tokens = self._totals["real_tokens"]
        return self._totals["padded_tokens"] / real_tokens if real_tokens else 1.0

    def __reduce__(self) -> tuple[type[EpochPlan], tuple[Any, ...]]:
        # Through the constructor, since pickle forgets that an array is read-only.
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @functools.cached_property
    def stats(self) -> Stats:
        """Totals of the plan; computed when first asked for."""
        budget_tokens = self._totals["budget_tokens"]
        return Stats(
            n_samples=len(self.indices),
            n_batches=len(self),
            padding_ratio=self._padding_ratio,
            fill=self._totals["cost"] / budget_tokens if budget_tokens else 0.0,
            n_shapes=n_shapes(np.diff(self.offsets), self.padded_lengths),
            n_dropped=len(self.dropped),
            **self._totals,
        )

    def metrics(
        self, lengths: Any, *, window: int | None = None, world_size: int = 1, next_plan: EpochPlan | None = None
    ) -> Metrics:
        """Returns what the plan is worth: padding, mix, order, balance of ranks and, with the plan of the next epoch,
        repetition.

        Args:
            lengths: [n_samples], tokens per sample, that the plan was made from.
            window: batches between two optimizer updates, over all ranks. None: the plan's option.
            world_size: ranks that share a step.
            next_plan: the plan of the next epoch, for `Metrics.pairs_repeated`.

        Raises:
            TypeError, ValueError: as `bucketshuffle.metrics.of_epochs` and `pairs_repeated`.

        Examples:
            >>> from bucketshuffle import Planner
            >>> lengths = [5, 3, 8, 5, 3, 8]
            >>> planner = Planner(lengths, token_budget=16)
            >>> planner.plan(0, 0).metrics(lengths, next_plan=planner.plan(0, 1)).pairs_repeated
            0.25
        """
        window = self.stats.window if window is None else window
        figures = of_epochs([self], lengths, window=window, world_size=world_size)
        if next_plan is None:
            return figures
        return dataclasses.replace(figures, pairs_repeated=pairs_repeated(self, next_plan))

    @property
    def domain_stats(self) -> dict[int, DomainStats]:
        """The figures of each domain; empty without domains."""
        if self.domains is None or self._domain_tokens is None:
            return {}
        return {
            value: DomainStats.of(self.domains == value, np.diff(self.offsets), self.row_tokens, real_tokens)
            for value, real_tokens in self._domain_tokens.items()
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to `path` as an `.npz` file; `path` then holds either all of it or what it held before.

        Raises:
            OSError: the folder cannot be written to, or is full.
            ValueError: `path` is no regular file, such as a pipe.
        """
        scalars = {"seed": self.seed, "epoch": self.epoch, "order_version": self.order_version, "_totals": self._totals}
        if self.field_names is not None:
            scalars["field_names"] = self.field_names
        if self._domain_tokens is not None:
            scalars["_domain_tokens"] = list(self._domain_tokens.items())
        write_plan(path, self._arrays(), scalars)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EpochPlan:
        """Returns the plan that `save` wrote to `path`.

        Raises:
            OSError: no such file, or one that may not be read.
            ValueError: the file holds no plan.
        """
        return cls(**read_plan(path, TOTALS))
