"""A run on several devices: alone first, then together, and once more where a device had to be reset."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from darknetpy.config import NetOptions
from darknetpy.files import base_name
from darknetpy.parallel.launch import STICKY, launch
from darknetpy.weights import read_header

REMEDY = "DARKNETPY_REMEDY"
"""How many measures against cuDNN a replica takes before it begins."""


@dataclass
class Start:
    """What to start.

    Attributes:
        arguments: the command line; weights: the file in it to begin with, if any.
        backup, cfg: where the run saves, and its name; devices: one for each replica.
        restarts: at most, after a failure that only a new process can mend; until: iteration at which the person wants
            the run to stop; net: the cfg's numbers.
    """

    arguments: Sequence[str]
    weights: str | None
    backup: str
    cfg: str
    devices: Sequence[str]
    restarts: int = 0
    until: int | None = None
    net: NetOptions = field(default_factory=NetOptions)

    def __post_init__(self):
        self._before = {suffix: self._mark(suffix) for suffix in ("last", "final")}

    @property
    def last(self) -> str:
        return self._file("last")

    def _file(self, suffix: str) -> str:
        return os.path.join(self.backup, f"{base_name(self.cfg)}_{suffix}.weights")

    def _mark(self, suffix: str) -> tuple[int, int] | None:
        """What tells a file from one that takes its place; clocks of this machine and of the disk's may differ."""
        try:
            found = os.stat(self._file(suffix))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _written(self, suffix: str) -> bool:
        """Whether this run has written a file."""
        return self._mark(suffix) not in (None, self._before[suffix])

    def run(self, alone: int = 0) -> int:
        """Train, up to iteration `alone` on the first device only; returns the exit status."""
        arguments = list(self.arguments)
        if alone <= 0:
            return self._launch(arguments, self.devices)
        end, first = min(self.net.max_batches, self.until or self.net.max_batches), self.devices[:1]
        if alone >= end:
            print(
                f"training to its end at iteration {end} on {first[0]} only, as -burn_in_single is {alone}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            return self._launch(arguments, first)
        print(f"training to iteration {alone} on {first[0]}, then on all", file=sys.stderr, flush=True)
        status = self._launch([*_without(arguments, "until"), "-until", str(alone)], first)
        if status or self._over(alone):
            return status
        if self._written("last"):
            arguments = self._from_last(arguments)
        return self._launch(arguments, self.devices)

    def _over(self, alone: int) -> bool:
        """Whether the run has ended for another reason than that the first device came to iteration `alone`."""
        if self._written("final"):
            return True
        return self._written("last") and read_header(self.last).seen // self.net.images_per_update < alone

    def again(self) -> int:
        """After a failure of the only device that broke this process: become a new one, if not too often already; the
        exit status where it was."""
        done = int(os.environ.get(REMEDY, "0"))
        if done >= self.restarts:
            return self._give_up(done)
        arguments = self._announce(list(self.arguments), done + 1)
        os.environ[REMEDY] = str(done + 1)
        sys.stdout.flush()
        return os.execv(sys.executable, [sys.executable, "-m", "darknetpy", *arguments])

    def _launch(self, arguments: list[str], devices: Sequence[str]) -> int:
        for again in range(self.restarts + 1):
            status = launch(arguments, devices, {REMEDY: str(again)})
            if status != STICKY:
                return status
            if again < self.restarts:
                arguments = self._announce(arguments, again + 1)
        return self._give_up(self.restarts)

    def _announce(self, arguments: list[str], again: int) -> list[str]:
        """The command line of the next attempt: from the last checkpoint, if this run has written one."""
        saved = self._written("last")
        where = "from the last checkpoint" if saved or self.last in arguments else "from the beginning"
        print(f"starting again ({again} of {self.restarts}) {where}", file=sys.stderr, flush=True)
        return self._from_last(arguments) if saved else arguments

    def _give_up(self, restarts: int) -> int:
        times = f" {restarts + 1} times" if restarts else ""
        print(
            f"darknetpy: the device failed{times} and the run ends; `darknetpy doctor` examines it, "
            "-max_restarts allows more attempts", file=sys.stderr, flush=True,
        )  # fmt: skip
        return 1

    def _from_last(self, arguments: list[str]) -> list[str]:
        """The command line that goes on from `_last.weights`, without `-clear`."""
        arguments = _without(arguments, "clear", value=False)
        if self.last in arguments:
            return arguments
        if self.weights is not None and self.weights in arguments:
            arguments[arguments.index(self.weights)] = self.last
            return arguments
        at = arguments.index(self.cfg) + 1 if self.cfg in arguments else len(arguments)
        return [*arguments[:at], self.last, *arguments[at:]]


def _without(arguments: Sequence[str], flag: str, value: bool = True) -> list[str]:
    """A command line without a flag and, unless it is written `-flag=value`, the word that is its value."""
    kept, drop = [], False
    for word in arguments:
        name, equals, _ = word.lstrip("-").partition("=")
        if not drop and word.startswith("-") and name.lower() == flag:
            drop = value and not equals
        elif drop:
            drop = False
        else:
            kept.append(word)
    return kept
