"""All batches of an epoch as arrays, and the ways to reorder them and to divide them into more."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.epoch_plan import EpochPlan
from bucketshuffle.plan import Planner
from bucketshuffle.shapes import row_tokens


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """All batches of an epoch, in global order: rank `r` of `W` trains batch `W * step + r` in step `step`."""

    indices: npt.NDArray[np.int64]
    """[n_samples], int64: sample indices; batch `b` is `indices[offsets[b]:offsets[b + 1]]`."""
    offsets: npt.NDArray[np.int64]
    """[n_batches + 1], int64: positions in `indices`."""
    padded_lengths: npt.NDArray[np.int64]
    """[n_batches], int64: tokens of a row of the padded batch. [n_batches, n_fields] with several fields."""
    costs: npt.NDArray[np.int64]
    """[n_batches], int64: cost of the batch under the cost model of the planner, tokens."""
    buckets: npt.NDArray[np.int32]
    """[n_batches], int32: the bucket; -1: an over-long sample, kept by itself."""

    domains: npt.NDArray[np.int64] | None = None
    """[n_batches], int64: the domain; None without domains."""

    @classmethod
    def of(cls, plan: EpochPlan) -> Batches:
        """Returns the batches of a plan, in its order."""
        return cls(plan.indices, plan.offsets, plan.padded_lengths, plan.costs, plan.buckets, plan.domains)

    def __len__(self) -> int:
        return len(self.padded_lengths)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """[n_batches], int64: samples of each batch."""
        return np.diff(self.offsets)

    @property
    def row_tokens(self) -> npt.NDArray[np.int64]:
        """[n_batches], int64: tokens of a row of the padded batch, over all fields."""
        return row_tokens(self.padded_lengths)

    def sums(self, per_sample: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Returns [n_batches], int64: the sum of `per_sample`, [n_samples of the data set], over each batch."""
        running = np.zeros(len(self.indices) + 1, np.int64)
        np.cumsum(per_sample[self.indices], out=running[1:])
        return running[self.offsets[1:]] - running[self.offsets[:-1]]

    def heaviest(self, first: int = 0) -> list[int]:
        """Returns the batch that costs most, the one with the longest rows and the one with the most samples, among
        those from `first` on, which must not be empty: the three that run out of memory first."""
        return [first + int(np.argmax(score[first:])) for score in (self.costs, self.row_tokens, self.sizes)]

    def led_by(self, batches: Sequence[int], window: int) -> Batches:
        """Returns the same batches with the windows of `batches` at the start; every window stays as it is.

        The number of batches must be a multiple of `window`.
        """
        first = dict.fromkeys(b // window for b in batches)
        leading = np.concatenate([np.arange(w * window, (w + 1) * window) for w in first])
        return self._reordered(np.concatenate([leading, np.delete(np.arange(len(self)), leading)]))

    def balanced(self, weights: npt.NDArray[np.int64], window: int, align_ranks: int) -> Batches:
        """Returns the same batches in another order, in which the windows have sums of `weights`, [n_batches], that are
        as close to each other as the strata allow. The number of batches must be a multiple of `window`.

        Only steps of similar length change windows, so each window draws from the whole range of lengths as before.
        The stratum whose weights differ most stays where it is, in random order. In each of the others, by falling
        difference, the window with the least so far gets the step with the most. A step is `align_ranks` neighbours,
        which stay together.
        """
        n_strata = window // align_ranks
        batch_of = np.arange(len(self)).reshape(-1, align_ranks)  # [n_steps, align_ranks]
        step_weights = weights[batch_of].sum(1)
        # Only steps of one domain change places, but for the few at its ends.
        keys = [self.costs[batch_of].max(1), self.row_tokens[batch_of].max(1)]
        sorted_steps = np.lexsort(keys if self.domains is None else [*keys, self.domains[batch_of].max(1)])
        by_window = sorted_steps[np.argsort(sorted_steps // n_strata, kind="stable")]
        strata = by_window.reshape(-1, n_strata).T  # [n_strata, n_windows]: the step of each window
        first, *others = strata[np.argsort(-np.ptp(step_weights[strata], axis=1), kind="stable")]
        sums = step_weights[first]
        order = np.arange(len(batch_of))
        for stratum in others:
            least_first = np.argsort(sums, kind="stable")
            most_first = stratum[np.argsort(-step_weights[stratum], kind="stable")]
            order[stratum[least_first]] = most_first
            sums[least_first] += step_weights[most_first]
        return self._reordered(batch_of[order].ravel())

    def _reordered(self, order: npt.NDArray[np.int64]) -> Batches:
        sizes = self.sizes[order]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        moved = np.repeat(self.offsets[order] - offsets[:-1], sizes)
        indices = self.indices[moved + np.arange(len(self.indices))]
        domains = None if self.domains is None else self.domains[order]
        return Batches(indices, offsets, self.padded_lengths[order], self.costs[order], self.buckets[order], domains)

    def divided(self, n_done: int, multiple: int, lengths: npt.NDArray[np.integer[Any]], planner: Planner) -> Batches:
        """Returns the same samples with the batches from `n_done` on divided until their number is a multiple of
        `multiple`: always the batch with the largest parts, into equal parts, in its place.

        Args:
            lengths: [n_samples of the data set], integer, tokens per sample, or [n_samples, n_fields].
            planner: what tells padded lengths and costs of the parts.

        Raises:
            ValueError: fewer samples are left than batches are needed.
        """
        sizes = self.sizes[n_done:]
        n_missing = -len(sizes) % multiple
        if n_missing == 0:
            return self
        if len(sizes) + n_missing > sizes.sum():
            raise ValueError(
                f"the rest of the epoch has {sizes.sum()} samples, fewer than the {len(sizes) + n_missing} batches "
                f"that world_size * accumulation_steps = {multiple} needs; resume on fewer ranks, or begin the next "
                "epoch"
            )
        n_parts = 1 + extra_parts(sizes, n_missing)
        batch_of = np.repeat(np.arange(len(sizes)), n_parts)  # [n_parts of the rest]: the batch divided
        part = np.arange(len(batch_of)) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
        starts = self.offsets[n_done:-1][batch_of]
        ends = starts + sizes[batch_of] * (part + 1) // n_parts[batch_of]
        starts = starts + sizes[batch_of] * part // n_parts[batch_of]
        longest = np.maximum.reduceat(lengths[self.indices], starts, axis=0).astype(np.int64)
        return Batches(
            self.indices,
            np.concatenate([self.offsets[: n_done + 1], ends]),
            np.concatenate([self.padded_lengths[:n_done], planner.padded_length(longest)]),
            np.concatenate([self.costs[:n_done], planner.batch_cost(ends - starts, longest)]),
            np.concatenate([self.buckets[:n_done], self.buckets[n_done:][batch_of]]),
            None if self.domains is None else np.concatenate([self.domains[:n_done], self.domains[n_done:][batch_of]]),
        )


def extra_parts(sizes: npt.NDArray[np.int64], n_missing: int) -> npt.NDArray[np.int64]:
    """Returns [n_batches], int64: into how many parts more than one each batch is divided, `n_missing` in all. Each
    goes to the batch whose parts are the largest at that moment, the first of equals.

    Args:
        sizes: [n_batches], int64: samples of each batch.

    Complexity: O(n_batches log n_batches), and O(log n_missing) a part.
    """
    extra = np.zeros(len(sizes), np.int64)
    # The n-th largest batch is divided only after all larger ones have been.
    candidates = np.argsort(-sizes, kind="stable")[:n_missing]
    # Exact quotients: by whole division a batch of 1 would be as large as the parts of 3 in 2, and a part would be
    # empty. Floats keep different quotients apart below 2^26 samples a batch.
    largest_first = [(-float(sizes[b]), int(b), 1) for b in candidates]
    heapq.heapify(largest_first)
    for _ in range(n_missing):
        _, b, n_parts = largest_first[0]
        extra[b] = n_parts
        heapq.heapreplace(largest_first, (-float(sizes[b] / (n_parts + 1)), b, n_parts + 1))
    return extra
