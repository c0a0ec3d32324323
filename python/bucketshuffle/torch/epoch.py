"""The batches of one epoch as the ranks train them: planned, evened, led by the worst, dealt anew when ranks change."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bucketshuffle.plan import EpochPlan


class Course(NamedTuple):
    """How an epoch was begun, and at which positions the rest of it was dealt out anew."""

    window: int
    """Batches between two optimizer updates when the epoch was begun."""
    align_ranks: int
    """Ranks of similar lengths when the epoch was begun."""
    deals: tuple[tuple[int, int], ...] = ()
    """(position, multiple): from that global batch on, the rest was split up to a multiple of so many batches."""

    def n_batches(self, n_planned: int) -> int:
        """Returns the batches of the epoch, of which `n_planned` were planned when it was begun."""
        n_batches = n_planned
        for position, multiple in self.deals:
            n_batches += -(n_batches - position) % multiple
        return n_batches

    def dealt(self, n_planned: int, position: int, multiple: int) -> Course:
        """Returns the course that makes the rest, from global batch `position` on, a multiple of `multiple`."""
        if (self.n_batches(n_planned) - position) % multiple == 0:
            return self
        return self._replace(deals=(*self.deals, (position, multiple)))


@dataclasses.dataclass(frozen=True)
class Batches:
    """All batches of an epoch, in global order: rank `r` of `W` trains batch `W * step + r` in step `step`."""

    indices: npt.NDArray[np.int64]
    """[n_samples], int64: sample indices; batch `b` is `indices[offsets[b]:offsets[b + 1]]`."""
    offsets: npt.NDArray[np.int64]
    """[n_batches + 1], int64."""
    padded_lengths: npt.NDArray[np.int64]
    """[n_batches], int64, tokens."""
    buckets: npt.NDArray[np.int32]
    """[n_batches], int32; -1: an over-long sample, kept by itself."""

    @classmethod
    def of(cls, plan: EpochPlan, samples: npt.NDArray[np.int64] | None = None) -> Batches:
        """Returns the batches of a plan, in its order; `samples` [n_planned], int64: the samples that were planned,
        where they are not all."""
        indices = plan.indices if samples is None else samples[plan.indices]
        return cls(indices, plan.offsets, plan.padded_lengths, plan.buckets)

    def __len__(self) -> int:
        return len(self.padded_lengths)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """[n_batches], int64: samples of each batch."""
        return np.diff(self.offsets)

    def sums(self, per_sample: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Returns [n_batches], int64: the sum over each batch of `per_sample`, [n_samples of the data set]."""
        running = np.zeros(len(self.indices) + 1, np.int64)
        np.cumsum(per_sample[self.indices], out=running[1:])
        return running[self.offsets[1:]] - running[self.offsets[:-1]]

    def heaviest(self, costs: npt.NDArray[np.float64], first: int = 0) -> list[int]:
        """Returns the batch that costs most, the one with the longest rows and the one with the most samples, among
        those from `first` on: the three that run out of memory first."""
        return [first + int(np.argmax(score[first:])) for score in (costs, self.padded_lengths, self.sizes)]

    def led_by(self, batches: Sequence[int], window: int) -> Batches:
        """Returns the same batches with the windows of `batches` at the start, every window as it was. The number of
        batches is a multiple of `window`."""
        first = dict.fromkeys(b // window for b in batches)
        leading = np.concatenate([np.arange(w * window, (w + 1) * window) for w in first])
        return self._reordered(np.concatenate([leading, np.delete(np.arange(len(self)), leading)]))

    def evened(self, weights: npt.NDArray[np.int64], costs: npt.NDArray[np.float64], course: Course) -> Batches:
        """Returns the same batches with the sums of `weights`, [n_batches], over the windows as even as the strata
        allow: steps of similar length change windows, so each window draws from the whole range of lengths as before.
        The number of batches is a multiple of `course.window`.

        The stratum whose weights differ most stays where it is, in random order. In each of the others, by falling
        difference, the window with the least so far gets the step with the most. A step is `course.align_ranks`
        neighbours, which stay together.
        """
        n_strata = course.window // course.align_ranks
        batch_of = np.arange(len(self)).reshape(-1, course.align_ranks)  # [n_steps, align_ranks]
        step_weights = weights[batch_of].sum(1)
        sorted_steps = np.lexsort((costs[batch_of].max(1), self.padded_lengths[batch_of].max(1)))
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
        return Batches(indices, offsets, self.padded_lengths[order], self.buckets[order])

    def dealt(
        self, position: int, multiple: int, lengths: npt.NDArray[np.integer[Any]], pad_to_multiple_of: int
    ) -> Batches:
        """Returns the same samples with the batches from `position` on split up to a multiple of `multiple`: always the
        batch with the largest parts, into equal parts, in its place.

        Raises:
            ValueError: fewer samples are left than batches are needed.
        """
        sizes = self.sizes[position:]
        n_missing = -len(sizes) % multiple
        if len(sizes) + n_missing > sizes.sum():
            raise ValueError(
                f"the rest of the epoch has {sizes.sum()} samples, fewer than the {len(sizes) + n_missing} batches "
                f"that world_size * accumulation_steps = {multiple} needs; resume on fewer ranks, or begin the next "
                "epoch"
            )
        n_parts = np.ones(len(sizes), np.int64)
        for _ in range(n_missing):
            # Whole division would take a batch of 1 for as large as the parts of 3 in 2, and leave a part empty.
            n_parts[np.argmax(sizes / n_parts)] += 1
        of_part = np.repeat(np.arange(len(sizes)), n_parts)
        part = np.arange(len(of_part)) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
        ends = self.offsets[position:-1][of_part] + sizes[of_part] * (part + 1) // n_parts[of_part]
        offsets = np.concatenate([self.offsets[: position + 1], ends])
        longest = np.maximum.reduceat(lengths[self.indices], offsets[:-1]).astype(np.int64)
        padded_lengths = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
        of_batch = np.concatenate([np.arange(position), position + of_part])
        return Batches(self.indices, offsets, padded_lengths, self.buckets[of_batch])
