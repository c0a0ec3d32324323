"""Batches made ahead of the training loop on threads, and placed on the device."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch.utils.data import SequentialSampler

from bucketshuffle.batches import Batches
from bucketshuffle.options import flag, integer
from bucketshuffle.position import Position
from bucketshuffle.torch._ahead import Ahead, BatchInfo, Counts, Job
from bucketshuffle.torch._check_padding import check_padding
from bucketshuffle.torch._copies import Copies
from bucketshuffle.torch._placement import Fields, Placement, Sent, pinned
from bucketshuffle.torch._threads import Made
from bucketshuffle.torch.collate import PadCollator
from bucketshuffle.torch.dataset import PreloadedDataset
from bucketshuffle.torch.sampler import BucketBatchSampler

__all__ = ["BatchInfo", "Feed", "FeedBatch", "FeedCounters", "FeedIterator"]

_Device = torch.device | str | int


class FeedBatch(dict[str, Any]):
    """A batch by key, ready for `model(**batch)`, with what the plan says of it in `info`."""

    def __init__(self, fields: Mapping[str, Any] | Sequence[Any] = (), info: BatchInfo | None = None) -> None:
        super().__init__(fields)
        self.info = info
        """None in a copy that a trainer has made of the fields alone."""


class FeedCounters(NamedTuple):
    """What a feed has delivered since it was made; see `Feed.counters`."""

    n_batches: int
    real_tokens: int
    padded_tokens: int
    elapsed_s: float
    """Seconds inside the loops, from their begin to the batch taken last."""
    waited_s: float
    """Of these, seconds in which a consumer waited for its batch."""
    n_stalls: int
    """Batches that were not ready when they were asked for; the first of a loop hardly ever is."""
    n_ready: int
    """Batches that are ready now and not yet asked for."""

    @property
    def wait_share(self) -> float:
        """`waited_s / elapsed_s`; 0.0 before the first batch."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def real_tokens_per_s(self) -> float:
        """Tokens without padding per second; 0.0 before the first batch."""
        return self.real_tokens / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def padded_tokens_per_s(self) -> float:
        """Tokens with padding per second; 0.0 before the first batch."""
        return self.padded_tokens / self.elapsed_s if self.elapsed_s else 0.0

    def postfix(self) -> dict[str, str]:
        """Returns the figures for a progress bar, such as `tqdm.set_postfix`."""
        return {
            "Ktok/s": f"{self.real_tokens_per_s / 1e3:.1f}",
            "padded": f"{self.padded_tokens_per_s / 1e3:.1f}",
            "wait": f"{self.wait_share:.1%}",
            "ready": str(self.n_ready),
        }


class FeedIterator(Iterator[FeedBatch]):
    """The batches of a loop. Threads may share one: each batch goes to one of them, in planned order."""

    def __init__(self, take: Callable[[], tuple[Fields, BatchInfo]], leave: Callable[[], None]) -> None:
        self._take, self._leave = take, leave
        self._is_closed = False

    def __next__(self) -> FeedBatch:
        if self._is_closed:
            raise StopIteration
        return FeedBatch(*self._take())

    def close(self) -> None:
        """Ends the loop: the threads end when they have made the batches that they are at. Leaving a `for` loop,
        garbage collection and the end of a `with` block do the same."""
        if not self._is_closed:
            self._is_closed = True
            self._leave()

    def __enter__(self) -> FeedIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            with suppress(AttributeError):  # An interrupt came inside __init__.
                self.close()


class Feed:
    """Makes padded batches on threads ahead of the training loop, and places them on its device.

    The next epoch is planned while one trains. At most `n_ahead` batches are made or kept ahead, so a slow loop holds
    the feed back. The sampler's state counts the batches that the loop has: a checkpoint neither loses nor repeats
    those that are under way, and loads on other ranks as the sampler's does.

    Leaving the loop, an error in it or in the data set, Ctrl-C, and garbage collection end the threads; a batch that is
    being made then is finished first. An error in the data set or the collator is raised in the loop, with its own
    traceback.

    It has what trainers ask of a loader: `len`, `set_epoch`, `dataset`, `sampler`, `batch_sampler`, `collate_fn` and a
    state.

    Args:
        data: a map-style data set; a `PreloadedDataset` is the fastest, because a batch of it is one native call.
        sampler: whose batches.
        collate: makes a mapping of samples. Default: the data set's own `collate`, or
            `PadCollator(padding_of=sampler)`.
        device: where batches go. On a CUDA device the copies start from pinned memory, on a stream of their own.
            Default: they stay in the CPU's memory.
        n_threads: threads that make batches. Raise it for a data set that reads files. One more plans the next epoch,
            and makes batches when it has nothing to plan.
        n_ahead: batches that are made or kept before the loop asks for them.
        max_bytes: memory that these may take together, bytes; one batch is always allowed. Default: no limit.

    Raises:
        TypeError: an argument is of the wrong kind, or on iteration, a batch that is no mapping.
        ValueError: the data set has another size than the sampler's lengths, or the collator pads past the plan.

    Examples:
        >>> from bucketshuffle.torch import BucketBatchSampler, Feed, PreloadedDataset
        >>> data = PreloadedDataset.from_rows([[5, 6, 7], [8, 9], [3]])
        >>> feed = Feed(data, BucketBatchSampler(data.lengths, token_budget=6))
        >>> for batch in feed.epochs(2):
        ...     loss_scale = 1 / batch.info.denominator
        >>> feed.counters().n_batches
        4
    """

    prefetch_factor = None
    """accelerate's `skip_first_batches`, and with it the HF Trainer, trains the rest of an epoch from a `DataLoader`
    that it makes of a loader's attributes, this one among them."""

    def __init__(
        self,
        data: Any,
        sampler: BucketBatchSampler,
        *,
        collate: Callable[[Any], Mapping[str, Any]] | None = None,
        device: _Device | None = None,
        n_threads: int = 2,
        n_ahead: int = 8,
        max_bytes: int | None = None,
    ) -> None:
        if not isinstance(sampler, BucketBatchSampler):
            raise TypeError(f"sampler is a {type(sampler).__name__}, not a BucketBatchSampler")
        if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
            raise TypeError(
                f"data is a {type(data).__name__} without __getitem__ and __len__; pass a map-style data set, such as "
                "a PreloadedDataset"
            )
        self.dataset = data
        self.batch_sampler = sampler
        self.sampler = SequentialSampler(data)  # As a `DataLoader` with a batch sampler has; Lightning looks at it.
        self.collate_fn = collate or getattr(data, "collate", None) or PadCollator(padding_of=sampler)
        self.device = None if device is None else torch.device(device)
        self.n_threads = integer("n_threads", n_threads, 1)
        self.n_ahead = integer("n_ahead", n_ahead, 1)
        self.max_bytes = None if max_bytes is None else integer("max_bytes", max_bytes, 1)
        check_padding(self, sampler, 0)
        self._plans: dict[Position, Made[Batches]] = {}
        self._process = os.getpid()
        self._counts = Counts()
        self._latest: weakref.ref[Ahead] | None = None

    def __len__(self) -> int:
        """Returns the batches of this rank in a whole epoch."""
        return len(self.batch_sampler)

    def __iter__(self) -> FeedIterator:
        """Returns one pass over the sampler's epoch: from its start, after a resume from there. As with a `DataLoader`,
        `set_epoch` chooses the epoch."""
        return self._consumers(1, None, copies=False, devices=None)[0]

    def epochs(self, n_epochs: int) -> FeedIterator:
        """Returns what is left of epochs `0..n_epochs` from where `state_dict` stands, without a stall between them.

        Each batch says in `info.position.epoch` which it belongs to. `set_epoch` is called by itself.
        """
        return self._consumers(1, integer("n_epochs", n_epochs, 1), copies=False, devices=None)[0]

    def consumers(
        self,
        n: int,
        *,
        n_epochs: int | None = None,
        copies: bool = False,
        devices: Sequence[_Device] | None = None,
    ) -> list[FeedIterator]:
        """Returns iterators for `n` consumers on threads of their own.

        Args:
            n_epochs: as for `epochs`. Default: one pass, as `iter(feed)`.
            copies: every consumer gets all batches, in planned order, and the state counts those that all have. A
                consumer that stops early calls `close()`; one whose thread ends without it raises an error in the
                others. False: each batch goes to the consumer that asks first.
            devices: one for each consumer, in place of the feed's. Batches are copied there when they are asked for.
        """
        n = integer("n", n, 1)
        if devices is not None and len(devices) != n:
            raise ValueError(f"devices has {len(devices)} entries for {n} consumers; give one for each")
        until = None if n_epochs is None else integer("n_epochs", n_epochs, 1)
        return self._consumers(n, until, copies=flag("copies", copies), devices=devices)

    def _consumers(
        self, n: int, until: int | None, *, copies: bool, devices: Sequence[_Device] | None
    ) -> list[FeedIterator]:
        if self._process != os.getpid():  # A plan that was under way at a fork stays so for ever.
            self._plans, self._process = {}, os.getpid()
        common = Placement(None if devices else self.device)
        receive: list[Callable[[Sent], Fields]] = [common.receive] * n
        if devices:
            receive = [partial(_forward, Placement(torch.device(device))) for device in devices]
        is_pinned = any(torch.device(device).type == "cuda" for device in devices or ())
        data, collate = self.dataset, self.collate_fn
        if isinstance(data, PreloadedDataset) and getattr(collate, "__func__", None) is PreloadedDataset.collate:
            fetch: Callable[[Any], Any] = data.batch
        else:
            fetch = partial(_fetch, data, collate)
        ahead = Ahead(
            self.batch_sampler,
            partial(_make, fetch, common, is_pinned),
            until=until,
            n_threads=self.n_threads,
            n_ahead=self.n_ahead,
            max_bytes=self.max_bytes,
            plans=self._plans,
            counts=self._counts,
        )
        self._latest = weakref.ref(ahead)
        if copies:
            shared = Copies(ahead, n, self.n_ahead)
            return [FeedIterator(partial(shared.take, i, receive[i]), partial(shared.leave, i)) for i in range(n)]
        present = set(range(n))
        return [FeedIterator(partial(ahead.take, receive[i]), partial(_leave, ahead, present, i)) for i in range(n)]

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """See `BucketBatchSampler.set_epoch`."""
        self.batch_sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the batches that were delivered: see `BucketBatchSampler.state_dict`."""
        return self.batch_sampler.state_dict()

    def state_after(self, info: BatchInfo) -> dict[str, Any]:
        """Returns the state once the batch of `info` is trained, for a pipeline whose first stage is ahead of its last.
        The same as `state_dict` right after that batch was delivered."""
        schedule, position = self.batch_sampler.schedule, info.position
        done = position._replace(n_done=position.n_done + schedule.world_size)
        return schedule.state_of(schedule.after(done.epoch, done) if info.ends_epoch else done)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next loop continue where `state` was taken: see `BucketBatchSampler.load_state_dict`."""
        self.batch_sampler.load_state_dict(state)

    def counters(self) -> FeedCounters:
        """Returns a snapshot of what has been delivered since the feed was made."""
        counts, latest = self._counts, None if self._latest is None else self._latest()
        return FeedCounters(
            counts.n_batches,
            counts.real_tokens,
            counts.padded_tokens,
            counts.elapsed_s,
            counts.waited_s,
            counts.n_stalls,
            latest.n_made() if latest is not None else 0,
        )

    def __repr__(self) -> str:
        return (
            f"Feed({self.dataset!r}, {self.batch_sampler!r}, device={self.device}, n_threads={self.n_threads}, "
            f"n_ahead={self.n_ahead}, max_bytes={self.max_bytes})"
        )

    def __getstate__(self) -> dict[str, Any]:
        # Threads and plans do not travel to other processes.
        return {**self.__dict__, "_plans": {}, "_latest": None}


def _fetch(data: Any, collate: Callable[[Any], Any], samples: Any) -> Any:
    """What a DataLoader does with the samples of a batch."""
    indices: list[int] = samples.tolist()
    if hasattr(data, "__getitems__"):
        return collate(data.__getitems__(indices))
    return collate([data[i] for i in indices])


def _make(fetch: Callable[[Any], Any], placement: Placement, is_pinned: bool, job: Job) -> Sent:
    """Makes the batch of a job on one of the feed's threads."""
    try:
        fields = fetch(job.samples)
    except StopIteration as error:  # It would end the loop as if the epoch were over.
        raise RuntimeError("the data set or its collator raised StopIteration") from error
    if not isinstance(fields, Mapping):
        raise TypeError(f"collate returned a {type(fields).__name__}, not a mapping; return a dict of tensors by key")
    if is_pinned:
        fields = pinned(fields)
    return placement.send(fields)


def _forward(placement: Placement, sent: Sent) -> Fields:
    return placement.receive(placement.send(sent.fields))


def _leave(ahead: Ahead, present: set[int], consumer: int) -> None:
    """Ends the threads with the last of several consumers."""
    present.discard(consumer)
    if not present:
        ahead.close()
