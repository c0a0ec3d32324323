"""Threads that make things in the background, and whose bookkeeping survives an interrupt at any moment.

`concurrent.futures` and `threading.Condition` take their locks in Python code. A signal handler that raises right after
that, as Ctrl-C does, leaves the lock taken, and whoever wants it next waits for ever: another consumer, or the garbage
collector. Here all locks and queues are those made in C, whose `with` a handler cannot break.
"""

from __future__ import annotations

import _thread
import atexit
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

_EXIT_S = 10.0
"""How long the end of the interpreter waits for what a thread is making."""


class DroppedError(Exception):
    """What is waited for will not be made."""


class Made(Generic[_T]):
    """What a thread makes: a value or an error. Any number of threads may wait for it."""

    def __init__(self) -> None:
        self._pending = threading.Lock()
        self._pending.acquire()
        self._is_done = self.is_dropped = False
        self._value: _T
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Returns whether it is made, has failed, or was dropped."""
        return self._is_done

    def failed(self) -> bool:
        """Returns whether it is done and has no value."""
        return self._is_done and (self.is_dropped or self._error is not None)

    def drop(self) -> None:
        """Says that it is not wanted: it is not begun any more, and nobody waits for it."""
        self.is_dropped = True
        self._finish()

    def result(self) -> _T:
        """Returns the value; waits until it is made.

        Raises:
            DroppedError: it was dropped.
            BaseException: what making it raised.
        """
        if not self._is_done:
            with self._pending:
                pass
        if self.is_dropped:
            raise DroppedError
        if self._error is not None:
            raise self._error
        return self._value

    def run(self, make: Callable[..., _T], arguments: tuple[Any, ...]) -> None:
        """Makes it, unless it was dropped."""
        if self.is_dropped:
            return
        try:
            self._value = make(*arguments)
        except BaseException as error:
            self._error = error
        self._finish()

    def _finish(self) -> None:
        self._is_done = True
        with suppress(RuntimeError):  # It was dropped and made at one time.
            self._pending.release()


_Work = tuple[Made[Any], Callable[..., Any], tuple[Any, ...]]


class Threads:
    """Makes what is submitted, in that order, on `n` threads, which begin with the first."""

    def __init__(self, n: int, name: str) -> None:
        self._n, self._name = n, name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        _living.add(self)

    def submit(self, make: Callable[..., _T], *arguments: Any) -> Made[_T]:
        """Returns what `make(*arguments)` will return; after `close`, it is dropped."""
        made: Made[_T] = Made()
        self._work.put((made, make, arguments))
        if self._is_closed:
            made.drop()
        if not self._threads:
            # They must not hold this object, which ends them when it is collected.
            self._threads = [
                threading.Thread(target=_run, args=(self._work,), name=f"{self._name}_{i}", daemon=True)
                for i in range(self._n)
            ]
            _thread.start_new_thread(_start, (self._threads,))  # An interrupt would break `Thread.start` here.
        return made

    def close(self) -> None:
        """Ends the threads when they have made what was submitted and not dropped."""
        if not self._is_closed:
            self._is_closed = True
            for _ in self._threads:
                self._work.put(None)

    def join(self, timeout_s: float) -> None:
        """Waits for the threads to end."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)


def _start(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()


def _run(work: SimpleQueue[_Work | None]) -> None:
    while (item := work.get()) is not None:
        made, make, arguments = item
        made.run(make, arguments)
        del item, made, make, arguments  # What waits for the next one must not keep this one alive.


_living: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Daemons do not keep the interpreter from ending, but must not come back from native code after its end."""
    threads = list(_living)
    for some in threads:
        some.close()
    for some in threads:
        some.join(_EXIT_S)
