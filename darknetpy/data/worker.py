"""What runs in a loader process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass

import cv2
import numpy as np

from darknetpy.data import notes
from darknetpy.data.batches import Rows, Source
from darknetpy.data.buffers import Buffers
from darknetpy.data.sampling import Request
from darknetpy.errors import DarknetpyError

POLL = 1.0
"""Seconds between two looks at whether the parent process still lives."""

_data: Source | None = None
_buffers: Buffers | None = None


def start(data: Source, buffers: Buffers | None) -> None:
    """Once in each process: one thread of its own, gone when the parent is, which decides what Ctrl-C and a closed
    terminal mean."""
    global _data, _buffers
    _data, _buffers = data, buffers
    gc.freeze()  # what the parent made is not this process' to free
    cv2.setNumThreads(0)
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


@dataclass
class Made:
    """Rows of a batch, their pictures where they aren't left in a buffer, what there is to tell, or what went wrong."""

    rows: Rows | None
    images: np.ndarray | None
    told: list[notes.Note]
    error: DarknetpyError | None = None


def make(request: Request, first: int, count: int, buffer: int | None) -> Made:
    """So many rows of a batch, from `first` on."""
    shape, kind = _data.shape(request)
    if buffer is None:
        images = np.empty((count, *shape[1:]), kind)
    else:
        images = _buffers.array(buffer, shape, kind)[first : first + count]
    with notes.collecting() as told:
        try:
            rows = _data.rows(request, first, images)
        except DarknetpyError as error:
            return Made(None, None, told, error)
    return Made(rows, images if buffer is None else None, told)


def _leave_with_parent() -> None:
    """A killed parent cannot say goodbye; without this its loaders would wait for ever."""
    parent = multiprocessing.parent_process()
    while parent.is_alive() and os.getppid() == parent.pid:
        time.sleep(POLL)
    os._exit(1)
