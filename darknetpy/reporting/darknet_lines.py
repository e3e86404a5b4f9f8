"""Darknet's own lines on stdout and stderr, byte for byte where scripts look for them."""

from __future__ import annotations

import sys

from darknetpy.evaluation.report import HINTS, report
from darknetpy.reporting.registry import sink
from darknetpy.training.events import Evaluated, Event, Finished, Recovered, Resized, Saved, Started, TurnDone

TYPE_NUMBER = {"yolo": 28, "region": 27, "Gaussian_yolo": 29, "detection": 26}
SLOW_LOADING = 0.1
SAID_EVERY = 10
"""Iterations between two announcements of a classifier's evaluation."""
CLEAR = "\x1b[H\x1b[J"
SYNCHRONISED = "Syncing... Done!"


class DetectorLines:
    """The log of `detector train`; the screen is cleared only on a terminal."""

    def __call__(self, event: Event) -> None:
        handler = {
            Started: self.started, TurnDone: self.turn, Resized: self.resized, Evaluated: self.evaluated,
            Saved: self.saved, Recovered: self.recovered, Finished: self.finished,
        }.get(type(event))  # fmt: skip
        if handler:
            handler(event)
            sys.stdout.flush()

    def started(self, e: Started) -> None:
        self.heads = e.heads
        if e.evaluating:
            print(" Prepare additional network for mAP calculation...")
        print(e.base)
        print(
            f"Weights are saved after: {e.save_every} iterations. "
            f"Last weights (*_last.weight) are stored every {e.save_last} iterations. "
        )
        print(f"Learning Rate: {e.learning_rate:g}, Momentum: {e.momentum:g}, Decay: {e.decay:g}")
        for index, kind in e.heads:
            print(f" Detection layer: {index} - type = {TYPE_NUMBER.get(kind, 0)} ")
        for text in e.advice:
            print(text, file=sys.stderr)

    def turn(self, e: TurnDone) -> None:
        for text in e.details:
            print(text, file=sys.stderr)
        slow = e.load_seconds > SLOW_LOADING and e.avg_loss > 0
        print(
            f"Loaded: {e.load_seconds:f} seconds" + (" - performance bottleneck on CPU or Disk HDD/SSD" if slow else "")
        )
        if e.averaged:
            print(SYNCHRONISED)
        if e.next_map is not None:
            print(f"\n (next mAP calculation at {e.next_map} iterations) ", end="")
            if e.map:
                last = f"mAP@{e.iou_thresh:0.2f} = {100 * e.map:2.2f} %, best = {100 * e.best_map:2.2f} %"
                print(f"\n Last accuracy {last} ", end="")
        accuracy = f" map={e.map:0.2f} best={e.best_map:0.2f}" if e.map else ""
        if sys.stdout.isatty():
            print(
                f"{CLEAR}{e.iteration}/{e.max_batches}: loss={e.loss:0.1f}{accuracy} hours left={e.hours_left:0.1f}\a",
                end="",
            )
        print(
            f"\n {e.iteration}: {e.loss:f}, {e.avg_loss:f} avg loss, {e.rate:f} rate, {e.seconds:f} seconds, "
            f"{e.images} images, {e.hours_left:f} hours left"
        )

    def resized(self, e: Resized) -> None:
        if e.initial:
            print(f"\n Resizing to initial size: {e.size[0]} x {e.size[1]} ")
        else:
            batch = "" if e.batch is None else f" (batch = {e.batch}) "
            print(f"Resizing, random_coef = {e.factor:.2f} \n\n {e.size[0]} x {e.size[1]} {batch}")

    def evaluated(self, e: Evaluated) -> None:
        print("\n calculation mAP (mean average precision)...")
        for index, kind in self.heads:
            print(f" Detection layer: {index} - type = {TYPE_NUMBER.get(kind, 0)} ")
        print(f"{report(e.result)}\n\n{HINTS}")
        print(f"\n mean_average_precision (mAP@{e.result.iou_thresh:0.2f}) = {e.result.map:f} ")
        if e.best:
            print("New best mAP!")

    def saved(self, e: Saved) -> None:
        if e.path.endswith("_ema.weights"):
            print(f" EMA weights are saved to the file: {e.path} ", file=sys.stderr)
        else:
            print(f"Saving weights to {e.path}", file=sys.stderr)

    def recovered(self, e: Recovered) -> None:
        print(f"iteration {e.iteration}: {e.message}", file=sys.stderr)

    def finished(self, e: Finished) -> None:
        if not e.stopped:
            print("If you want to train from the beginning, then use flag in the end of training command: -clear ")


class RnnLines(DetectorLines):
    """The log of `rnn train`, on stderr."""

    def started(self, e: Started) -> None:
        self.symbols = max(1, e.images)
        print(e.base, file=sys.stderr)
        print(f"Learning Rate: {e.learning_rate:g}, Momentum: {e.momentum:g}, Decay: {e.decay:g}", file=sys.stderr)

    def turn(self, e: TurnDone) -> None:
        epochs = e.trained / self.symbols
        text = (
            f"{e.iteration}: {e.loss:f}, {e.avg_loss:f} avg, {e.rate:f} rate, {e.seconds:f} seconds, {epochs:f} epochs"
        )
        print(text, file=sys.stderr)


class ClassifierLines(DetectorLines):
    """The log of `classifier train`."""

    def started(self, e: Started) -> None:
        self.pictures, self.metric = max(1, e.images), e.metric
        print(e.base)
        print(e.replicas)
        print(f"Learning Rate: {e.learning_rate:g}, Momentum: {e.momentum:g}, Decay: {e.decay:g}")
        print(e.images)
        for text in e.advice:
            print(text, file=sys.stderr)

    def turn(self, e: TurnDone) -> None:
        print(f"Loaded: {e.load_seconds:f} seconds")
        if e.averaged:
            print(SYNCHRONISED)
        if e.next_map is not None and e.iteration % SAID_EVERY == 0:
            name = self.metric.upper()
            last = f" Last accuracy {name} = {100 * e.map:2.2f} % \n" if e.map else ""
            print(
                f"\n (next {name} calculation at {e.next_map} iterations) {last}", end="", file=sys.stderr, flush=True
            )
        print(
            f"{e.iteration}, {e.trained / self.pictures:.3f}: {e.loss:f}, {e.avg_loss:f} avg, {e.rate:f} rate, "
            f"{e.seconds:f} seconds, {e.trained} images, {e.hours_left:f} hours left"
        )

    def evaluated(self, e: Evaluated) -> None:
        print(f" TOP calculation...\n\r{e.result.line()}\n accuracy {self.metric} = {e.result.topk:f} ")

    def finished(self, e: Finished) -> None:
        """Darknet says nothing here."""


_OF_TASK = {"classifier": ClassifierLines, "rnn": RnnLines}


@sink("darknet")
class DarknetLines:
    """The log that people know, of whatever task a run has."""

    def __init__(self):
        self.lines = DetectorLines()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.lines = _OF_TASK.get(event.task, DetectorLines)()
        self.lines(event)
