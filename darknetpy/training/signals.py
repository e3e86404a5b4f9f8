"""Signals to a run: SIGINT, SIGTERM and SIGHUP save and end it, SIGUSR1 saves and lets it go on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from darknetpy.parallel.launch import heeded

SAVING = "SIGUSR1"
ECHO = 1.0
"""Seconds in which another ending signal is the same wish: a terminal and the launcher both send it."""


class Interrupted(BaseException):
    """A signal came while the current turn can still be undone."""


class Signals:
    """Turns signals into wishes that the trainer asks for between two steps.

    Within `interruptible()` an ending signal raises Interrupted at once; elsewhere it waits until the trainer looks.
    A second one, unless it is an echo, is the system's own: it ends the process. Outside the main thread, where Python
    allows no handlers, only KeyboardInterrupt remains.

    Attributes:
        ending: name of the signal that asked for the end, or None; save: whether a save was asked for.
    """

    def __init__(self, immediate: bool = True):
        self.immediate = immediate
        self.ending: str | None = None
        self.save = False
        self._open, self._asked = False, 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            saving = [getattr(signal, SAVING)] if hasattr(signal, SAVING) else []
            for number in (*heeded(), *saving):
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Here a signal may raise Interrupted, because what happens inside can be undone."""
        if self.ending and self.immediate:
            raise Interrupted
        self._open = self.immediate
        try:
            yield
        finally:
            self._open = False

    def _received(self, number: int, _frame) -> None:
        name = signal.Signals(number).name
        if name == SAVING:
            self.save = True
            return
        now = time.monotonic()
        if self.ending:
            if now - self._asked > ECHO:
                signal.signal(number, self._before.get(number) or signal.SIG_DFL)
                signal.raise_signal(number)
            return
        self.ending, self._asked = name, now
        if self._open:
            self._open = False
            raise Interrupted
