"""`results.csv`: one row an iteration, mAP where it was measured. A resumed run goes on in the same file."""

from __future__ import annotations

import csv
import os

from darknetpy.reporting.registry import sink
from darknetpy.training.events import Evaluated, Event, Recovered, Started, TurnDone

COLUMNS = (
    "iteration", "loss", "avg_loss", "rate", "images", "seconds", "load_seconds", "width", "height", "class_loss",
    "iou_loss", "map", "best_map", "note",
)  # fmt: skip


@sink("csv")
class CsvLog:
    """Rows are written whole and flushed, so that a killed run leaves a readable file."""

    def __init__(self, folder: str = "."):
        self.path = os.path.join(folder, "results.csv")
        self.map: float | None = None
        self.note = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Evaluated):
            self.map = event.result.map
        elif isinstance(event, Recovered):
            self.note = event.message
        elif isinstance(event, TurnDone):
            self._row(event)

    def _start(self, event: Started) -> None:
        """Keep the rows up to the iteration where the run begins; a fresh run begins a fresh file."""
        kept: list[list[str]] = []
        if event.iteration and os.path.exists(self.path):
            with open(self.path, newline="", encoding="utf-8") as stream:
                rows = list(csv.reader(stream))[1:]
            kept = [row for row in rows if row and row[0].isdigit() and int(row[0]) <= event.iteration]
        with open(self.path, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([COLUMNS, *kept])

    def _row(self, e: TurnDone) -> None:
        accuracy = "" if self.map is None else f"{self.map:.6f}"
        best = "" if e.best_map is None else f"{e.best_map:.6f}"
        parts = [f"{e.losses[name]:.6g}" if name in e.losses else "" for name in ("class_loss", "iou_loss")]
        row = [
            e.iteration, f"{e.loss:.6g}", f"{e.avg_loss:.6g}", f"{e.rate:.6g}", e.images, f"{e.seconds:.4f}",
            f"{e.load_seconds:.4f}", *e.size, *parts, accuracy, best, self.note,
        ]  # fmt: skip
        with open(self.path, "a", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerow(row)
        self.map, self.note = None, ""
