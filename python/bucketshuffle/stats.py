"""The figures of a plan, and of each of its domains."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Stats:
    """Totals of a plan. Tokens are counted as the budget counts them: padded, over all samples of a batch."""

    n_samples: int
    """Samples in the plan."""
    n_batches: int
    """Batches in the plan."""
    real_tokens: int
    """Tokens of all planned samples."""
    padded_tokens: int
    """`B * L`, summed over the batches and over the fields."""
    cost: int
    """Cost of all batches under the cost model, tokens; `padded_tokens` unless the model has more terms."""
    budget_tokens: int
    """`n_batches * token_budget`."""
    padding_ratio: float
    """`padded_tokens / real_tokens`; 1.0 for an empty plan."""
    fill: float
    """`cost / budget_tokens`; 0.0 for an empty plan."""
    n_shapes: int
    """Distinct shapes `(B, L)`; with several fields, of all their `L` together."""
    n_dropped: int
    """Samples left out."""
    dropped_tokens: int
    """Tokens of the samples left out."""
    closed_by_budget: int
    """Batches that one more sample would have taken over `token_budget`."""
    closed_by_max_batch_size: int
    """Batches that one more sample would have taken over `max_batch_size` alone."""
    closed_by_bucket_end: int
    """Batches that ended with their bucket."""
    n_splits: int
    """Batches added by splitting, for `constant_count`."""
    window: int
    """Batches of a window: the option."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for every figure that is worth a change of the options."""
        notes = []
        n_packed = self.n_batches - self.n_splits
        if self.n_splits > max(1, 0.05 * n_packed):
            notes.append(
                f"constant_count splits {n_packed:,} batches into {self.n_batches:,}, a multiple of window = "
                f"{self.window:,}: they fill {self.fill:.0%} of token_budget and pad {self.padding_ratio - 1:.1%}; "
                "lower window (in a sampler: world_size * accumulation_steps) or token_budget"
            )
        if self.window > self.n_batches > 0:
            notes.append(
                f"window = {self.window:,} exceeds the {self.n_batches:,} batches of the epoch, which come in random "
                "order; lower window or token_budget"
            )
        return tuple(notes)


_COMPUTED = frozenset({"n_samples", "n_batches", "padding_ratio", "fill", "n_shapes", "n_dropped"})
TOTALS = frozenset(field.name for field in dataclasses.fields(Stats)) - _COMPUTED
"""The figures of `Stats` that the arrays of a plan do not tell."""


class DomainStats(NamedTuple):
    """Totals of the batches of one domain."""

    n_samples: int
    n_batches: int
    real_tokens: int
    padded_tokens: int
    """`B * L`, summed over the batches and over the fields."""
    padding_ratio: float
    """`padded_tokens / real_tokens`."""

    @classmethod
    def of(
        cls,
        mine: npt.NDArray[np.bool_],
        sizes: npt.NDArray[np.int64],
        row_tokens: npt.NDArray[np.int64],
        real_tokens: int,
    ) -> DomainStats:
        """Returns those of the batches `mine`, [n_batches], among batches of `sizes`, [n_batches]."""
        # Python's integers, since data sets may have 2^63 tokens and more.
        batches = zip(sizes[mine].tolist(), row_tokens[mine].tolist(), strict=True)
        padded_tokens = sum(size * tokens for size, tokens in batches)
        return cls(int(sizes[mine].sum()), int(mine.sum()), real_tokens, padded_tokens, padded_tokens / real_tokens)
