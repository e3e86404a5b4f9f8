"""When and how a run's files are written; what the disk refuses is owed and tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

from darknetpy.errors import DarknetpyError, DataError
from darknetpy.network import Network
from darknetpy.runtime import trouble_of
from darknetpy.training.checkpoint import Checkpoints
from darknetpy.training.events import Events, Recovered, Saved
from darknetpy.training.learner import Learner
from darknetpy.training.tensors import untouched_random

TRIES, PAUSE = 20, 3.0
"""How often, and after how many seconds, the last files of a run are tried again."""


class Saver:
    """Writes checkpoints and says so, where the replica is the main one. A full disk or short memory in the middle of a
    run is a warning, not its end."""

    def __init__(self, checkpoints: Checkpoints, learner: Learner, events: Events):
        self.checkpoints, self.learner, self.events = checkpoints, learner, events
        self.owed: dict[str, Callable[[], Any]] = {}
        self.refused: set[str] = set()

    def last(self, network: Network, state: dict[str, Any], owe: bool = False) -> bool:
        """`_last.weights` and the state; whether they were written. They are owed where nothing newer will come."""
        path, iteration = self.checkpoints.path("last"), self.learner.iteration
        return self._write(path, lambda: self.checkpoints.save_last(network, iteration, state), owe)

    def named(self, suffix: str | int, network: Network) -> str:
        """A weights file of a network as it is now."""
        path, iteration = self.checkpoints.path(suffix), self.learner.iteration
        if not self._write(path, lambda: self.checkpoints.save(network, suffix, iteration)):
            copy = self.copy(network, network.state_dict()).cpu()
            self.owed[path] = lambda: self.checkpoints.save(copy, suffix, iteration)
        return path

    def copy(self, network: Network, tensors: dict[str, torch.Tensor]) -> Network:
        """A network of its own with other tensors."""
        with untouched_random(network.device):
            twin = deepcopy(network)
        twin.load_state_dict(tensors)
        return twin

    def average(self) -> None:
        """`_ema.weights`: the moving average in place of the live weights, everything else as it is."""
        average, network = self.learner.average.average, self.learner.network
        if not average:
            return
        twin = self.copy(network, network.state_dict())
        with torch.no_grad():
            for layer, spec, tensor in twin.named_tensors():
                if (layer.index, spec.name) in average:
                    tensor.copy_(average[layer.index, spec.name])
        self.named("ema", twin)

    def retry(self) -> None:
        """Write what is owed."""
        for path, write in list(self.owed.items()):
            self._write(path, write)

    def finish(self) -> None:
        """Write what is owed, with patience. Raises DataError where the disk takes nothing to the last."""
        for attempt in range(TRIES):
            self.retry()
            if not self.owed:
                return
            if attempt + 1 < TRIES:
                time.sleep(PAUSE)
        path = next(iter(self.owed))
        raise DataError("cannot be written", file=path, remedy="make room on the disk and go on with the run")

    def _write(self, path: str, write: Callable[[], Any], owe: bool = True) -> bool:
        if not self.learner.replicas.main:
            return True
        try:
            write()
        except (DataError, OSError, RuntimeError, MemoryError) as error:
            if not _passes(error):
                raise
            if path not in self.refused:
                self.refused.add(path)
                text = error.message if isinstance(error, DataError) else f"cannot be written: {error}"
                self.events.emit(Recovered(f"{path}: {text}: tried again after each turn", self.learner.iteration))
            if owe:
                self.owed[path] = write
            return False
        self.owed.pop(path, None)
        self.refused.discard(path)
        self.events.emit(Saved(path, self.learner.iteration))
        return True


def _passes(error: Exception) -> bool:
    """Whether a file may be written later that could not be written now."""
    if isinstance(error, DarknetpyError | OSError):
        return True
    trouble = trouble_of(error)
    return trouble is not None and trouble.kind == "memory"
