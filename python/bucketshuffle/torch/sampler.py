"""A torch batch sampler over the planner: every rank as many batches, every sample once, resumable anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt
from torch.utils.data import BatchSampler

from bucketshuffle.batches import Batches
from bucketshuffle.options import MAX_WORD, BatchOptions, integer
from bucketshuffle.position import Position
from bucketshuffle.schedule import HeavyBatch, Schedule, Steps
from bucketshuffle.torch import _warnings
from bucketshuffle.torch._callers import accelerate_is_setting_epoch, lightning_is_overfitting
from bucketshuffle.torch._pass import Pass
from bucketshuffle.torch.ranks import rank_and_world_size

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BucketBatchSampler(BatchSampler):
    """Yields the batches of one rank as lists of sample indices, for `DataLoader(..., batch_sampler=sampler)`.

    All ranks get the same number of batches in every epoch, and together every admitted sample exactly once. The epoch
    never advances by itself: call `set_epoch(epoch)` before each pass, as for `DistributedSampler`.

    Args:
        lengths: [n_samples], integer, tokens per sample, in the order of the data set. Whatever `pack_epoch` takes. The
            sampler keeps a copy.
        seed: in [0, 2^64), the same on every rank.
        rank, world_size: this process and how many there are. Default: those of `torch.distributed` where it is
            initialised, else of the environment (`RANK`, `WORLD_SIZE`), else 0 of 1. Decided here, once.
        accumulation_steps: steps between two optimizer updates.
        window: batches between two optimizer updates, over all ranks. Default `world_size * accumulation_steps`, of
            which it must be a multiple. The global order is the same for every world size whose multiple it is.
        balance_ranks: give all ranks of a step batches of similar length. Use it where ranks wait for each other and
            attention cost matters: shapes and attention cost then match across ranks. Each update draws from fewer
            ranges of lengths, so its mix is coarser. Padded tokens are balanced without it, because every batch fills
            the budget.
        worst_first: put the windows with the costliest batch, the longest rows and the most samples first. An
            out-of-memory error then shows at once; see `heaviest`.
        loss_tokens: [n_samples], integer, supervised tokens per sample. `steps` reports them, and batches of similar
            length change windows until every window has about as many, so that every optimizer update has about the
            same weight. A window of one batch stays as it is.
        min_loss_tokens: leave out samples with fewer supervised tokens, and report them in `dropped`.
        sampler: a `DistributedSampler`, as Lightning passes it here: rank and world size are taken from it. Where they
            are given as well, they must agree.
        options: those of `pack_epoch`, without `window`, `align_ranks` and `constant_count`.

    Raises:
        TypeError: `lengths` or an option is of the wrong kind.
        ValueError: a value cannot be accepted, or there are fewer samples than batches in a window.

    >>> from bucketshuffle.torch import BucketBatchSampler
    >>> samplers = [BucketBatchSampler([5, 3, 8, 5, 3, 8], token_budget=16, rank=r, world_size=2) for r in range(2)]
    >>> [len(sampler) for sampler in samplers], sorted(i for sampler in samplers for batch in sampler for i in batch)
    ([2, 2], [0, 1, 2, 3, 4, 5])
    """

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

    def __init__(
        self,
        lengths: Any,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        accumulation_steps: int = 1,
        window: int | None = None,
        balance_ranks: bool = False,
        worst_first: bool = False,
        loss_tokens: Any = None,
        min_loss_tokens: int = 0,
        sampler: Any = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        self.rank, world_size = rank_and_world_size(rank, world_size, sampler)
        self.schedule = Schedule(
            lengths,
            seed=seed,
            world_size=world_size,
            accumulation_steps=accumulation_steps,
            window=window,
            balance_ranks=balance_ranks,
            worst_first=worst_first,
            loss_tokens=loss_tokens,
            min_loss_tokens=min_loss_tokens,
            **options,
        )
        """The batches of every epoch, as a pure function."""
        self._go_to(0, None)
        self._chosen = self._asked = None
        self._has_warned = False
        self._planned: tuple[Position, Batches] | None = None

    # -- the batches ----------------------------------------------------------------------------------------------

    def __iter__(self) -> Pass:
        """Returns a new iterator; nothing is planned or taken before its first `next`."""
        return Pass(self)

    def __len__(self) -> int:
        """Returns the batches of this rank in a whole epoch: the same on every rank and in every epoch."""
        return self.schedule.n_batches() // self.world_size

    @property
    def sampler(self) -> BucketBatchSampler:  # type: ignore[override]
        """The sampler itself: where Lightning and accelerate look for `set_epoch`."""
        return self

    @property
    def world_size(self) -> int:
        """Ranks that train."""
        return self.schedule.world_size

    @property
    def lengths(self) -> npt.NDArray[np.integer[Any]]:
        """[n_samples], integer: tokens per sample, read-only."""
        return self.schedule.lengths

    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """[n_dropped], int64: the samples left out by policy, ascending."""
        return self.schedule.dropped

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
                _warnings.resume_stands(epoch, pending.epoch, counted)
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

    # -- state ----------------------------------------------------------------------------------------------------

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

    @property
    def fingerprint(self) -> str:
        """Hex digest of lengths, options, seed and order version; equal on all ranks that will train the same epoch."""
        return self.schedule.fingerprint

    # -- what is in an epoch ----------------------------------------------------------------------------------------

    def steps(self, epoch: SupportsIndex | None = None) -> Steps:
        """Returns what every rank trains in every step of `epoch`. Default: in the steps of the pass that is about to
        begin or under way; after a resume those of the rest.

        A `StatefulDataLoader` restores its position when `iter(loader)` is called. Ask after that, or use
        `denominators`.
        """
        start = self._shown(epoch)
        if epoch is None:
            self._asked = start
        return self._steps(start)

    def denominators(self) -> Iterator[int]:
        """Yields, beside each batch of the pass under way, what to divide the sum of its losses by: the tokens of all
        ranks in all steps of its optimizer update (`Steps.denominators`), for
        `zip(loader, sampler.denominators(), strict=True)`.

        It looks at the pass when the loader has delivered the first batch, so it is right after every kind of resume.

        Raises:
            RuntimeError: it is advanced before the loader.
        """
        begun = self._last
        if begun is None or begun.start is None or begun.has_denominators:
            raise RuntimeError(
                "denominators() is advanced before the loader; write zip(loader, sampler.denominators()), with the "
                "loader first"
            )
        begun.has_denominators = True
        yield from self._steps(begun.start).denominators.tolist()

    def heaviest(self, epoch: SupportsIndex | None = None) -> list[HeavyBatch]:
        """Returns the batch that costs most, the one with the longest rows and the one with the most samples, among
        those that `steps(epoch)` reports; where they coincide, once."""
        start = self._shown(epoch)
        return self.schedule.heaviest(self._batches(start), start.n_done)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _batches(self, position: Position) -> Batches:
        """The batches of the whole epoch that `position` lies in; those asked for last are kept."""
        whole = position._replace(n_done=0)
        if self._planned is None or self._planned[0] != whole:
            self._planned = (whole, self.schedule.batches(whole.epoch, whole.arrangement))
        return self._planned[1]

    def _steps(self, start: Position) -> Steps:
        divisions = start.arrangement.divisions
        return self.schedule.steps(self._batches(start), start.n_done, divisions[-1][0] if divisions else 0)

    def _go_to(self, epoch: int, pending: Position | None) -> None:
        self.epoch, self._pending = epoch, pending
        self._last = self._stood = self._ended = None

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

    def __repr__(self) -> str:
        schedule = self.schedule
        options = "".join(f", {name}={value!r}" for name, value in sorted(schedule.options.items()))
        return (
            f"{type(self).__name__}(n_samples={len(self.lengths)}, seed={schedule.seed}, rank={self.rank}, "
            f"world_size={self.world_size}, accumulation_steps={schedule.accumulation_steps}, "
            f"window={schedule.window}, balance_ranks={schedule.balance_ranks}, worst_first={schedule.worst_first}"
            f"{options})"
        )
