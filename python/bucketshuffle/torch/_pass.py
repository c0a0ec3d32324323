"""One pass of one rank over its batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bucketshuffle.schedule import Position
    from bucketshuffle.torch.sampler import BucketBatchSampler


class Pass(Iterator[list[int]]):
    """One pass of one rank. It plans when it is first advanced, and has a state of its own."""

    def __init__(self, sampler: BucketBatchSampler) -> None:
        self.start: Position | None = None
        """Where the pass began; None: it has not."""
        self.finished = False
        self._sampler = sampler
        self._step = 0

    def __next__(self) -> list[int]:
        if self.start is None:
            self._begin(self._sampler._take_start())
        step = self._step
        self._sampler._last = self
        if step == len(self._starts):
            self.finished = True
            raise StopIteration
        self._step = step + 1
        batch: list[int] = self._indices[self._starts[step] : self._ends[step]].tolist()
        return batch

    def _begin(self, start: Position) -> None:
        sampler = self._sampler
        batches = sampler._batches(start)
        mine = slice(start.n_done + sampler.rank, None, sampler.world_size)
        self.start = start
        self._indices = batches.indices
        self._starts: list[int] = batches.offsets[:-1][mine].tolist()
        self._ends: list[int] = batches.offsets[1:][mine].tolist()

    def position(self) -> Position:
        """Returns where this pass stands, the batch just returned included; after its end: the start of a pass."""
        sampler = self._sampler
        if self.start is None:
            return sampler._pending or sampler.schedule.start_of(sampler.epoch)
        if self.finished:
            return sampler.schedule.start_of(self.start.epoch)
        return self.start._replace(n_done=self.start.n_done + self._step * sampler.world_size)

    def state_dict(self) -> dict[str, Any]:
        """Returns `position()` as a small dict of plain values."""
        return self._sampler.schedule.state_of(self.position())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes this pass continue where `state` was taken; a resume that waits in the sampler is cancelled.

        Raises:
            ValueError: as `BucketBatchSampler.load_state_dict`.
        """
        start = self._sampler._loaded(state)
        self._step, self.finished = 0, False
        self._sampler._pending, self._sampler.epoch, self._sampler._last = None, start.epoch, self
        self._begin(start)
