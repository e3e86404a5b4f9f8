"""One run at a time writes the checkpoints of a network in a folder."""

from __future__ import annotations

import os
import socket
import time
from typing import IO

from darknetpy.errors import DataError, warn

PATIENCE = 3.0
"""Seconds to wait for the loader processes of a killed run, which hold its lock until they notice."""
POLL = 0.2


class RunLock:
    """An advisory lock, `FOLDER/.BASE.lock`, that names its holder by process id and host.

    The system gives the lock up with its holder, however that ends, so a file left behind is taken over with a notice.
    Entering raises DataError while another run lives.
    """

    def __init__(self, folder: str, base: str):
        self.path = os.path.join(folder, f".{base}.lock")
        self._stream: IO | None = None

    def __enter__(self) -> RunLock:
        stream = open(self.path, "a+", encoding="utf-8")
        end = time.monotonic() + PATIENCE
        while not _acquire(stream):
            if time.monotonic() > end:
                holder = self._holder(stream) or "another process"
                stream.close()
                raise DataError(
                    f"a run by {holder} is writing its checkpoints here",
                    file=os.path.dirname(self.path) or ".",
                    remedy="stop it, or choose another backup= folder",
                )
            time.sleep(POLL)
        before = self._holder(stream)
        if before:
            warn(f"{self.path}: taken over from {before}, which is not running any more")
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        self._stream = stream
        return self

    def __exit__(self, *_) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                os.unlink(self.path)
            except OSError:  # on some systems an open file cannot be removed: an empty one says the same
                stream.truncate(0)
            stream.close()

    @staticmethod
    def _holder(stream: IO) -> str:
        stream.seek(0)
        return stream.readline().strip()


def _acquire(stream: IO) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            stream.seek(1 << 20)  # beyond the text, which others must be able to read
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a file system without locks
        warn(f"{stream.name}: this file system has no locks ({error.strerror}): do not start a second run on it")
    return True
