"""One live line on a terminal: where the run is, with numbers a person can read."""

from __future__ import annotations

import sys

from tqdm import tqdm

from darknetpy.reporting.registry import sink
from darknetpy.training.events import Event, Finished, Started, TurnDone

SMOOTHING = 0.9
BAR = "{percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} {postfix}"


@sink("progress")
class Progress:
    """On a terminal: a bar on stderr, or under Darknet's line where stdout is a terminal too and shows it."""

    def __init__(self):
        self.bar: tqdm | None = None
        self.shown = False
        self.pace: Pace | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.pace = Pace(event)
            self.shown = sys.stderr.isatty()
            if self.shown and not sys.stdout.isatty():
                self.bar = tqdm(
                    total=event.max_batches, initial=event.iteration, bar_format=BAR, dynamic_ncols=True, leave=True
                )
        elif isinstance(event, TurnDone) and self.pace is not None:
            self.pace.add(event)
            if self.bar is not None:
                self.bar.set_postfix_str(self.pace.text(event), refresh=False)
                self.bar.update(event.iteration - self.bar.n)
            elif self.shown:
                print(f" {self.pace.text(event)}", file=sys.stderr, flush=True)
        elif isinstance(event, Finished) and self.bar is not None:
            self.bar.close()


class Pace:
    """How fast a run is, smoothed over some turns."""

    def __init__(self, started: Started):
        self.iteration, self.images = started.iteration, started.iteration * started.batch
        self.metric = started.metric.removesuffix("%")
        self.replicas = started.replicas
        self.seconds = self.waiting = self.seen = self.iterations = self.syncing = 0.0

    def add(self, e: TurnDone) -> None:
        trained = e.trained or e.images
        whole, iterations = e.seconds + e.load_seconds, e.iteration - self.iteration
        turn = (whole, e.load_seconds, trained - self.images, iterations, e.sync_seconds)
        self.iteration, self.images = e.iteration, trained
        if turn[2] <= 0:  # the run has gone back
            return
        before = (self.seconds, self.waiting, self.seen, self.iterations, self.syncing)
        keep = SMOOTHING if self.seconds else 0.0
        self.seconds, self.waiting, self.seen, self.iterations, self.syncing = (
            keep * old + (1 - keep) * new for old, new in zip(before, turn, strict=True)
        )

    @property
    def images_per_second(self) -> float:
        return self.seen / self.seconds if self.seconds else 0.0

    @property
    def share_of_waiting(self) -> float:
        """Share of the time (0..1) that was spent waiting for pictures."""
        return self.waiting / self.seconds if self.seconds else 0.0

    @property
    def share_of_syncing(self) -> float:
        """Share of the time (0..1) that was spent waiting for other replicas."""
        return self.syncing / self.seconds if self.seconds else 0.0

    def left(self, e: TurnDone) -> float:
        """Seconds to the end, evaluations included as far as there were any."""
        own = (e.max_batches - e.iteration) * self.seconds / self.iterations if self.iterations else 0.0
        return max(own, 3600 * e.hours_left)

    def text(self, e: TurnDone) -> str:
        """What the live line says."""
        accuracy = f" {self.metric} {100 * e.map:.2f}% best {100 * e.best_map:.2f}%" if e.map is not None else ""
        speed, sync = f"{self.images_per_second:.4g} images/s", ""
        if self.replicas > 1:
            speed += f" ({self.images_per_second / self.replicas:.4g} each)"
            sync = f" sync {100 * self.share_of_syncing:.0f}%,"
        memory = f" {e.memory / 1024:.1f} GiB," if e.memory else ""
        return (
            f"loss {e.avg_loss:.4g} lr {e.rate:.3g} {e.size[0]}x{e.size[1]} {e.trained or e.images} images, "
            f"{speed}, data wait {100 * self.share_of_waiting:.0f}%,{sync}{memory}{accuracy} "
            f"{tqdm.format_interval(self.left(e))} left"
        )
