"""A torch batch sampler over the planner: every rank as many batches, every sample once, resumable anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from bucketshuffle.options import BatchOptions
from bucketshuffle.position import Position
from bucketshuffle.schedule import HeavyBatch, Schedule, Steps
from bucketshuffle.torch._pass import Pass
from bucketshuffle.torch._standing import Standing
from bucketshuffle.torch.ranks import rank_and_world_size

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BucketBatchSampler(Standing):
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
        domains: [n_samples], integer: the task, language or source of each sample; no batch holds two.
        sampler: a `DistributedSampler`, as Lightning passes it here: rank and world size are taken from it. Where they
            are given as well, they must agree.
        options: those of `pack_epoch`, without `window`, `align_ranks` and `constant_count`.

    Raises:
        TypeError: `lengths` or an option is of the wrong kind.
        ValueError: a value cannot be accepted, or there are fewer samples than batches in a window.

    Examples:
        >>> from bucketshuffle.torch import BucketBatchSampler
        >>> samplers = [BucketBatchSampler([5, 3, 8, 5, 3, 8], token_budget=16, rank=r, world_size=2) for r in range(2)]
        >>> sorted(sample for sampler in samplers for batch in sampler for sample in batch)
        [0, 1, 2, 3, 4, 5]
    """

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
        domains: Any = None,
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
            domains=domains,
            **options,
        )
        """The batches of every epoch, as a pure function."""
        self._begin_at_epoch_0()

    # -- the batches ----------------------------------------------------------------------------------------------

    def __iter__(self) -> Pass:
        """Returns a new iterator; nothing is planned or taken before its first `next`."""
        return Pass(self)

    @property
    def sampler(self) -> BucketBatchSampler:  # type: ignore[override]
        """The sampler itself: where Lightning and accelerate look for `set_epoch`."""
        return self

    @property
    def lengths(self) -> npt.NDArray[np.integer[Any]]:
        """[n_samples], integer: tokens per sample, read-only."""
        return self.schedule.lengths

    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """[n_dropped], int64: the samples left out by policy, ascending."""
        return self.schedule.dropped

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

    def _steps(self, start: Position) -> Steps:
        return self.schedule.steps(self._batches(start), start.n_done, start.arrangement.begun_at)

    def __repr__(self) -> str:
        schedule = self.schedule
        options = "".join(f", {name}={value!r}" for name, value in sorted(schedule.options.items()))
        return (
            f"{type(self).__name__}(n_samples={len(self.lengths)}, seed={schedule.seed}, rank={self.rank}, "
            f"world_size={self.world_size}, accumulation_steps={schedule.accumulation_steps}, "
            f"window={schedule.window}, balance_ranks={schedule.balance_ranks}, worst_first={schedule.worst_first}"
            f"{options})"
        )
