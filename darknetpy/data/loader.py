"""Mini-batches in order, made ahead of time by worker processes.

A batch is a pure function of its request, so workers may finish in any order and a run gives the same batches with any
number of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

import cv2

from darknetpy.data.detection import Batch, DetectionData, Request
from darknetpy.errors import DataError

_DATA: DetectionData | None = None


def _start(data: DetectionData) -> None:
    global _DATA
    cv2.setNumThreads(0)
    with contextlib.suppress(ImportError):
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides when to stop
    _DATA = data


def _make(request: Request) -> Batch:
    assert _DATA is not None
    return _DATA.batch(request)


@dataclass
class Loader:
    """Prefetches the mini-batches of the next turns.

    Args:
        data: the data set; workers: processes (0: in this one); ahead: turns made in advance.
    """

    data: DetectionData
    workers: int = 0
    ahead: int = 2
    _pool: ProcessPoolExecutor | None = None
    _queue: deque = field(default_factory=deque)

    def __post_init__(self):
        if self.workers > 0:
            context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
            self._pool = ProcessPoolExecutor(self.workers, context, _start, (self.data,))

    def turn(self, requests: list[Request], following: list[list[Request]]) -> list[Batch]:
        """Batches of this turn; `following` are the requests of the next turns, which are started meanwhile."""
        if self._pool is None:
            return [self.data.batch(request) for request in requests]
        if not self._queue or self._queue[0][0] != requests:
            self.discard()
            self._submit(requests)
        for later in following[: self.ahead]:
            if all(queued != later for queued, _ in self._queue):
                self._submit(later)
        _, futures = self._queue.popleft()
        try:
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise DataError(
                "a loader process died, probably for want of memory", remedy="use -workers 1 or -workers 0"
            ) from error

    def _submit(self, requests: list[Request]) -> None:
        futures: list[Future] = [self._pool.submit(_make, request) for request in requests]
        self._queue.append((requests, futures))

    def discard(self) -> None:
        """Forget what was prepared, because sizes change."""
        for _, futures in self._queue:
            for future in futures:
                future.cancel()
        self._queue.clear()

    def close(self) -> None:
        """End the workers."""
        self.discard()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_) -> None:
        self.close()
