"""The batches of some epochs, made on threads a few steps before they are asked for."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from bucketshuffle.batches import Batches
from bucketshuffle.position import Position
from bucketshuffle.shapes import as_plain
from bucketshuffle.torch._placement import Fields, Sent
from bucketshuffle.torch._threads import DroppedError, Made, Threads

if TYPE_CHECKING:
    from bucketshuffle.torch._pass import Pass
    from bucketshuffle.torch.sampler import BucketBatchSampler


class BatchInfo(NamedTuple):
    """What the plan says of a batch."""

    position: Position
    """The place before its step."""
    step: int
    """Steps of the whole epoch before it, on these ranks."""
    n_samples: int
    """Samples of the batch."""
    padded_length: int | tuple[int, ...]
    """Tokens of a row; with several fields, of each."""
    bucket: int
    """The bucket; -1: an over-long sample, kept by itself."""
    real_tokens: int
    """Tokens of the batch without padding."""
    step_tokens: int
    """Tokens without padding of all ranks in this step."""
    loss_tokens: int | None
    """Supervised tokens of the batch; None without `loss_tokens`."""
    denominator: int
    """What the sum of the losses of every batch of its optimizer update is divided by: see `Steps.denominators`."""
    ends_update: bool
    """Whether it is the last of its optimizer update."""
    ends_epoch: bool
    """Whether it is the last of its epoch."""

    @property
    def padded_tokens(self) -> int:
        """Tokens of the padded batch, over all fields."""
        row = self.padded_length
        return self.n_samples * (row if isinstance(row, int) else sum(row))


class Job(NamedTuple):
    """A batch to be made."""

    start: Position
    """Where the pass over its epoch begins."""
    batches: Batches
    """Those of the whole epoch."""
    samples: npt.NDArray[np.int64]
    info: BatchInfo


class Counts:
    """What a feed has delivered, and how long its consumers have waited."""

    def __init__(self) -> None:
        self.n_batches = self.n_stalls = self.real_tokens = self.padded_tokens = 0
        self.waited_s = self.elapsed_s = 0.0
        self._mark: float | None = None

    def begin(self) -> None:
        """Starts the clock of a loop, unless it runs."""
        if self._mark is None:
            self._mark = time.perf_counter()

    def wait(self, seconds: float, stalled: bool) -> None:
        """Counts how long a consumer waited for its batch, and lets the clock run on to now."""
        now = time.perf_counter()
        self.waited_s += seconds
        self.n_stalls += stalled
        self.elapsed_s += now - (self._mark or now)
        self._mark = now

    def add(self, info: BatchInfo) -> None:
        """Counts a batch that was delivered."""
        self.n_batches += 1
        self.real_tokens += info.real_tokens
        self.padded_tokens += info.padded_tokens

    def end(self) -> None:
        """Stops the clock: the loop has ended."""
        self._mark = None


class Remaining:
    """The batches of one rank from a position to the end of its epoch, one after the other."""

    def __init__(self, sampler: BucketBatchSampler, start: Position, batches: Batches) -> None:
        self.start, self.batches = start, batches
        self._world_size, self._rank = sampler.world_size, sampler.rank
        self._accumulation_steps = sampler.schedule.accumulation_steps
        steps = sampler.schedule.steps(batches, start.n_done, start.arrangement.begun_at)
        self._has_loss_tokens = steps.loss_tokens is not None
        of_rank = (steps.n_samples, steps.buckets, steps.real_tokens, steps.loss_tokens)
        columns = [steps.denominators if column is None else column[:, self._rank] for column in of_rank]
        self._padded_lengths = steps.padded_lengths[:, self._rank]
        self._rows = np.stack([*columns, steps.real_tokens.sum(1), steps.denominators], 1)
        self._next = 0

    @property
    def is_empty(self) -> bool:
        """Whether there was no batch from the start."""
        return len(self._rows) == 0

    def pop(self) -> Job | None:
        """Returns the next batch; None at the end."""
        i = self._next
        if i == len(self._rows):
            return None
        self._next = i + 1
        start = self.start
        position = start._replace(n_done=start.n_done + i * self._world_size)
        n_samples, bucket, real_tokens, loss_tokens, step_tokens, denominator = self._rows[i].tolist()
        ends_epoch = self._next == len(self._rows)
        n_steps_of_ranks = (position.n_done - start.arrangement.begun_at) // self._world_size + 1
        info = BatchInfo(
            position,
            position.n_done // self._world_size,
            n_samples,
            as_plain(self._padded_lengths[i]),
            bucket,
            real_tokens,
            step_tokens,
            loss_tokens if self._has_loss_tokens else None,
            denominator,
            ends_epoch or n_steps_of_ranks % self._accumulation_steps == 0,
            ends_epoch,
        )
        b = position.n_done + self._rank
        samples = self.batches.indices[self.batches.offsets[b] : self.batches.offsets[b + 1]]
        return Job(start, self.batches, samples, info)


class Ahead:
    """Makes batches on threads, keeps a bounded number of them, and hands each out once, in planned order.

    Nothing runs by itself: whoever takes a batch starts the making of later ones, so there is no thread that could be
    left waiting. Threads may take from one object; each batch goes to one of them.

    Args:
        sampler: whose batches.
        make: what makes a batch of one job, called on the threads. It must not refer to this object.
        until: the first epoch that is not made; the batches begin where the sampler's state stands. None: those of one
            pass, which begins as any other of the sampler does.
        n_threads: threads that make batches.
        n_ahead: batches that are made or kept before they are asked for.
        max_bytes: memory that they may take together. One batch is always allowed.
        plans: the plans of epochs that an earlier object has begun to make; what is left of it stays there.
        counts: what is counted.
    """

    def __init__(
        self,
        sampler: BucketBatchSampler,
        make: Callable[[Job], Sent],
        *,
        until: int | None,
        n_threads: int,
        n_ahead: int,
        max_bytes: int | None,
        plans: dict[Position, Made[Batches]],
        counts: Counts,
    ) -> None:
        self._sampler, self._make, self._until = sampler, make, until
        self._n_ahead, self._max_bytes = n_ahead, max_bytes
        self._plans, self._counts = plans, counts
        self._lock = threading.Lock()
        self._process = os.getpid()
        # One more, so that batches are made while the next epoch is planned.
        self._threads = Threads(n_threads + 1, "bucketshuffle-feed")
        self._queue: deque[tuple[Job, Made[Sent]]] = deque()
        self._plans_next = until is None
        self._has_begun = False
        self._remaining: Remaining | None = None
        self._next_start: Position | None = None
        self._taken: Position | None = None
        """Where the pass of the batch taken last began."""
        self._pass: Pass | None = None
        self._bytes_per_token = 0.0
        self._error: BaseException | None = None
        self._is_closed = False

    def take(self, receive: Callable[[Sent], Fields]) -> tuple[Fields, BatchInfo]:
        """Returns the next batch, which counts as delivered then; waits until it is made.

        Args:
            receive: takes the batch to its consumer.

        Raises:
            StopIteration: there is none, or the object is closed.
            RuntimeError: it was made before a fork, or has failed for another thread.
            Exception: what making the batch raised.
        """
        with self._lock:
            taken = self._take_or_fail()
            if taken is None:
                self._end_pass()
                raise StopIteration
            job, sent = taken
            try:
                fields = receive(sent)
            except BaseException as error:  # The batch would be lost: no later one follows it.
                self._fail(error)
                raise
            self._deliver(job)
            return fields, job.info

    def take_early(self) -> tuple[Job, Sent] | None:
        """Returns the next batch, which counts as delivered when `deliver` says so; None: there is none. It raises what
        `take` does."""
        with self._lock:
            return self._take_or_fail()

    def deliver(self, job: Job) -> None:
        """Says that the batch of `job`, the next in planned order, is with its consumers: the sampler's state counts
        it."""
        with self._lock:
            self._deliver(job)

    def finish(self) -> None:
        """Says that the last batch is with its consumers, and the pass over its epoch at its end."""
        with self._lock:
            self._end_pass()

    def close(self) -> None:
        """Ends the threads; what they are making is finished first. Batches that were not taken are dropped."""
        if self._process != os.getpid():
            return  # A fork has no threads to end, and their locks may be held.
        self._is_closed = True
        for _, made in list(self._queue):
            made.drop()
        self._threads.close()
        self._counts.end()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # The interpreter has ended the threads then.
            with suppress(AttributeError):  # An interrupt came inside __init__.
                self.close()

    def n_made(self) -> int:
        """Returns the batches that are ready and not taken."""
        return sum(made.done() for _, made in list(self._queue))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _take_or_fail(self) -> tuple[Job, Sent] | None:
        if self._process != os.getpid():
            raise RuntimeError(
                f"the feed was begun in process {self._process}, whose threads do not exist in process {os.getpid()}; "
                "begin the loop over the feed after the fork"
            )
        if self._error is not None:
            raise RuntimeError("another consumer of this feed has met an error") from self._error
        try:
            self._counts.begin()
            began = time.perf_counter()
            taken, stalled = self._take()
            self._counts.wait(time.perf_counter() - began, stalled)
        except BaseException as error:  # Ctrl-C, too
            self._fail(error)
            raise
        if taken is None:
            self.close()
        return taken

    def _fail(self, error: BaseException) -> None:
        """Ends the threads, for the other consumers too."""
        self._error = error
        self.close()

    def _take(self) -> tuple[tuple[Job, Sent] | None, bool]:
        """The next batch, and whether it had to be waited for."""
        if not self._has_begun:
            self._has_begun = True
            if self._until is not None:  # From where training stands, which may be inside an epoch or at its end.
                self._sampler.load_state_dict(self._sampler.state_dict())
            self._go_to(iter(self._sampler).position())
        while not self._is_closed:
            self._fill(may_wait=True)
            if not self._queue:
                break
            job, made = self._queue[0]
            if job.start != self._taken and self._is_moved(job.start):
                continue
            stalled = not made.done()
            try:
                sent = made.result()
            except DroppedError:
                break  # Another thread has closed the feed.
            self._queue.popleft()
            self._taken = job.start
            self._bytes_per_token = max(self._bytes_per_token, sent.n_bytes / job.info.padded_tokens)
            self._fill(may_wait=False)
            return (job, sent), stalled
        return None, False

    def _go_to(self, start: Position) -> None:
        if self._until is None:
            self._until = start.epoch + 1
        self._remaining, self._next_start = None, start if start.epoch < self._until else None

    def _is_moved(self, expected: Position) -> bool:
        """Whether the sampler was sent elsewhere since the last pass began. The batches come from there then."""
        actual = iter(self._sampler).position()
        if self._taken is None or actual in (expected, self._sampler.schedule.start_of(self._taken.epoch)):
            return False
        while self._queue:
            self._queue.pop()[1].drop()
        self._taken = actual
        self._go_to(actual)
        return True

    def _fill(self, may_wait: bool) -> None:
        while len(self._queue) < self._n_ahead and not self._is_closed:
            if self._remaining is None and not self._open(may_wait and not self._queue):
                return
            assert self._remaining is not None
            if self._queue and not self._has_room():
                return
            job = self._remaining.pop()
            if job is not None:
                self._queue.append((job, self._threads.submit(self._make, job)))
                continue
            if self._remaining.is_empty:
                self._begin_pass(self._remaining.start, self._remaining.batches)
                self._end_pass()
            self._remaining = None

    def _has_room(self) -> bool:
        if self._max_bytes is None:
            return True
        if not self._bytes_per_token:
            return False  # The first batch tells how large they are.
        sizes = [job.info.padded_tokens for job, _ in self._queue]
        return (sum(sizes) + max(sizes)) * self._bytes_per_token <= self._max_bytes

    def _open(self, may_wait: bool) -> bool:
        """Opens the next epoch, if there is one, and its plan is made or may be waited for."""
        start = self._next_start
        if start is None:
            return False
        plan = self._plan_of(start)
        if not may_wait and (plan.failed() or not plan.done()):  # An error waits for its turn.
            return False
        self._remaining = Remaining(self._sampler, start, plan.result())
        following = self._sampler.schedule.after(start.epoch, start)
        is_made = self._until is not None and start.epoch < following.epoch < self._until
        self._next_start = following if is_made else None
        if is_made or self._plans_next:
            self._plan_of(following)
        return True

    def _plan_of(self, start: Position) -> Made[Batches]:
        """The plan of one epoch, in the making or made; it takes the place of any other."""
        whole = start._replace(n_done=0)
        plan = self._plans.get(whole)
        if plan is None or plan.is_dropped:
            self._plans.clear()
            plan = self._threads.submit(self._sampler.schedule.batches, whole.epoch, whole.arrangement)
            self._plans[whole] = plan
        return plan

    def _deliver(self, job: Job) -> None:
        if self._pass is None or self._pass.start != job.start:
            self._end_pass()
            self._begin_pass(job.start, job.batches)
        assert self._pass is not None
        self._pass.advance()
        self._counts.add(job.info)

    def _begin_pass(self, start: Position, batches: Batches) -> None:
        begun = iter(self._sampler)
        if begun.position() != start:
            self._sampler.set_epoch(start.epoch)
        begun.begin(batches)
        self._pass = begun

    def _end_pass(self) -> None:
        if self._pass is not None and not self._pass.finished:
            with suppress(StopIteration):
                self._pass.advance()
