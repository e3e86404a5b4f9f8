"""`results.png`: losses by kind, learning rate, mAP and speed over the iterations."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from darknetpy.reporting import csv_log
from darknetpy.reporting.figures import Panel, Series, save_panels
from darknetpy.reporting.registry import sink
from darknetpy.training.events import Evaluated, Event, Finished, Recovered, Started, TurnDone

NAME = "results.png"
SHARE = 0.01
"""Of the run's time that drawing may take."""
LEAST = 10
"""Iterations from which on there is a curve to see."""
FIRST = 30.0
"""Seconds before the first picture."""
KINDS = {"class_loss": "objectness and class", "iou_loss": "box", "total_loss": "all heads"}
_COLUMNS = ("iteration", "loss", "avg_loss", "rate", *KINDS, "map", "seconds", "load_seconds")
_NONE = float("nan")


@sink("plots")
class Plots:
    """Drawn at evaluations and every hundred iterations, seldom enough to cost under one hundredth of the time, and at
    the end. A resumed run goes on from `results.csv`."""

    def __init__(self, folder: str = "."):
        self.folder = folder
        self.rows: list[dict[str, float]] = []
        self.next = 0.0
        self.metric = "mAP"

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.next, self.metric = time.monotonic() + FIRST, event.metric.removesuffix("%")
            self.resume([])
            self._forget(event.iteration)
        elif isinstance(event, TurnDone):
            numbers = vars(event) | event.losses | {"map": None}
            self.rows.append({name: _number(numbers.get(name)) for name in _COLUMNS})
            if event.iteration % 100 == 0:
                self._draw_in_time()
        elif isinstance(event, Evaluated):
            if self.rows:
                self.rows[-1]["map"] = event.result.map
            self._draw_in_time()
        elif isinstance(event, Recovered):
            self._forget(event.iteration)
        elif isinstance(event, Finished) and len(self.rows) >= LEAST:
            self.draw()

    def resume(self, rows: Iterable[Mapping[str, float]]) -> None:
        """What happened before; the file of the csv sink knows more about it where there is one."""
        past = csv_log.read(os.path.join(self.folder, csv_log.NAME)) or rows
        self.rows = [{name: _number(row.get(name)) for name in _COLUMNS} for row in past]

    def _forget(self, iteration: int) -> None:
        while self.rows and self.rows[-1]["iteration"] > iteration:
            self.rows.pop()

    def _draw_in_time(self) -> None:
        if time.monotonic() >= self.next:
            began = time.monotonic()
            self.draw()
            self.next = time.monotonic() + (time.monotonic() - began) / SHARE

    def draw(self) -> None:
        """Write the picture now."""
        x = [row["iteration"] for row in self.rows]

        def curve(name: str, title: str | None = None, marked: bool = False) -> Series:
            return Series(title or name, x, [row[name] for row in self.rows], marked)

        measured = [row for row in self.rows if row["map"] == row["map"]]
        accuracy = Series(
            self.metric, [row["iteration"] for row in measured], [100 * row["map"] for row in measured], marked=True
        )
        losses = [curve("loss", "iteration"), curve("avg_loss", "average")]
        kinds = [curve(name, title) for name, title in KINDS.items()]
        times = [curve("seconds", "training"), curve("load_seconds", "waiting for pictures")]
        save_panels(
            os.path.join(self.folder, NAME),
            [
                Panel("loss", "iteration", losses, log=True),
                Panel("loss by kind", "iteration", kinds, log=True),
                Panel("learning rate", "iteration", [curve("rate")]),
                Panel(f"{self.metric}, %", "iteration", [accuracy], limits=(0, 100)),
                Panel("seconds an iteration", "iteration", times),
            ],
            columns=3,
        )


def _number(value: object) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return _NONE
