"""One live line on a terminal: where the run is, with numbers a person can read."""

from __future__ import annotations

import sys

from tqdm import tqdm

from darknetpy.reporting.registry import sink
from darknetpy.training.events import Event, Finished, Started, TurnDone


@sink("progress")
class Progress:
    """A bar on stderr while it is a terminal and stdout is not (else Darknet's lines are the progress)."""

    def __init__(self):
        self.bar: tqdm | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started) and sys.stderr.isatty() and not sys.stdout.isatty():
            self.bar = tqdm(total=event.max_batches, initial=event.iteration, unit="it", dynamic_ncols=True)
        elif isinstance(event, TurnDone) and self.bar is not None:
            self.bar.update(event.iteration - self.bar.n)
            self.bar.set_postfix_str(self._numbers(event))
        elif isinstance(event, Finished) and self.bar is not None:
            self.bar.close()

    @staticmethod
    def _numbers(e: TurnDone) -> str:
        accuracy = f" mAP {100 * e.map:.2f}% best {100 * e.best_map:.2f}%" if e.map is not None else ""
        return f"loss {e.avg_loss:.4g} rate {e.rate:.3g} {e.size[0]}x{e.size[1]} {e.images} images{accuracy}"
