"""TensorBoard (`-tensorboard [DIR]`, extra `track`): losses, rate, speed, mAP and each class's AP."""

from __future__ import annotations

import glob
import os
import time

from darknetpy.errors import UsageError
from darknetpy.evaluation.topk import TopKResult
from darknetpy.reporting.registry import sink
from darknetpy.training.events import Evaluated, Event, Finished, Recovered, Started, TurnDone

FOLDER = "runs"
PAUSE = 30.0
"""Seconds between two writings to the disk."""


@sink("tensorboard")
class TensorBoard:
    """Writes to `folder/BASE-DATE`; a run that goes on, to the newest such folder from the iteration where it does.

    Raises UsageError where the extra is missing.
    """

    def __init__(self, folder: str = FOLDER):
        self.folder = folder
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                "-tensorboard needs the package tensorboard", remedy="pip install 'darknetpy[track]'"
            ) from error
        self.make = SummaryWriter
        self.writer = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.writer = self.make(self._place(event), flush_secs=PAUSE, purge_step=event.iteration + 1)
        elif isinstance(event, TurnDone):
            self._turn(event)
        elif isinstance(event, Evaluated):
            self._accuracy(event)
        elif isinstance(event, Recovered):
            self.writer.add_text("recovered", event.message, event.iteration)
        elif isinstance(event, Finished):
            self.writer.close()

    def _place(self, e: Started) -> str:
        start = os.path.join(self.folder, f"{e.base}-")
        older = sorted(glob.glob(f"{glob.escape(start)}[0-9]*-[0-9]*")) if e.iteration else []
        return older[-1] if older else start + time.strftime("%Y%m%d-%H%M%S")

    def _turn(self, e: TurnDone) -> None:
        numbers = {
            "loss/iteration": e.loss, "loss/average": e.avg_loss, "rate": e.rate, "size/width": e.size[0],
            "size/height": e.size[1], "seconds/training": e.seconds, "seconds/loading": e.load_seconds,
            "seconds/synchronising": e.sync_seconds, **{f"loss/{name}": value for name, value in e.losses.items()},
        }  # fmt: skip
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, e.iteration)

    def _accuracy(self, e: Evaluated) -> None:
        r = e.result
        if isinstance(r, TopKResult):
            for name, value in ((f"top{k}", v) for k, v in {1: r.top1, r.k: r.topk}.items()):
                self.writer.add_scalar(f"evaluation/{name}", value, e.iteration)
            return
        numbers = {"mAP": r.map, "precision": r.precision, "recall": r.recall, "F1": r.f1, "IoU": r.average_iou}
        for name, value in numbers.items():
            self.writer.add_scalar(f"evaluation/{name}", value, e.iteration)
        for c in r.classes:
            self.writer.add_scalar(f"AP/{c.name}", c.ap, e.iteration)
