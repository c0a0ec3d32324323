"""The same batches for several consumers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from bucketshuffle.torch._ahead import Ahead, BatchInfo, Job
from bucketshuffle.torch._placement import Fields, Sent

_LOOK_EVERY_S = 0.5
"""How often a consumer that waits for another looks whether that one still runs."""


class Copies:
    """Hands every batch to each of `n` consumers, in planned order.

    The fastest is at most `n_ahead` batches in front of the slowest. A batch counts as delivered when all have it.
    """

    def __init__(self, ahead: Ahead, n: int, n_ahead: int) -> None:
        self._ahead, self._n_ahead = ahead, n_ahead
        self._lock = threading.RLock()  # The garbage collector may let a consumer leave while its thread holds it.
        self._wake = [threading.Lock() for _ in range(n)]
        """Of each consumer, for `_wait`; see `_threads` on why this is no `threading.Condition`."""
        self._held: deque[tuple[Job, Sent]] = deque()
        self._n_taken = [0] * n
        """Batches that each consumer has."""
        self._present = [True] * n
        self._thread: list[threading.Thread | None] = [None] * n
        """Which thread each consumer runs on."""
        self._n_delivered = 0
        self._is_exhausted = False

    def take(self, consumer: int, receive: Callable[[Sent], Fields]) -> tuple[Fields, BatchInfo]:
        """Returns the next batch of one consumer; see `Ahead.take`.

        Raises:
            StopIteration: there is none, or the consumer has left.
            RuntimeError: another consumer has stopped without leaving, or has met an error.
            Exception: what making the batch raised.
        """
        while True:
            with self._lock:
                self._thread[consumer] = threading.current_thread()
                if not self._present[consumer]:
                    raise StopIteration
                i = self._n_taken[consumer] - self._n_delivered
                if i < len(self._held):
                    job, sent = self._held[i]
                    fields = receive(sent)
                    self._n_taken[consumer] += 1
                    self._drop_delivered()
                    return fields, job.info
                if self._is_exhausted:
                    self._leave(consumer)
                    continue
                if len(self._held) < self._n_ahead:
                    taken = self._ahead.take_early()
                    self._is_exhausted = taken is None
                    if taken is not None:
                        self._held.append(taken)
                    continue
                self._check_slowest(consumer)
                self._wake[consumer].acquire(blocking=False)
            self._wake[consumer].acquire(timeout=_LOOK_EVERY_S)

    def leave(self, consumer: int) -> None:
        """Says that a consumer takes no more batches, so that none is kept for it."""
        with self._lock:
            self._leave(consumer)

    def _leave(self, consumer: int) -> None:
        self._present[consumer] = False
        if any(self._present):
            self._drop_delivered()
        elif self._is_exhausted and not self._held:
            self._ahead.finish()
        else:
            self._ahead.close()

    def _drop_delivered(self) -> None:
        n_of_all = min(n for n, present in zip(self._n_taken, self._present, strict=True) if present)
        while self._n_delivered < n_of_all:
            self._ahead.deliver(self._held.popleft()[0])
            self._n_delivered += 1
        for lock in self._wake:
            with suppress(RuntimeError):  # Nobody waits for it.
                lock.release()

    def _check_slowest(self, consumer: int) -> None:
        """Raises if the batch that is waited for will never be taken."""
        for other, thread in enumerate(self._thread):
            if not self._present[other] or self._n_taken[other] > self._n_delivered or thread is None:
                continue
            if not thread.is_alive() or thread is threading.current_thread():
                why = "runs on the same thread" if thread.is_alive() else "ended without its last batches"
                raise RuntimeError(
                    f"consumer {consumer} is {self._n_taken[consumer] - self._n_taken[other]} batches in front of "
                    f"consumer {other}, which {why}; give each a thread that takes all batches, or close() the one "
                    "that stops"
                )
