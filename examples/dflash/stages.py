"""Stages of a pipeline, each on a thread, coupled by bounded queues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

_END = object()


class Stage(Iterator[Any]):
    """Applies `work` to every item of `source` on a thread of its own, and yields the results in order.

    At most `n_ahead` results wait, so a slow consumer holds the stage back. An error in `work` or in `source` is raised
    in the consumer; `close()` ends the thread.
    """

    def __init__(self, work: Callable[[Any], Any], source: Iterable[Any], n_ahead: int = 2) -> None:
        self._results: queue.Queue[Any] = queue.Queue(n_ahead)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work, source), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Any], Any], source: Iterable[Any]) -> None:
        try:
            for item in source:
                self._put(work(item))
                if self._is_closed.is_set():
                    return
            self._put(_END)
        except BaseException as error:
            self._put(error)

    def _put(self, result: Any) -> None:
        while not self._is_closed.is_set():
            with suppress(queue.Full):
                return self._results.put(result, timeout=0.1)

    def __next__(self) -> Any:
        result = self._results.get()
        if result is _END:
            raise StopIteration
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()
