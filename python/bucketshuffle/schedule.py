"""What an epoch is on `world_size` ranks: a pure function of the epoch and its arrangement."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bucketshuffle import _core
from bucketshuffle.batches import Batches
from bucketshuffle.fields import as_domains, as_fields, sample_tokens
from bucketshuffle.lengths import as_lengths
from bucketshuffle.options import MAX_WORD, BatchOptions, flag, integer
from bucketshuffle.plan import ORDER_VERSION, Planner
from bucketshuffle.position import Arrangement, Position, read_state, state_of
from bucketshuffle.shapes import as_plain

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Steps(NamedTuple):
    """What each rank trains in each step of an epoch; every rank knows all of it without communication."""

    n_samples: npt.NDArray[np.int64]
    """[n_steps, world_size], int64: samples of the batch."""
    real_tokens: npt.NDArray[np.int64]
    """[n_steps, world_size], int64: tokens of the batch without padding. `real_tokens.sum(1)` is the global token count
    of each step."""
    padded_lengths: npt.NDArray[np.int64]
    """[n_steps, world_size], int64: tokens of a row of the padded batch. [n_steps, world_size, n_fields] with several
    fields."""
    buckets: npt.NDArray[np.int32]
    """[n_steps, world_size], int32: the bucket; -1: an over-long sample, kept by itself."""
    loss_tokens: npt.NDArray[np.int64] | None
    """[n_steps, world_size], int64: supervised tokens of the batch; None without `loss_tokens`."""
    denominators: npt.NDArray[np.int64]
    """[n_steps], int64: the supervised tokens (without `loss_tokens`: the real tokens) of all ranks in all steps of the
    same optimizer update. An update's gradient is that of the mean over its tokens if every batch adds the sum of its
    losses divided by this number."""


class HeavyBatch(NamedTuple):
    """One of the batches that run out of memory first."""

    step: int
    rank: int
    n_samples: int
    padded_length: int | tuple[int, ...]
    """Tokens of a row; with several fields, of each."""


class Schedule:
    """The batches of every epoch, and how the ranks share them: in step `s` rank `r` trains batch `world_size * s + r`.

    It keeps no plan. A caller that asks for the batches of one epoch more than once keeps them.

    Args:
        lengths, seed, world_size, accumulation_steps, window, balance_ranks, worst_first, loss_tokens,
            min_loss_tokens, domains, options: as for `bucketshuffle.torch.BucketBatchSampler`.

    Raises:
        TypeError, ValueError: as for `bucketshuffle.torch.BucketBatchSampler`.

    Examples:
        >>> from bucketshuffle.schedule import Schedule
        >>> schedule = Schedule([5, 3, 8, 5, 3, 8], token_budget=16, world_size=2)
        >>> schedule.n_batches(), sorted(schedule.batches(epoch=3).indices.tolist())
        (4, [0, 1, 2, 3, 4, 5])
    """

    def __init__(
        self,
        lengths: Any,
        *,
        seed: int = 0,
        world_size: int = 1,
        accumulation_steps: int = 1,
        window: int | None = None,
        balance_ranks: bool = False,
        worst_first: bool = False,
        loss_tokens: Any = None,
        min_loss_tokens: int = 0,
        domains: Any = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        self.seed = integer("seed", seed, 0, MAX_WORD)
        self.world_size = integer("world_size", world_size, 1)
        self.accumulation_steps = integer("accumulation_steps", accumulation_steps, 1)
        multiple = self.world_size * self.accumulation_steps
        self.window = multiple if window is None else integer("window", window, 1)
        if self.window % multiple:
            raise ValueError(
                f"window = {self.window} is not a multiple of world_size * accumulation_steps = {multiple}; leave "
                "window out, or set it to a multiple"
            )
        for name in ("constant_count", "align_ranks"):
            if name in options:
                raise TypeError(f"{name} is not an option of the sampler; {_INSTEAD[name]}")
        self.balance_ranks = flag("balance_ranks", balance_ranks)
        self.worst_first = flag("worst_first", worst_first)
        values, self.field_names = as_fields(lengths)
        self.lengths = _read_only(values)
        self._tokens = sample_tokens(self.lengths)
        if len(self.lengths) == 0:
            raise ValueError(
                "lengths has 0 samples, fewer than the 1 that a sampler needs; pass the lengths of the data set"
            )
        self.min_loss_tokens = integer("min_loss_tokens", min_loss_tokens, 0)
        self.loss_tokens = None if loss_tokens is None else _read_only(_as_loss_tokens(loss_tokens))
        self._admitted = _admit(self._tokens, self.loss_tokens, self.min_loss_tokens)
        self.domains = as_domains(domains)
        self._options = options
        self.arrangement = Arrangement(self.window, self.world_size if self.balance_ranks else 1)
        """Of the epochs that begin on these ranks."""
        # Every mistake in lengths or options shows here, not in the first epoch.
        if self.n_batches() == 0:
            raise ValueError(
                f"lengths has {len(self.lengths)} samples, all left out by overlong, empty or min_loss_tokens; raise "
                "token_budget, or lower min_loss_tokens"
            )
        self.identity: Mapping[str, Any] = self._find_identity()  # Hashing a million lengths takes 8 ms, once.
        """What must be equal for a position to mean the same batches, as short plain values."""

    # -- the batches ----------------------------------------------------------------------------------------------

    def n_batches(self, arrangement: Arrangement | None = None) -> int:
        """Returns the batches of all ranks in an epoch of this arrangement, by default the schedule's own."""
        arrangement = arrangement or self.arrangement
        n_batches = self._planner(arrangement).n_batches()
        for n_done, multiple in arrangement.divisions:
            n_batches += -(n_batches - n_done) % multiple
        return n_batches

    @property
    def padding(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """See `Planner.padding`; the same for every arrangement."""
        return self._planner(self.arrangement).padding

    def batches(self, epoch: int, arrangement: Arrangement | None = None) -> Batches:
        """Returns the batches of `epoch` in this arrangement, by default the schedule's own.

        Raises:
            ValueError: a division asks for more batches than there are samples.
        """
        arrangement = arrangement or self.arrangement
        planner = self._planner(arrangement)
        batches = Batches.of(planner.plan(self.seed, epoch))
        if self.loss_tokens is not None:
            batches = batches.balanced(batches.sums(self.loss_tokens), arrangement.window, arrangement.align_ranks)
        if self.worst_first:
            batches = batches.led_by(batches.heaviest(), arrangement.window)
        for n_done, multiple in arrangement.divisions:
            batches = batches.divided(n_done, multiple, self.lengths, planner)
        return batches

    def shared(self, position: Position) -> Position:
        """Returns the position with the rest of its epoch divided until these ranks can share it: until it is a
        multiple of `world_size * accumulation_steps`, or with too few samples for that, of `world_size`. Where these
        ranks have begun or divided the epoch themselves it stays as it is, between two updates and inside one."""
        epoch, n_done, arrangement = position
        multiple = self.world_size * self.accumulation_steps
        begun_at, begun_for = arrangement.divisions[-1] if arrangement.divisions else (0, None)

        def is_too_small(at: int, multiple: int) -> bool:
            sizes = self.batches(epoch, arrangement).sizes[at:]
            return bool(len(sizes) + -len(sizes) % multiple > sizes.sum())

        if begun_for is None:
            begun_here = arrangement.window == self.window
        else:
            begun_here = begun_for == multiple or (begun_for == self.world_size and is_too_small(begun_at, multiple))
        if multiple == 1 or (begun_here and (n_done - begun_at) % self.world_size == 0):
            return position
        if multiple > self.world_size and is_too_small(n_done, multiple) and not is_too_small(n_done, self.world_size):
            multiple = self.world_size
        # Recorded even where nothing is divided: from here on these ranks count their updates.
        return position._replace(
            arrangement=arrangement._replace(divisions=(*arrangement.divisions, (n_done, multiple)))
        )

    def start_of(self, epoch: int) -> Position:
        """Returns the start of an epoch that begins on these ranks."""
        return Position(epoch, 0, self.arrangement)

    def is_end(self, position: Position) -> bool:
        """Returns whether nothing of the epoch is left."""
        return position.n_done == self.n_batches(position.arrangement)

    def after(self, epoch: int, end: Position) -> Position:
        """Returns the start of the epoch after `epoch`; after the last there is, its `end`."""
        return end if epoch == MAX_WORD else self.start_of(epoch + 1)

    def padded_length(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns [n], int64: tokens of a row in a padded batch whose longest sample has each of these lengths."""
        padded: npt.NDArray[np.int64] = self._own_planner.padded_length(lengths)
        return padded

    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """[n_dropped], int64: the samples that `overlong`, `empty` and `min_loss_tokens` leave out, ascending."""
        return self._own_planner.dropped

    @property
    def options(self) -> dict[str, Any]:
        """The options that say what a batch is, where they are not the defaults, as plain values."""
        resolved = self._own_planner.options
        return {name: resolved[name] for name in BatchOptions.__annotations__ if resolved[name] != _DEFAULTS[name]}

    # -- what is in an epoch ----------------------------------------------------------------------------------------

    def steps(self, batches: Batches, n_done: int = 0, begun_at: int = 0) -> Steps:
        """Returns what every rank trains in every step of an epoch after its first `n_done` batches. Optimizer updates
        are counted from batch `begun_at`, where these ranks began it."""

        def by_step(per_batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return per_batch[n_done:].reshape(-1, self.world_size, *per_batch.shape[1:])

        return Steps(
            by_step(batches.sizes),
            by_step(batches.sums(self._tokens)),
            by_step(batches.padded_lengths),
            by_step(batches.buckets),
            None if self.loss_tokens is None else by_step(batches.sums(self.loss_tokens)),
            self._denominators(batches, begun_at)[(n_done - begun_at) // self.world_size :],
        )

    def _denominators(self, batches: Batches, begun_at: int) -> npt.NDArray[np.int64]:
        tokens = batches.sums(self._tokens if self.loss_tokens is None else self.loss_tokens)[begun_at:]
        by_step = tokens.reshape(-1, self.world_size).sum(1)
        first_steps = np.arange(0, len(by_step), self.accumulation_steps)
        by_update = np.add.reduceat(by_step, first_steps) if len(by_step) else by_step
        return np.repeat(by_update, self.accumulation_steps)[: len(by_step)]

    def heaviest(self, batches: Batches, n_done: int = 0) -> list[HeavyBatch]:
        """Returns the batch that costs most, the one with the longest rows and the one with the most samples, among
        those after the first `n_done`; where they coincide, once. An empty rest has none."""
        heaviest = dict.fromkeys(batches.heaviest(n_done)) if n_done < len(batches) else ()
        return [
            HeavyBatch(*divmod(b - n_done, self.world_size), int(batches.sizes[b]), as_plain(batches.padded_lengths[b]))
            for b in heaviest
        ]

    # -- what must be equal -----------------------------------------------------------------------------------------

    def _find_identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = {"seed": self.seed, "order_version": ORDER_VERSION, "worst_first": self.worst_first}
        identity |= {"n_samples": len(self.lengths), "lengths": _digest(self.lengths)}
        if self.loss_tokens is not None:
            identity |= {"loss_tokens": _digest(self.loss_tokens), "min_loss_tokens": self.min_loss_tokens}
        identity |= {} if self.domains is None else {"domains": _digest(self.domains)}
        for name, value in self.options.items():
            if name != "threads":
                identity[name] = _identity_of(value)
        return identity

    @property
    def fingerprint(self) -> str:
        """Hex digest of the identity and the arrangement."""
        text = json.dumps([self.identity, self.arrangement], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def state_of(self, position: Position) -> dict[str, Any]:
        """Returns a position as a small dict of plain values, from which `position_of` reads it on any number of
        ranks."""
        return state_of(position, self.identity)

    def position_of(self, state: Mapping[str, Any]) -> Position:
        """Returns the position that `state_of` wrote to `state`, in the arrangement with which its epoch was begun. The
        start of an epoch takes the schedule's own; the end of one is the start of the next.

        Raises:
            TypeError: the state or one of its values is of the wrong kind.
            ValueError: the state lacks a key, lies beyond the end of its epoch, or is of other lengths, options, seed
                or order version; the message names all that differs.
        """
        identity, position = read_state(state)
        if differences := self._differences(identity):
            raise ValueError(
                f"state is of another plan: {differences}; build the sampler as it was when the state was saved, or "
                "begin the epoch anew with set_epoch"
            )
        if position.n_done == 0:
            return self.start_of(position.epoch)
        if position.n_done > (n_batches := self.n_batches(position.arrangement)):
            raise ValueError(
                f"state['position'] = {position.n_done} exceeds the {n_batches} batches of the epoch; pass what "
                "state_dict of this sampler returned"
            )
        return self.after(position.epoch, position) if position.n_done == n_batches else position

    def _differences(self, identity: Mapping[str, Any]) -> str:
        """How this schedule differs from one of another `identity`, in words; empty: not at all."""
        defaults: Mapping[str, Any] = {**_DEFAULTS, "min_loss_tokens": 0}
        mine, theirs = {**defaults, **self.identity}, {**defaults, **identity}
        differing = [key for key in {**self.identity, **identity} if mine.get(key) != theirs.get(key)]
        return ", ".join(f"{key} = {mine.get(key)!r} (saved with {theirs.get(key)!r})" for key in differing)

    # -- inside -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _own_planner(self) -> Planner:
        return self._planner_of(self.arrangement)

    def _planner(self, arrangement: Arrangement) -> Planner:
        own = arrangement[:2] == self.arrangement[:2]
        # Another arrangement is that of one epoch, which was begun before a resume: its planner is not kept.
        return self._own_planner if own else self._planner_of(arrangement)

    def _planner_of(self, arrangement: Arrangement) -> Planner:
        (window, align_ranks, _), names = arrangement, self.field_names
        return Planner(
            self.lengths if names is None else dict(zip(names, self.lengths.T, strict=True)),
            admitted=self._admitted,
            domains=self.domains,
            **self._options,
            window=window,
            align_ranks=align_ranks,
            constant_count=True,
        )

    def __getstate__(self) -> dict[str, Any]:
        # The planner is made again from the lengths; its memory does not travel to other processes.
        return {name: value for name, value in self.__dict__.items() if name != "_own_planner"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for array in (self.lengths, self.loss_tokens):
            if array is not None:
                array.flags.writeable = False  # Pickle forgets it.


_DEFAULTS: Mapping[str, Any] = {**_core.DEFAULTS}

_INSTEAD = {
    "constant_count": "it always plans the same number of batches for every epoch; leave it out",
    "align_ranks": "use balance_ranks=True",
}


def _admit(
    lengths: npt.NDArray[np.integer[Any]], loss_tokens: npt.NDArray[np.integer[Any]] | None, min_loss_tokens: int
) -> npt.NDArray[np.bool_] | None:
    """[n_samples], bool: which samples have enough supervised tokens; None: all."""
    if loss_tokens is None:
        if min_loss_tokens:
            raise ValueError(f"min_loss_tokens = {min_loss_tokens} is given without loss_tokens; pass both, or neither")
        return None
    if len(loss_tokens) != len(lengths):
        raise ValueError(
            f"loss_tokens has {len(loss_tokens)} samples, lengths has {len(lengths)}; pass one value for each sample"
        )
    exceeds = loss_tokens > lengths
    if exceeds.any():
        i = int(np.argmax(exceeds))
        raise ValueError(
            f"loss_tokens[{i}] = {loss_tokens[i]} exceeds lengths[{i}] = {lengths[i]}; pass the supervised tokens of "
            "each sample"
        )
    return loss_tokens >= min_loss_tokens if min_loss_tokens else None


def _as_loss_tokens(loss_tokens: Any) -> npt.NDArray[np.integer[Any]]:
    """The supervised tokens of each sample, checked as lengths are, under their own name."""
    try:
        checked = as_lengths(loss_tokens)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("lengths", "loss_tokens", 1)) from None
    negative = checked < 0
    if negative.any():
        i = int(np.argmax(negative))
        raise ValueError(f"loss_tokens[{i}] = {checked[i]} is negative; pass the supervised tokens of each sample")
    return checked


def _identity_of(value: Any) -> Any:
    """An option as a short plain value: a list by its hash, a mapping by its text."""
    if isinstance(value, list):
        return _digest(np.asarray(value))
    return repr(value) if isinstance(value, dict) else value


def _read_only(array: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """A copy, since the planner has one too: what the caller writes later would tear the two apart."""
    copied: npt.NDArray[np.integer[Any]] = array.copy()
    copied.flags.writeable = False
    return copied


def _digest(array: npt.NDArray[Any]) -> str:
    """Hash of integers, the same for every dtype and machine."""
    return hashlib.blake2b(np.ascontiguousarray(array, dtype="<i8").tobytes(), digest_size=8).hexdigest()
