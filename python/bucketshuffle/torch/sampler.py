"""A torch batch sampler over the planner: every rank as many batches, every sample once, resumable anywhere."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt
from torch.utils.data import BatchSampler

from bucketshuffle.batches import Batches
from bucketshuffle.options import MAX_WORD, BatchOptions, integer
from bucketshuffle.schedule import HeavyBatch, Position, Schedule, Steps
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
    #   set_epoch(another one)             that one    none            none        (ignored while a resume is pending)
    #   load_state_dict, resume            its own     its position    none
    #   reset                              as it was   none            none
    #   first `next` of a pass             as it was   none (taken)    this pass
    #   any `next` of a pass, its end      as it was   as it was       this pass
    #   load_state_dict of a pass          its own     none            this pass
    #
    # A pass begins at `pending`, else at the start of `epoch`. `state_dict` reports `pending`, else where `last`
    # stands, else the start of `epoch`.
    epoch: int
    _pending: Position | None
    _last: Pass | None

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
        self.epoch = 0
        self._pending = self._last = None
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
        again in a new process. `reset()` cancels the resume.
        """
        epoch = integer("epoch", epoch, 0, MAX_WORD)
        if epoch == self.epoch:
            return
        if (pending := self._pending) is not None and pending.n_done > 0:
            at_end = pending.n_done == self.schedule.n_batches(pending.arrangement)
            if not (at_end and epoch > pending.epoch):
                warnings.warn(
                    f"bucketshuffle: set_epoch({epoch}) is ignored, because the sampler is about to resume epoch "
                    f"{pending.epoch}; call reset() first to cancel the resume",
                    stacklevel=2,
                )
                return
        self.epoch = epoch
        self.reset()

    def reset(self) -> None:
        """Cancels a resume that has not begun and forgets where the last pass stood: the next one begins at the start
        of the epoch."""
        self._pending = self._last = None

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns where the pass that was advanced last stands, the batch just returned included: a small dict of plain
        values, the same on every rank, that loads on any number of ranks.

        A `DataLoader` with workers asks for batches ahead of those it has delivered: count the delivered ones and
        `resume`, or use torchdata's `StatefulDataLoader`.
        """
        return self.schedule.state_of(self._position())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass continue where `state` was taken, on this sampler's ranks. The epoch keeps the plan with
        which it was begun, and its rest is divided among the current ranks. `len` stays that of a whole epoch.

        Raises:
            ValueError: the state lacks a key; or it is of other lengths, options, seed or order version (the message
                names all that differs); or the rest of its epoch has fewer samples than these ranks need batches.
        """
        self._pending = self._loaded(state)
        self._last = None
        self.epoch = self._pending.epoch

    def resume(self, epoch: SupportsIndex, batches_done: SupportsIndex) -> None:
        """Makes the next pass begin in `epoch` after `batches_done` batches of every rank, as counted by the trainer.

        Raises:
            ValueError: `batches_done` exceeds `len(self)`.
        """
        done = integer("batches_done", batches_done, 0)
        if done > len(self):
            raise ValueError(f"batches_done = {done} exceeds len(sampler) = {len(self)}; pass the batches of one epoch")
        start = self.schedule.start_of(integer("epoch", epoch, 0, MAX_WORD))
        self._pending = start._replace(n_done=done * self.world_size)
        self._last = None
        self.epoch = start.epoch

    @property
    def fingerprint(self) -> str:
        """Hex digest of lengths, options, seed and order version; equal on all ranks that will train the same epoch."""
        return self.schedule.fingerprint

    # -- what is in an epoch ----------------------------------------------------------------------------------------

    def steps(self, epoch: SupportsIndex | None = None) -> Steps:
        """Returns what every rank trains in every step of `epoch`. Default: in the steps of the pass that is about to
        begin or under way; after a resume those of the rest: `zip(loader, sampler.steps().real_tokens.sum(1))`.
        """
        start = self._shown(epoch)
        return self.schedule.steps(self._batches(start), start.n_done)

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

    def _position(self) -> Position:
        """Where training stands."""
        return self._pending or (self._last and self._last.position()) or self.schedule.start_of(self.epoch)

    def _shown(self, epoch: SupportsIndex | None) -> Position:
        """Where `epoch` begins, or the pass that is under way, or the one that is about to begin."""
        if epoch is not None:
            return self.schedule.start_of(integer("epoch", epoch, 0, MAX_WORD))
        if self._last is not None and self._last.start is not None and not self._last.finished:
            return self._last.start
        return self._pending or self.schedule.start_of(self.epoch)

    def _loaded(self, state: Mapping[str, Any]) -> Position:
        """The position in `state`, with its rest divided among the current ranks."""
        position = self.schedule.position_of(state)
        shared = self.schedule.shared(position)
        if shared != position:
            self._batches(shared)  # What cannot be divided shows here, not in the first step.
        return shared

    def _take_start(self) -> Position:
        """Where the next pass begins; a resume is taken once."""
        start, self._pending = self._pending, None
        return start or self.schedule.start_of(self.epoch)

    def __getstate__(self) -> dict[str, Any]:
        # Plans are made again from the lengths; they do not travel to other processes.
        return {**self.__dict__, "_planned": None, "_last": None}

    def __repr__(self) -> str:
        schedule = self.schedule
        options = "".join(f", {name}={value!r}" for name, value in sorted(schedule.options.items()))
        return (
            f"{type(self).__name__}(n_samples={len(self.lengths)}, seed={schedule.seed}, rank={self.rank}, "
            f"world_size={self.world_size}, accumulation_steps={schedule.accumulation_steps}, "
            f"window={schedule.window}, balance_ranks={schedule.balance_ranks}, worst_first={schedule.worst_first}"
            f"{options})"
        )
