"""A torch batch sampler over the planner: every rank as many batches, every sample once, resumable anywhere."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils.data import BatchSampler

from bucketshuffle.lengths import as_lengths
from bucketshuffle.plan import ORDER_VERSION, BatchOptions, Planner
from bucketshuffle.torch.epoch import Batches, Course

if TYPE_CHECKING:
    from typing_extensions import Unpack

_STATE_VERSION = 1

_MAX_WORD = 2**64 - 1

# What an option left out means: an option that says the same makes the same plan, and must not part two states.
_DEFAULTS: BatchOptions = {
    "token_budget": 131_072,
    "max_batch_size": None,
    "boundaries": "auto",
    "padding_target": 0.01,
    "min_batches_per_bucket": 8,
    "pad_to_multiple_of": 1,
    "per_sample": 0,
    "quadratic_length": None,
    "strategy": "bucketed",
    "overlong": "error",
    "empty": "error",
}


class Steps(NamedTuple):
    """What each rank trains in each step of an epoch; every rank knows all of it without communication.

    Arrays are [n_steps, world_size], int64, unless said otherwise.
    """

    n_samples: npt.NDArray[np.int64]
    """Samples of the batch."""
    real_tokens: npt.NDArray[np.int64]
    """Tokens of the batch without padding. `real_tokens.sum(1)` is the global token count of each step."""
    padded_lengths: npt.NDArray[np.int64]
    """Tokens of a row of the padded batch."""
    buckets: npt.NDArray[np.int32]
    """The bucket, int32; -1: an over-long sample, kept by itself."""
    loss_tokens: npt.NDArray[np.int64] | None
    """Supervised tokens of the batch, where the sampler was given `loss_tokens`."""


class HeavyBatch(NamedTuple):
    """One of the batches that run out of memory first."""

    step: int
    rank: int
    n_samples: int
    padded_length: int
    """Tokens of a row."""


class BucketBatchSampler(BatchSampler):
    """Yields the batches of one rank as lists of sample indices, for `DataLoader(..., batch_sampler=sampler)`.

    All ranks get the same number of batches in every epoch, and together every admitted sample exactly once. The epoch
    never advances by itself: call `set_epoch(epoch)` before each pass, as for `DistributedSampler`.

    Args:
        lengths: [n_samples], tokens per sample, as for `pack_epoch`, in the order of the data set.
        seed: in [0, 2^64), the same on every rank.
        rank, world_size: this process and how many there are. Default: those of `torch.distributed` where it is
            initialised, else of the environment (`RANK`, `WORLD_SIZE`), else 0 of 1. Decided here, once.
        accumulation_steps: steps between two optimizer updates.
        window: batches between two optimizer updates, over all ranks. Default `world_size * accumulation_steps`, of
            which it must be a multiple. With a window that suits them all, the global order is the same for every world
            size.
        align_ranks: whether the ranks of one step get batches of similar length: equal shapes and attention costs, at
            the price of a mix over `accumulation_steps` strata of lengths instead of a whole window's. Padded tokens
            per rank are even without it, as every batch fills the budget.
        worst_first: whether the windows with the costliest batch, the longest rows and the most samples come first, so
            that an out-of-memory error shows at once; see `heaviest`.
        loss_tokens: [n_samples], supervised tokens per sample, reported by `steps`. Batches of similar length change
            windows until every window has about as many, so that an optimizer update weighs like the next; a window of
            one batch leaves nothing to even out.
        min_loss_tokens: samples with fewer supervised tokens are left out, and reported in `dropped`.
        sampler: a `DistributedSampler`, as Lightning puts here: rank and world size are taken from it. Where they are
            given as well, they must agree.
        options: those of `pack_epoch`, without `window`, `align_ranks` and `constant_count`.

    Raises:
        TypeError: `lengths` or an option is of the wrong kind.
        ValueError: a value cannot be accepted, or there are fewer samples than batches in a window.

    >>> from bucketshuffle.torch import BucketBatchSampler
    >>> samplers = [BucketBatchSampler([5, 3, 8, 5, 3, 8], token_budget=16, rank=r, world_size=2) for r in range(2)]
    >>> [len(sampler) for sampler in samplers], sorted(i for sampler in samplers for batch in sampler for i in batch)
    ([2, 2], [0, 1, 2, 3, 4, 5])
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
        align_ranks: bool = False,
        worst_first: bool = False,
        loss_tokens: Any = None,
        min_loss_tokens: int = 0,
        sampler: Any = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        self.rank, self.world_size = _rank_and_world_size(rank, world_size, sampler)
        self.seed = _word("seed", seed)
        self.epoch = 0
        self.accumulation_steps = _at_least("accumulation_steps", accumulation_steps, 1)
        multiple = self.world_size * self.accumulation_steps
        self.window = multiple if window is None else _at_least("window", window, 1)
        if self.window % multiple:
            raise ValueError(
                f"window = {self.window} is no multiple of world_size * accumulation_steps = {multiple}; leave window "
                "out, or set it to a multiple"
            )
        if "constant_count" in options:
            raise TypeError(
                "constant_count is not an option of the sampler, which always keeps the count; leave it out"
            )
        self.align_ranks = bool(align_ranks)
        self.worst_first = bool(worst_first)
        self.lengths = as_lengths(lengths)
        if len(self.lengths) == 0:
            raise ValueError(
                "lengths has 0 samples, fewer than the 1 that a sampler needs; pass the lengths of the data set"
            )
        self.min_loss_tokens = _at_least("min_loss_tokens", min_loss_tokens, 0)
        self.loss_tokens = None if loss_tokens is None else as_lengths(loss_tokens)
        self._admitted = _admit(self.lengths, self.loss_tokens, self.min_loss_tokens)
        self.options = options
        self._reset_caches()
        # Every mistake in lengths or options shows here, not in the first epoch.
        if self._planner(self._course).n_batches() == 0:
            raise ValueError(
                f"lengths has {len(self.lengths)} samples, all left out by overlong, empty or min_loss_tokens; raise "
                "token_budget, or lower min_loss_tokens"
            )
        self._identity = self._find_identity()  # Hashing a million lengths takes 8 ms, once.

    def _reset_caches(self) -> None:
        self._course = Course(self.window, self.world_size if self.align_ranks else 1)
        self._planners: dict[Course, Planner] = {}
        self._batches_cache: tuple[tuple[int, Course], Batches] | None = None
        self._pending: _Position | None = None
        self._last: _PlanIterator | None = None

    # -- the batches ----------------------------------------------------------------------------------------------

    def __iter__(self) -> _PlanIterator:
        """Returns a new iterator; nothing is planned or taken before its first `next`."""
        return _PlanIterator(self)

    def __len__(self) -> int:
        """Returns the batches of this rank in a whole epoch: the same on every rank and in every epoch."""
        return self._planner(self._course).n_batches() // self.world_size

    @property
    def sampler(self) -> BucketBatchSampler:  # type: ignore[override]
        """The sampler itself: where Lightning and accelerate look for `set_epoch`."""
        return self

    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """[n_dropped], int64: the samples left out by policy, ascending."""
        by_plan = self._planner(self._course).dropped
        if self._admitted is None:
            return by_plan
        by_loss = np.setdiff1d(np.arange(len(self.lengths)), self._admitted)
        return np.union1d(by_loss, self._admitted[by_plan])

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Sets the epoch of the passes that begin from now on; the same epoch again changes nothing.

        Between a resume and its first batch another epoch is ignored with a warning, as some trainers count from 0
        again in a new process; `reset()` gives the resume up.
        """
        epoch = _word("epoch", epoch)
        if epoch == self.epoch:
            return
        if (pending := self._pending) is not None and pending.position > 0:
            at_end = pending.position == self._n_batches(pending.course)
            if not (at_end and epoch > pending.epoch):
                warnings.warn(
                    f"bucketshuffle: set_epoch({epoch}) is ignored, since the sampler is about to resume epoch "
                    f"{pending.epoch}; call reset() first to give the resume up",
                    stacklevel=2,
                )
                return
        self.epoch = epoch
        self._pending = self._last = None

    def reset(self) -> None:
        """Forgets a resume that has not begun, and where the pass before stood: the next pass begins at its start."""
        self._pending = self._last = None

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns where the pass that was advanced last stands, batches just returned included: a small dict of plain
        values, the same on every rank, that loads on any number of ranks.

        A `DataLoader` with workers asks for batches ahead of those it has delivered: count the delivered ones and
        `resume`, or use torchdata's `StatefulDataLoader`.
        """
        if self._pending is not None:
            return self._state(self._pending)
        if self._last is not None:
            return self._last.state_dict()
        return self._state(_Position(self.epoch, 0, self._course))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass go on where `state` was taken, on this sampler's ranks: the epoch keeps the plan that it
        was begun with, its rest is dealt to the ranks of today. `len` stays that of a whole epoch.

        Raises:
            ValueError: the state lacks a key, or is of other lengths, options, seed or order version (all that differs
                is named), or what is left of its epoch has fewer samples than these ranks need batches.
        """
        self._pending = self._parse(state)
        self._last = None
        self.epoch = self._pending.epoch

    def resume(self, epoch: SupportsIndex, batches_done: SupportsIndex) -> None:
        """Makes the next pass begin in `epoch` after `batches_done` batches of every rank, as counted by the trainer.

        Raises:
            ValueError: `batches_done` exceeds `len(self)`.
        """
        done = _at_least("batches_done", batches_done, 0)
        if done > len(self):
            raise ValueError(f"batches_done = {done} exceeds len(sampler) = {len(self)}; pass the batches of one epoch")
        self.epoch = _word("epoch", epoch)
        self._pending = _Position(self.epoch, done * self.world_size, self._course)
        self._last = None

    @property
    def fingerprint(self) -> str:
        """Hex digest of lengths, options, seed and order version; equal on all ranks that will train the same epoch."""
        text = json.dumps([self._identity, self._course], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    # -- what is in an epoch ----------------------------------------------------------------------------------------

    def steps(self, epoch: SupportsIndex | None = None) -> Steps:
        """Returns what every rank trains in every step of `epoch`. Default: in the steps of the pass that is about to
        begin or under way, after a resume those of the rest: `zip(loader, sampler.steps().real_tokens.sum(1))`.
        """
        batches, first = self._batches_shown(epoch)
        shape = (-1, self.world_size)
        return Steps(
            batches.sizes[first:].reshape(shape),
            batches.sums(self.lengths)[first:].reshape(shape),
            batches.padded_lengths[first:].reshape(shape),
            batches.buckets[first:].reshape(shape),
            None if self.loss_tokens is None else batches.sums(self.loss_tokens)[first:].reshape(shape),
        )

    def heaviest(self, epoch: SupportsIndex | None = None) -> list[HeavyBatch]:
        """Returns the batch that costs most, the one with the longest rows and the one with the most samples, among
        those that `steps(epoch)` reports; where they coincide, once."""
        batches, first = self._batches_shown(epoch)
        return [
            HeavyBatch(*divmod(b - first, self.world_size), int(batches.sizes[b]), int(batches.padded_lengths[b]))
            for b in dict.fromkeys(batches.heaviest(self._costs(batches), first))
        ]

    def _batches_shown(self, epoch: SupportsIndex | None) -> tuple[Batches, int]:
        """The batches of an epoch, and the first that is trained in it from now on."""
        if epoch is not None:
            at = _Position(_word("epoch", epoch), 0, self._course)
        elif self._last is not None and self._last._start is not None and not self._last._finished:
            at = self._last._start
        else:
            at = self._pending or _Position(self.epoch, 0, self._course)
        return self._batches(at.epoch, at.course), at.position

    def _costs(self, batches: Batches) -> npt.NDArray[np.float64]:
        """[n_batches], float64: the cost model of `pack_epoch`, to compare batches by."""
        rows = batches.padded_lengths.astype(np.float64)
        quadratic_length = self.options.get("quadratic_length")
        attention = rows**2 / quadratic_length if quadratic_length else 0.0
        costs: npt.NDArray[np.float64] = batches.sizes * (self.options.get("per_sample", 0) + rows + attention)
        return costs

    def _planner(self, course: Course) -> Planner:
        course = course._replace(deals=())
        if course not in self._planners:
            lengths, admitted = self.lengths, self._admitted
            if admitted is not None:
                lengths = lengths[admitted]
            try:
                self._planners[course] = Planner(
                    lengths, **self.options, window=course.window, align_ranks=course.align_ranks, constant_count=True
                )
            except ValueError as error:
                if admitted is None:
                    raise
                # The planner counts the samples that it was given: name the one that the caller knows.
                text = re.sub(r"\blengths\[(\d+)\]", lambda found: f"lengths[{admitted[int(found[1])]}]", str(error))
                raise ValueError(text) from None
        return self._planners[course]

    def _n_batches(self, course: Course) -> int:
        """Batches of all ranks in an epoch that takes this course."""
        return course.n_batches(self._planner(course).n_batches())

    def _batches(self, epoch: int, course: Course) -> Batches:
        if self._batches_cache is None or self._batches_cache[0] != (epoch, course):
            batches = Batches.of(self._planner(course).plan(self.seed, epoch), self._admitted)
            if self.loss_tokens is not None:
                batches = batches.evened(batches.sums(self.loss_tokens), self._costs(batches), course)
            if self.worst_first:
                batches = batches.led_by(batches.heaviest(self._costs(batches)), course.window)
            for position, multiple in course.deals:
                batches = batches.dealt(position, multiple, self.lengths, self.options.get("pad_to_multiple_of", 1))
            self._batches_cache = ((epoch, course), batches)
        return self._batches_cache[1]

    # -- state, inside ------------------------------------------------------------------------------------------------

    def _find_identity(self) -> dict[str, Any]:
        """What must be equal for a state to mean the same batches; each entry is short."""
        identity: dict[str, Any] = {"seed": self.seed, "order_version": ORDER_VERSION, "worst_first": self.worst_first}
        identity |= {"n_samples": len(self.lengths), "lengths": _digest(self.lengths)}
        if self.loss_tokens is not None:
            identity |= {"loss_tokens": _digest(self.loss_tokens), "min_loss_tokens": self.min_loss_tokens}
        for name, value in self.options.items():
            edges = not isinstance(value, str) and hasattr(value, "__len__")
            short = _digest(np.asarray(value)) if edges else _plain(value)
            if name in _DEFAULTS and short != _DEFAULTS.get(name):
                identity[name] = short
        return identity

    def _state(self, at: _Position) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "epoch": at.epoch,
            "position": at.position,
            "window": at.course.window,
            "align_ranks": at.course.align_ranks,
            "deals": [list(deal) for deal in at.course.deals],
            "identity": dict(self._identity),
        }

    def _parse(self, state: Mapping[str, Any]) -> _Position:
        if state.get("version", _STATE_VERSION) != _STATE_VERSION:
            raise ValueError(
                f"state['version'] = {state['version']!r} is not {_STATE_VERSION}; load it with the version of "
                "bucketshuffle that saved it"
            )
        known = self._state(_Position(0, 0, self._course))
        if missing := [key for key in known if key not in state]:
            raise ValueError(f"state has no {missing[0]!r}; pass what state_dict of this sampler returned")
        if unknown := sorted(set(state) - set(known)):
            warnings.warn(
                f"bucketshuffle: state has unknown keys, which are ignored: {', '.join(unknown)}", stacklevel=3
            )
        theirs, mine = state["identity"], known["identity"]
        if differing := [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]:
            defaults: Mapping[str, Any] = {"min_loss_tokens": 0, **_DEFAULTS}
            what = ", ".join(
                f"{key} = {mine.get(key, defaults.get(key))!r} (saved with {theirs.get(key, defaults.get(key))!r})"
                for key in differing
            )
            raise ValueError(
                f"state is of another plan: {what}; build the sampler as it was when the state was saved, or begin the "
                "epoch anew with set_epoch"
            )
        epoch = _word("state['epoch']", state["epoch"])
        position = _at_least("state['position']", state["position"], 0)
        if position == 0:
            return _Position(epoch, 0, self._course)
        course = Course(
            _at_least("state['window']", state["window"], 1),
            _at_least("state['align_ranks']", state["align_ranks"], 1),
            tuple((_at_least("state['deals']", at, 0), _at_least("state['deals']", n, 1)) for at, n in state["deals"]),
        )
        n_planned = self._planner(course).n_batches()
        if position > course.n_batches(n_planned):
            raise ValueError(
                f"state['position'] = {position} exceeds the {course.n_batches(n_planned)} batches of the epoch; pass "
                "what state_dict of this sampler returned"
            )
        dealt = course.dealt(n_planned, position, self.world_size * self.accumulation_steps)
        if dealt != course:
            self._batches(epoch, dealt)  # What cannot be dealt shows here, not in the first step.
        return _Position(epoch, position, dealt)

    def _take_start(self) -> _Position:
        """Where the next pass begins; a resume is taken once."""
        start, self._pending = self._pending, None
        return start if start is not None else _Position(self.epoch, 0, self._course)

    def __getstate__(self) -> dict[str, Any]:
        # Plans are made again from the lengths; the planner's memory does not travel to other processes.
        dropped = {"_planners", "_batches_cache", "_last"}
        return {name: value for name, value in self.__dict__.items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pending = state.get("_pending")
        self.__dict__.update(state)
        self._reset_caches()
        self._pending = pending

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in sorted(self.options.items()))
        return (
            f"{type(self).__name__}(n_samples={len(self.lengths)}, seed={self.seed}, rank={self.rank}, "
            f"world_size={self.world_size}, accumulation_steps={self.accumulation_steps}, window={self.window}, "
            f"align_ranks={self.align_ranks}, worst_first={self.worst_first}{options})"
        )


class _Position(NamedTuple):
    """A place between two steps of an epoch."""

    epoch: int
    position: int
    """Batches of all ranks before it."""
    course: Course


class _PlanIterator(Iterator[list[int]]):
    """One pass of one rank. It plans when it is first advanced, and has a state of its own."""

    def __init__(self, sampler: BucketBatchSampler) -> None:
        self._sampler = sampler
        self._start: _Position | None = None
        self._step = 0
        self._finished = False

    def __next__(self) -> list[int]:
        if self._start is None:
            self._begin(self._sampler._take_start())
        step = self._step
        self._sampler._last = self
        if step == len(self._starts):
            self._finished = True
            raise StopIteration
        self._step = step + 1
        batch: list[int] = self._indices[self._starts[step] : self._ends[step]].tolist()
        return batch

    def _begin(self, start: _Position) -> None:
        sampler = self._sampler
        batches = sampler._batches(start.epoch, start.course)
        mine = slice(start.position + sampler.rank, None, sampler.world_size)
        self._start = start
        self._indices = batches.indices
        self._starts: list[int] = batches.offsets[:-1][mine].tolist()
        self._ends: list[int] = batches.offsets[1:][mine].tolist()

    def state_dict(self) -> dict[str, Any]:
        """Returns where this pass stands, the batch just returned included; after its end: the start of a pass."""
        sampler = self._sampler
        if self._start is None:
            return sampler._state(sampler._pending or _Position(sampler.epoch, 0, sampler._course))
        if self._finished:
            return sampler._state(_Position(self._start.epoch, 0, sampler._course))
        done = self._start.position + self._step * sampler.world_size
        return sampler._state(self._start._replace(position=done))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes this pass go on where `state` was taken; a resume that waits in the sampler is dropped.

        Raises:
            ValueError: as `BucketBatchSampler.load_state_dict`.
        """
        at = self._sampler._parse(state)
        self._step, self._finished = 0, False
        self._sampler._pending, self._sampler.epoch, self._sampler._last = None, at.epoch, self
        self._begin(at)


def _rank_and_world_size(rank: int | None, world_size: int | None, sampler: Any) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        given, absent = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise ValueError(f"{given} is given without {absent}; pass both, or neither")
    injected = (sampler.rank, sampler.num_replicas) if hasattr(sampler, "num_replicas") else None
    if rank is None or world_size is None:
        rank, world_size = injected or _found_rank_and_world_size()
    elif injected not in (None, (rank, world_size)):
        raise ValueError(
            f"rank = {rank}, world_size = {world_size} differ from those of sampler = {injected}; leave one of them out"
        )
    world_size = _at_least("world_size", world_size, 1)
    rank = _at_least("rank", rank, 0)
    if rank >= world_size:
        raise ValueError(f"rank = {rank} is not below world_size = {world_size}; ranks count from 0")
    return rank, world_size


def _found_rank_and_world_size() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    variables = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    if len(variables) == 1:
        (name,) = variables
        raise ValueError(
            f"the environment has {name} alone of RANK and WORLD_SIZE; set both, or pass rank and world_size"
        )
    if not variables:
        return 0, 1
    for name, value in variables.items():
        if not value.isdecimal():
            raise ValueError(
                f"the environment has {name} = {value!r}, not a whole number; correct it, or pass rank and world_size"
            )
    return int(variables["RANK"]), int(variables["WORLD_SIZE"])


def _at_least(name: str, value: SupportsIndex, minimum: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} = {value!r} is not an integer; pass one")
    number = operator.index(value)
    if number < minimum:
        raise ValueError(f"{name} = {number} is below its minimum = {minimum}; choose {minimum} or more")
    return number


def _word(name: str, value: SupportsIndex) -> int:
    number = _at_least(name, value, 0)
    if number > _MAX_WORD:
        raise ValueError(f"{name} = {number} exceeds its maximum = {_MAX_WORD}; choose {_MAX_WORD} or less")
    return number


def _admit(
    lengths: npt.NDArray[np.integer[Any]], loss_tokens: npt.NDArray[np.integer[Any]] | None, min_loss_tokens: int
) -> npt.NDArray[np.int64] | None:
    """Indices of the samples with enough supervised tokens; None: all."""
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
    return np.flatnonzero(loss_tokens >= min_loss_tokens) if min_loss_tokens else None


def _digest(array: npt.NDArray[Any]) -> str:
    """Hash of integers, the same for every dtype and machine."""
    return hashlib.blake2b(np.ascontiguousarray(array, dtype="<i8").tobytes(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """A NumPy scalar as the Python value that JSON knows."""
    return value.item() if isinstance(value, np.generic) else value
