"""Where a sampler stands: the epoch, a resume that waits, the pass that was advanced last, and the states of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

from torch.utils.data import BatchSampler

from bucketshuffle.batches import Batches
from bucketshuffle.options import MAX_WORD, integer
from bucketshuffle.position import Position
from bucketshuffle.schedule import Schedule
from bucketshuffle.torch import _warnings
from bucketshuffle.torch._callers import accelerate_is_setting_epoch, lightning_is_overfitting
from bucketshuffle.torch._pass import Pass


class Standing(BatchSampler):
    """The half of `BucketBatchSampler` that knows where training stands."""

    # What a pass begins with, and what `state_dict` reports:
    #
    #   event                              epoch       pending         last
    #   set_epoch(another one)             that one    none            none        (a resume may forbid it)
    #   load_state_dict, resume            its own     its position    none
    #   reset                              as it was   none            none
    #   first `next` of a pass             as it was   none (taken)    this pass
    #   any `next` of a pass, its end      as it was   as it was       this pass
    #   load_state_dict of a pass          its own     none            this pass
    #
    # A pass begins at `pending`, else at the start of `epoch`. `state_dict` reports `pending`, else where `last`
    # stands, else the start of `epoch`. A copy has `stood`, the position of the original's `last`, in its place.
    epoch: int
    _pending: Position | None
    _last: Pass | None
    _stood: Position | None
    # For warnings: what set_epoch chose and steps() told of for the pass to come, and the epoch whose pass has ended.
    _chosen: int | None
    _asked: Position | None
    _ended: int | None
    _has_told: bool

    rank: int
    schedule: Schedule

    def _begin_at_epoch_0(self) -> None:
        self._go_to(0, None)
        self._chosen = self._asked = None
        self._has_warned = False
        self._planned: tuple[Position, Batches] | None = None

    @property
    def world_size(self) -> int:
        """Ranks that train."""
        return self.schedule.world_size

    def __len__(self) -> int:
        """Returns the batches of this rank in a whole epoch: the same on every rank and in every epoch."""
        return self.schedule.n_batches() // self.world_size

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Sets the epoch of the passes that begin from now on; the same epoch again changes nothing.

        Between a resume and its first batch another epoch is ignored with a warning, because some trainers count from 0
        again in a new process. Where the resume is at the start or the end of an epoch, a later one is taken, and the
        one before, which is done, has no batches left. `reset()` cancels the resume. While Lightning overfits
        (`overfit_batches`), the epoch stays as it is.
        """
        epoch = integer("epoch", epoch, 0, MAX_WORD)
        if lightning_is_overfitting():
            epoch = self.epoch
        counted = accelerate_is_setting_epoch()
        if epoch != self.epoch:
            pending = self._pending
            if pending is None:
                if counted and (self._chosen is not None or epoch < self.epoch):
                    _warnings.accelerate_counts(epoch, self.epoch)
            elif epoch == pending.epoch - 1 and pending.n_done == 0 and not counted:
                _warnings.epoch_is_done(epoch)
                pending = self._end_of(epoch)
            elif epoch > pending.epoch and (pending.n_done == 0 or self.schedule.is_end(pending)):
                pending = None
            else:
                if not (counted and self._has_told):  # accelerate sets it twice, through two attributes.
                    _warnings.resume_stands(epoch, pending.epoch, counted)
                self._has_told = counted
                return
            self._go_to(epoch, pending)
        elif self._ended == epoch:
            self.reset()  # The pass that has ended is to be repeated.
        if not counted:
            self._chosen = epoch

    def reset(self) -> None:
        """Cancels a resume that has not begun and forgets where the last pass stood: the next one begins at the start
        of the epoch."""
        self._go_to(self.epoch, None)

    def state_dict(self) -> dict[str, Any]:
        """Returns where the pass that was advanced last stands, the batch just returned included: a small dict of plain
        values, the same on every rank, that loads on any number of ranks. After the last batch of an epoch it is the
        start of the next one.

        A `DataLoader` with workers asks for batches ahead of those it has delivered: count the delivered ones and
        `resume`, or use torchdata's `StatefulDataLoader`. The batch that accelerate's loader fetches ahead does not
        count.
        """
        return self.schedule.state_of(self._position())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass continue where `state` was taken, on this sampler's ranks. The epoch keeps the plan with
        which it was begun, and its rest is divided among the current ranks. `len` stays that of a whole epoch.

        Raises:
            ValueError: the state lacks a key; or it is of other lengths, options, seed or order version (the message
                names all that differs); or the rest of its epoch has fewer samples than these ranks need batches.
        """
        pending = self._loaded(state)
        self._go_to(pending.epoch, pending)

    def resume(self, epoch: SupportsIndex, batches_done: SupportsIndex) -> None:
        """Makes the next pass begin in `epoch` after `batches_done` batches of every rank, as counted by the trainer.

        Raises:
            ValueError: `batches_done` exceeds `len(self)`, or this sampler has loaded a state of `epoch` that was saved
                on other ranks, so that its batches cannot be counted.
        """
        done = integer("batches_done", batches_done, 0)
        if done > len(self):
            raise ValueError(f"batches_done = {done} exceeds len(sampler) = {len(self)}; pass the batches of one epoch")
        start = self.schedule.start_of(integer("epoch", epoch, 0, MAX_WORD))
        known = self._pending or (self._last and self._last.start) or self._stood
        if known is not None and known.epoch == start.epoch and known.arrangement != start.arrangement:
            raise ValueError(
                f"epoch = {start.epoch} was begun on other ranks, so batches_done = {done} does not say where it "
                "stands; use load_state_dict, or call reset() first to count in the plan of the current ranks"
            )
        self._go_to(start.epoch, start._replace(n_done=done * self.world_size))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _batches(self, position: Position) -> Batches:
        """The batches of the whole epoch that `position` lies in; those asked for last are kept."""
        whole = position._replace(n_done=0)
        if self._planned is None or self._planned[0] != whole:
            self._planned = (whole, self.schedule.batches(whole.epoch, whole.arrangement))
        return self._planned[1]

    def _go_to(self, epoch: int, pending: Position | None) -> None:
        self.epoch, self._pending = epoch, pending
        self._last = self._stood = self._ended = None
        self._has_told = False

    def _end_of(self, epoch: int) -> Position:
        return self.schedule.start_of(epoch)._replace(n_done=len(self) * self.world_size)

    def _next_start(self) -> Position:
        """Where the next pass begins."""
        return self._pending or self.schedule.start_of(self.epoch)

    def _position(self) -> Position:
        """Where training stands."""
        last = self._stood if self._last is None else self._last.delivered()
        return self._pending or last or self.schedule.start_of(self.epoch)

    def _shown(self, epoch: SupportsIndex | None) -> Position:
        """Where `epoch` begins, or the pass that is under way, or the one that is about to begin."""
        if epoch is not None:
            return self.schedule.start_of(integer("epoch", epoch, 0, MAX_WORD))
        if self._last is not None and self._last.start is not None and not self._last.finished:
            return self._last.start
        return self._next_start()

    def _loaded(self, state: Mapping[str, Any]) -> Position:
        """The position in `state`, with its rest divided among the current ranks."""
        position = self.schedule.position_of(state)
        shared = self.schedule.shared(position)
        if shared != position:
            self._batches(shared)  # What cannot be divided shows here, not in the first step.
        return shared

    def _take_start(self) -> Position:
        """Where the pass that begins now does; a resume is taken once."""
        if self._pending is None and self._ended == self.epoch and not self._has_warned:
            self._has_warned = True
            _warnings.epoch_repeats(self.epoch)
        start, self._pending = self._next_start(), None
        self._chosen = self._asked = self._stood = self._ended = None
        return start

    def __getstate__(self) -> dict[str, Any]:
        # Plans are made again from the lengths, and passes do not travel to other processes: where the last stood does.
        stood = self._stood if self._last is None else self._last.delivered()
        return {**self.__dict__, "_planned": None, "_last": None, "_stood": stood}
