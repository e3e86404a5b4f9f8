"""A run on several devices: alone first, then together, and once more where a device had to be reset."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from darknetpy.files import base_name
from darknetpy.parallel.launch import STICKY, launch

REMEDY = "DARKNETPY_REMEDY"
"""How many measures against cuDNN a replica takes before it begins."""


@dataclass
class Start:
    """What to start.

    Attributes:
        arguments: the command line; weights: the file in it to begin with, if any.
        backup, cfg: where the run saves, and its name; devices: one for each replica.
    """

    arguments: Sequence[str]
    weights: str | None
    backup: str
    cfg: str
    devices: Sequence[str]

    @property
    def last(self) -> str:
        return os.path.join(self.backup, f"{base_name(self.cfg)}_last.weights")

    def run(self, alone: int = 0, restarts: int = 0) -> int:
        """Train; returns the exit status.

        Args:
            alone: iterations that the first device trains by itself; restarts: at most, after a failure that only a
                new process can mend.
        """
        arguments = list(self.arguments)
        if alone > 0:
            print(f"training to iteration {alone} on {self.devices[0]}, then on all", file=sys.stderr, flush=True)
            status = launch([*arguments, "-until", str(alone)], self.devices[:1])
            if status:
                return status
            arguments = self._from_last(arguments)
        for again in range(restarts + 1):
            status = launch(arguments, self.devices, {REMEDY: str(again)})
            if status != STICKY or again == restarts:
                break
            if os.path.exists(self.last):
                arguments = self._from_last(list(self.arguments))
            print(f"starting again ({again + 1} of {restarts}) from the last checkpoint", file=sys.stderr, flush=True)
        return 1 if status == STICKY else status

    def _from_last(self, arguments: list[str]) -> list[str]:
        """The command line that goes on from `_last.weights`, without `-clear`."""
        arguments = [word for word in arguments if word.lstrip("-").lower() != "clear"]
        if self.weights is not None and self.weights in arguments:
            arguments[arguments.index(self.weights)] = self.last
            return arguments
        at = arguments.index(self.cfg) + 1 if self.cfg in arguments else len(arguments)
        return [*arguments[:at], self.last, *arguments[at:]]
