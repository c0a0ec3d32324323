"""One pass of one rank over its batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bucketshuffle.torch import _warnings
from bucketshuffle.torch._callers import accelerate_is_iterating

if TYPE_CHECKING:
    from bucketshuffle.position import Position
    from bucketshuffle.torch._standing import Standing


class Pass(Iterator[list[int]]):
    """One pass of one rank. It plans when it is first advanced, and has a state of its own."""

    def __init__(self, sampler: Standing) -> None:
        self.start: Position | None = None
        """Where the pass began; None: it has not."""
        self.finished = False
        self.has_denominators = False
        """Whether `BucketBatchSampler.denominators` yields those of this pass."""
        self._sampler = sampler
        self._step = 0

    def __next__(self) -> list[int]:
        if self.start is None:
            self._begin(self._sampler._take_start())
        step = self._step
        self._sampler._last = self
        if step == len(self._starts):
            self.finished = True
            self._sampler._ended = self._epoch
            raise StopIteration
        self._step = step + 1
        batch: list[int] = self._indices[self._starts[step] : self._ends[step]].tolist()
        return batch

    def _begin(self, start: Position) -> None:
        sampler = self._sampler
        batches = sampler._batches(start)
        mine = slice(start.n_done + sampler.rank, None, sampler.world_size)
        self.start, self._epoch = start, start.epoch
        self._indices = batches.indices
        self._starts: list[int] = batches.offsets[:-1][mine].tolist()
        self._ends: list[int] = batches.offsets[1:][mine].tolist()
        # accelerate fetches a batch before it delivers the one before it.
        self._n_ahead = int(accelerate_is_iterating())

    def position(self) -> Position:
        """Returns where this pass stands, the batch just returned included; after its last: the next epoch."""
        if self.start is None:
            return self._sampler._next_start()
        return self._after(self.start, self._step)

    def delivered(self) -> Position:
        """Returns `position()` without what a loader of accelerate has fetched and not delivered."""
        if self.start is None or self.finished:
            return self.position()
        return self._after(self.start, max(self._step - self._n_ahead, 0))

    def _after(self, start: Position, n_steps: int) -> Position:
        sampler = self._sampler
        position = start._replace(n_done=start.n_done + n_steps * sampler.world_size)
        return sampler.schedule.after(start.epoch, position) if n_steps == len(self._starts) else position

    def state_dict(self) -> dict[str, Any]:
        """Returns `position()` as a small dict of plain values."""
        return self._sampler.schedule.state_of(self.position())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes this pass continue where `state` was taken; a resume that waits in the sampler is cancelled. It warns
        where the sampler was told or asked before what the state contradicts.

        Raises:
            TypeError, ValueError: as `BucketBatchSampler.load_state_dict`.
        """
        sampler = self._sampler
        start = sampler._loaded(state)
        chosen, asked = sampler._chosen, sampler._asked
        if chosen is not None and chosen == start.epoch - 1 and start.n_done == 0:
            _warnings.epoch_is_done(chosen)
            start = sampler._end_of(chosen)
        elif chosen not in (None, start.epoch):
            _warnings.state_wins(chosen, start.epoch)
        if asked not in (None, start):
            _warnings.steps_came_early()
        self._step, self.finished, self.has_denominators = 0, False, False
        sampler._go_to(start.epoch, None)
        sampler._chosen = sampler._asked = None
        sampler._last = self
        self._begin(start)
