"""Mini-batches in order, made ahead of time by worker processes.

A batch is a pure function of its request and can be made row by row, so any number of workers gives the same batches,
and a batch that got lost with its worker is simply made again.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

import numpy as np

from darknetpy.data import notes, worker
from darknetpy.data.batches import Batch, Source
from darknetpy.data.buffers import Buffers
from darknetpy.data.sampling import Request
from darknetpy.errors import warn

AHEAD = 2
"""Turns made in advance."""
TASKS = 3
"""A turn is divided into at least so many tasks for each worker, so that all end at about the same time."""
POLL = 2.0
"""Seconds of waiting after which it is looked whether all processes live."""
MOST_SHARED = 2 << 30
"""Bytes of buffers at most; what finds no room in them is sent through pipes."""


@dataclass
class _Job:
    """A batch in the making: its tasks' futures and the buffer that they fill."""

    request: Request
    futures: list[Future]
    buffer: int | None
    running: int = 0
    dropped: bool = False


class Loader:
    """Prefetches the mini-batches of the next turns.

    Args:
        data: the data set; workers: processes (0: in this one); ahead: turns made in advance.
        empty: makes the arrays of pictures that are given out (`numpy.empty`, or one that pins memory).
        watch: is shown the batches of each turn.
    """

    def __init__(
        self, data: Source, workers: int = 0, ahead: int = AHEAD, empty: Callable[..., np.ndarray] = np.empty,
        watch: Callable[[list[Batch]], None] | None = None,
    ):  # fmt: skip
        self.data, self.workers, self.ahead = data, max(0, workers), max(0, ahead)
        self.empty, self.watch = empty, watch
        self._pool: ProcessPoolExecutor | None = None
        self._buffers: Buffers | None = None
        self._turns: deque[list[_Job]] = deque()
        self._lock = threading.RLock()

    def turn(self, requests: list[Request], following: list[list[Request]] = ()) -> list[Batch]:
        """Batches of this turn; `following` are the requests of the next turns, which are started meanwhile.

        What was prepared for other requests than these (sizes have changed) is thrown away.
        Raises DataError if no picture can be read.
        """
        batches = self._turn(requests, list(following)[: self.ahead])
        if self.watch is not None:
            self.watch(batches)
        return batches

    def _turn(self, requests: list[Request], following: list[list[Request]]) -> list[Batch]:
        while self.workers and (self._pool is not None or self._start(requests, len(following) + 1)):
            try:
                return self._prefetched(requests, following)
            except BrokenProcessPool:
                self._recover()
        return [self.data.batch(request, self.empty) for request in requests]

    def _prefetched(self, requests: list[Request], following: list[list[Request]]) -> list[Batch]:
        wanted = [requests, *following]
        while self._turns and [job.request for job in self._turns[0]] != requests:
            self._drop(self._turns.popleft())
        for position, later in enumerate(wanted):
            if position < len(self._turns) and [job.request for job in self._turns[position]] != later:
                while len(self._turns) > position:
                    self._drop(self._turns.pop())
            if position == len(self._turns):
                self._turns.append(self._submit(later))
        jobs = self._turns.popleft()
        try:
            return [self._result(job) for job in jobs]
        except BrokenProcessPool:
            self._turns.appendleft(jobs)
            raise
        except BaseException:
            self._drop(jobs)
            raise

    # --- tasks -------------------------------------------------------------------------------------------------------

    def _submit(self, requests: list[Request]) -> list[_Job]:
        parts = -(-self.workers * TASKS // max(1, len(requests)))
        jobs = []
        for request in requests:
            shape, kind = self.data.shape(request)
            size = int(np.prod(shape)) * np.dtype(kind).itemsize
            job = _Job(request, [], self._buffers.take(size) if self._buffers else None)
            rows = -(-request.count // min(parts, request.count))
            for first in range(0, request.count, rows):
                count = min(rows, request.count - first)
                job.futures.append(self._pool.submit(worker.make, request, first, count, job.buffer))
            job.running = len(job.futures)
            for future in job.futures:
                future.add_done_callback(lambda _, job=job: self._task_done(job))
            jobs.append(job)
        return jobs

    def _result(self, job: _Job) -> Batch:
        parts = [self._waited(future) for future in job.futures]
        for part in parts:
            notes.tell(part.told)
        error = next((part.error for part in parts if part.error), None)
        if error:
            raise error
        if job.buffer is None:
            images = np.concatenate([part.images for part in parts], out=self.empty(*self.data.shape(job.request)))
        else:
            images = self.empty(*self.data.shape(job.request))
            images[:] = self._buffers.array(job.buffer, *self.data.shape(job.request))
            self._buffers.give_back(job.buffer)
            job.buffer = None
        truth = [row for part in parts for row in part.rows.truth]
        return Batch(images, self.data.stack(truth), job.request, [path for part in parts for path in part.rows.paths])

    def _waited(self, future: Future) -> worker.Made:
        """The result of a task. A process that is killed while it sends one would be waited for without end: so if one
        is dead and nothing comes for a while, the pool counts as broken."""
        while not wait([future], POLL).done:
            if not all(process.is_alive() for process in self._processes()) and not wait([future], POLL).done:
                raise BrokenProcessPool
        return future.result()

    def _drop(self, jobs: list[_Job]) -> None:
        """Forget batches; a buffer is free again when nobody writes into it any more."""
        for job in jobs:
            job.dropped = True
            for future in job.futures:
                future.cancel()
            self._free(job)

    def _task_done(self, job: _Job) -> None:
        with self._lock:
            job.running -= 1
        self._free(job)

    def _free(self, job: _Job) -> None:
        with self._lock:
            if job.dropped and not job.running and job.buffer is not None and self._buffers:
                self._buffers.give_back(job.buffer)
                job.buffer = None

    # --- processes ---------------------------------------------------------------------------------------------------

    def _start(self, requests: list[Request], turns: int) -> bool:
        """Start the processes; where the system doesn't allow them, say so and go on without."""
        context = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
        try:
            self._buffers = self._shared(requests, turns) if context.get_start_method() == "fork" else None
            self._pool = ProcessPoolExecutor(self.workers, context, worker.start, (self.data, self._buffers))
            with warnings.catch_warnings():
                # The children use numpy and OpenCV in one thread and never touch torch: what threads the parent has
                # is of no concern to them.
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                self._pool.submit(int)
        except (OSError, ImportError, NotImplementedError, RuntimeError) as error:
            warn(f"loader processes cannot be started ({error}): pictures are loaded in between")
            self.close()
            self.workers = 0
        return self._pool is not None

    def _shared(self, requests: list[Request], turns: int) -> Buffers | None:
        """Buffers for all batches that are in the making at once; the first turn's size is the largest one."""
        size = max(int(np.prod(self.data.shape(request)[0])) for request in requests)
        size *= np.dtype(self.data.widest).itemsize
        count = min(len(requests) * (turns + 1), MOST_SHARED // max(1, size))
        return Buffers(count, size) if count and size else None

    def _recover(self) -> None:
        """A process died, mostly killed for want of memory: go on with half as many."""
        for process in self._processes():
            process.kill()
        writer = getattr(getattr(self._pool, "_result_queue", None), "_writer", None)
        if writer is not None:
            writer.close()  # so that whoever waits for the rest of a message sees its end
        wait([future for turn in self._turns for job in turn for future in job.futures], POLL)
        self.close()
        self.workers //= 2
        rest = f"going on with {self.workers}" if self.workers else "pictures are loaded in between"
        warn(f"a loader process died, probably for want of memory: {rest}")

    def _processes(self) -> list[BaseProcess]:
        return list((getattr(self._pool, "_processes", None) or {}).values())

    def discard(self) -> None:
        """Forget what was prepared, because sizes change."""
        while self._turns:
            self._drop(self._turns.pop())

    def close(self) -> None:
        """End the processes."""
        self.discard()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        self._buffers = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_) -> None:
        self.close()
