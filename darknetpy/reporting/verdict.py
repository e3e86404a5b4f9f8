"""Every hundred turns one sentence on what holds the training up, and what to do about it."""

from __future__ import annotations

import sys

from darknetpy.reporting.registry import sink
from darknetpy.training.events import Event, Started, TurnDone

EVERY = 100
"""Turns from one verdict to the next."""
LOADER, SYNCHRONISATION = 0.15, 0.20
"""Shares of the time above which waiting for pictures, or for other replicas, is worth a remedy."""
REMEDIES = {
    "the loader": "more loader processes (-workers N), decoded pictures kept (-cache ram or -cache disk), "
    "smaller pictures on a faster disk",
    "synchronisation": "devices of equal speed, fewer of them (-gpus), or weights averaged instead of gradients "
    "shared (no -ddp)",
    "the GPU": "nothing waits for anything else; a smaller width and height in the cfg, or several devices (-gpus)",
    "the processor": "nothing waits for anything else; a GPU, or a smaller width and height in the cfg",
}


@sink("verdict")
class Verdict:
    """Says it on stderr; on a terminal that Darknet's lines clear at each turn, again after each."""

    def __init__(self):
        self.text = ""
        self.on_cpu = False
        self.again = False
        self._begin(0)

    def _begin(self, iteration: int) -> None:
        self.first, self.turns = iteration + 1, 0
        self.loading = self.computing = self.waiting = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.on_cpu, self.again = event.device == "cpu", sys.stdout.isatty() and sys.stderr.isatty()
            self._begin(event.iteration)
        elif isinstance(event, TurnDone):
            self.turns += 1
            self.loading += event.load_seconds
            self.waiting += event.sync_seconds
            self.computing += event.seconds - event.sync_seconds
            due = self.turns >= EVERY
            if due:
                self.text = self._judge(event.iteration)
                self._begin(event.iteration)
            if self.text and (due or self.again):
                print(self.text, file=sys.stderr, flush=True)

    def _judge(self, iteration: int) -> str:
        whole = self.loading + self.computing + self.waiting
        loading, computing, waiting = (part / whole if whole else 0.0 for part in self._parts())
        worst = limit(loading, waiting, self.on_cpu)
        return (
            f" iterations {self.first} to {iteration}: {100 * loading:.0f}% waiting for pictures, "
            f"{100 * computing:.0f}% computing, {100 * waiting:.0f}% synchronising. "
            f"Bound by {worst}; what helps: {REMEDIES[worst]}"
        )

    def _parts(self) -> tuple[float, float, float]:
        return self.loading, self.computing, self.waiting


def limit(loading: float, synchronising: float, on_cpu: bool = False) -> str:
    """What a run is bound by, from the shares of its time: a key of `REMEDIES`."""
    if loading > LOADER and loading >= synchronising:
        return "the loader"
    if synchronising > SYNCHRONISATION:
        return "synchronisation"
    return "the processor" if on_cpu else "the GPU"
