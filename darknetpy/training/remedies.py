"""What to change when a device refuses its work, and how to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from darknetpy.errors import DarknetpyError
from darknetpy.runtime import avoid_engines, free_cached_memory, trouble_of
from darknetpy.training.events import Events, Recovered
from darknetpy.training.learner import Learner

T = TypeVar("T")


class Remedies:
    """Tries an action again with other settings: smaller parts where memory is short, other algorithms of cuDNN."""

    def __init__(self, learner: Learner, events: Events):
        self.learner, self.events, self.engine_steps = learner, events, 0

    def attempt(self, action: Callable[[], T]) -> T:
        """The result of `action`, which leaves no trace when it fails. Raises what no setting helps against."""
        while True:
            try:
                return action()
            except (RuntimeError, MemoryError) as error:
                trouble = None if isinstance(error, DarknetpyError) else trouble_of(error)
                measure = self._measure(trouble.kind) if trouble else None
                if measure is None:
                    raise
                self.events.emit(Recovered(f"{trouble.sentence}: {measure}", self.learner.iteration))

    def _measure(self, kind: str) -> str | None:
        if kind == "memory" and self.learner.can_split():
            free_cached_memory()
            self.learner.splits *= 2
            return f"from here on each mini-batch is worked off in {self.learner.splits} parts"
        if kind == "engine":
            self.engine_steps += 1
            return avoid_engines(self.engine_steps - 1)
        return None
