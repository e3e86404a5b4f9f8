"""What to change when a device refuses its work, and how to go on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from darknetpy.errors import DarknetpyError, warn
from darknetpy.parallel.start import REMEDY
from darknetpy.runtime import ENGINE_MEASURES, avoid_engines, free_cached_memory, others_on, trouble_of
from darknetpy.training.events import Events, Recovered
from darknetpy.training.learner import Learner

T = TypeVar("T")
RETRIED = ("memory", "engine")
SENTENCES = {"memory": "the memory of a device is not enough", "engine": "cuDNN refused a convolution"}
REMEDIES = {
    "memory": "raise subdivisions=, or lower width= and height=",
    "engine": "try another version of cuDNN; `darknetpy doctor` shows the one that is loaded",
}
"""Kinds of trouble that another setting may help against, in the order of trying."""


class Remedies:
    """Tries an action again with other settings: smaller parts where memory is short, other algorithms of cuDNN."""

    def __init__(self, learner: Learner, events: Events):
        self.learner, self.events = learner, events
        self.engine_steps = 0
        for _ in range(int(os.environ.get(REMEDY, "0"))):
            if measure := self._next_engine(1):
                warn(f"after a failure of the device: {measure}")

    def attempt(self, action: Callable[[], T], undo: Callable[[], None] = lambda: None) -> T:
        """The result of `action`, tried until no replica fails; `undo` takes back what it has done.

        Raises what no setting helps against; then the other replicas are left to the launcher.
        """
        while True:
            result, trouble = None, None
            try:
                result = action()
            except (RuntimeError, MemoryError) as error:
                trouble = None if isinstance(error, DarknetpyError) else trouble_of(error)
                if trouble is None or trouble.kind not in RETRIED or self.learner.replicas.sync_bn:
                    raise  # with -sync_bn the others wait in the middle of their passes
            kinds = self.learner.replicas.total(*(float(trouble is not None and trouble.kind == k) for k in RETRIED))
            if not any(kinds):
                return result
            undo()
            kind = next(k for k, count in zip(RETRIED, kinds, strict=True) if count)
            sentence = SENTENCES[kind] + self._others(trouble is not None and kind == "memory")
            measure = self._measure(kind)
            if measure is None:
                raise DarknetpyError(f"{sentence}: no setting is left to try", remedy=REMEDIES[kind])
            self.events.emit(Recovered(f"{sentence}: {measure}", self.learner.iteration))

    def lower_scale(self) -> bool:
        """After gradients that are not finite: whether another scale of fp16 may help, which is set."""
        if not self.learner.scale.lower():
            return False
        factor = self.learner.scale.factor * max(1.0, self.learner.net.loss_scale)
        self.events.emit(
            Recovered(f"fp16 gradients overflow: loss scale {factor:g} from here on", self.learner.iteration)
        )
        return True

    def _others(self, short: bool) -> str:
        """Who else is on the devices whose memory is short; complete at the main replica."""
        learner = self.learner
        return "".join(learner.replicas.gather(others_on(str(learner.network.device)) if short else ""))

    def _measure(self, kind: str) -> str | None:
        if kind == "memory" and self.learner.can_split():
            free_cached_memory()
            self.learner.splits *= 2
            return f"from here on each mini-batch is worked off in {self.learner.splits} parts"
        if kind == "memory" and not self.learner.network.checkpointing and not self.learner.replicas.sync_bn:
            free_cached_memory()
            self.learner.network.checkpointing = True
            return "from here on outputs of layers are computed twice instead of kept"
        return self._next_engine() if kind == "engine" else None

    def _next_engine(self, most: int = ENGINE_MEASURES) -> str | None:
        """Take the next measure that changes something, among so many."""
        for step in range(self.engine_steps, min(self.engine_steps + most, ENGINE_MEASURES)):
            self.engine_steps = step + 1
            if measure := avoid_engines(step):
                return measure
        return None
