"""The training loop (Darknet: `train_detector`)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from darknetpy import losses
from darknetpy.data.detection import Batch
from darknetpy.data.loader import Loader
from darknetpy.errors import DarknetpyError, warn
from darknetpy.training.checkpoint import Checkpoints, is_finite, read_state
from darknetpy.training.events import Evaluated, Events, Finished, Recovered, Resized, Started, TurnDone
from darknetpy.training.feed import Feed
from darknetpy.training.guard import Transaction, diagnosis, health
from darknetpy.training.learner import Learner, MiniBatch, Turn
from darknetpy.training.measure import Measurement
from darknetpy.training.plan import EvaluationPlan, SavePlan, Stops, TimeLeft
from darknetpy.training.rehearsal import rehearse
from darknetpy.training.remedies import Remedies
from darknetpy.training.saving import Saver
from darknetpy.training.signals import ENDING, Interrupted, Signals
from darknetpy.training.tensors import copy_tensors

SMOOTHING = 0.9
"""avg loss = .9 avg loss + .1 loss."""
MOST_SKIPPED = 3
"""Turns with non-finite numbers in a row, after which the run goes back to its last good state."""


@dataclass
class Settings:
    """What a run was asked for besides its cfg.

    Attributes:
        map_every: iterations between evaluations (None: by epochs, of which map_epochs).
        seed: of all draws; save_every: iterations between numbered checkpoints (None: as the `.data` file says).
        save_last: iterations between `_last` checkpoints. show_details: keep Darknet's line of each head.
        iou_thresh: of the evaluation, as printed. rehearse: try everything once before the first turn.
        stops: reasons to end before `max_batches`.
    """

    map_every: int | None = None
    map_epochs: int = 4
    iou_thresh: float = 0.5
    seed: int = 0
    save_every: int = 1000
    save_last: int = 100
    show_details: bool = False
    rehearse: bool = True
    stops: Stops = field(default_factory=Stops)


@dataclass
class TrainResult:
    """How a run ended.

    Attributes:
        iteration: iterations done in all; avg_loss: smoothed loss; map, best_map: last and best mAP, or None.
        final, best: weights files written; history: (iteration, mAP) of each evaluation.
        stopped: why it ended before `max_batches` (`SIGINT`, `SIGTERM`, `time`, `patience`, `map`), or None.
    """

    iteration: int
    avg_loss: float
    map: float | None = None
    best_map: float | None = None
    final: str | None = None
    best: str | None = None
    history: list[tuple[int, float]] = field(default_factory=list)
    stopped: str | None = None


class Trainer:
    """One run: a learner, its data, and everyone who wants to know."""

    def __init__(
        self, learner: Learner, loader: Loader, measurement: Measurement | None, checkpoints: Checkpoints,
        events: Events, settings: Settings, state: dict[str, Any] | None = None,
    ):  # fmt: skip
        self.learner, self.loader, self.measurement = learner, loader, measurement
        self.checkpoints, self.events, self.settings = checkpoints, events, settings
        self.network, self.net = learner.network, learner.net
        self.device = self.network.device
        head = self.network.structure.heads[-1].options
        self.feed = Feed(loader, learner, settings.seed)
        learner.num_boxes = getattr(head, "max", 0)
        self.saver, self.remedies = Saver(checkpoints, learner, events), Remedies(learner, events)
        self.skipped, self.avg_loss = 0, -1.0
        self.result = TrainResult(learner.iteration, -1.0)
        self.left, self.curve = TimeLeft(), []
        self.evaluations = EvaluationPlan(
            learner.iteration, self.net.burn_in, self.net.max_batches, len(loader.data.paths), learner.images,
            settings.map_epochs, settings.map_every,
        )  # fmt: skip
        self.saves = SavePlan(learner.iteration, max(1, settings.save_every), max(1, settings.save_last))
        self.signals, self.transaction = Signals(), Transaction(learner)
        if state is not None:
            self.load_state(state)
        self.good: dict[str, Any] | None = None

    def run(self) -> TrainResult:
        """Train to `max_batches`, or until something ends it; either way the weights are saved."""
        began = time.perf_counter()
        self.events.emit(self._started())
        self.events.resume(self._rows())
        with self.signals:
            try:
                if self.settings.rehearse:
                    with self.signals.interruptible():
                        rehearse(self)
                self.good = None if self.network.strict else copy_tensors(self.state(), torch.device("cpu"))
                while self._goes_on(began):
                    self._turn()
                    self._save_on_request()
            except Interrupted:
                pass
            except Exception:
                self._rescue()
                raise
            self._end()
        self.result.iteration, self.result.avg_loss = self.learner.iteration, self.avg_loss
        stopped = self.result.stopped is not None
        self.events.emit(Finished(self.learner.iteration, stopped, time.perf_counter() - began))
        return self.result

    def _goes_on(self, began: float) -> bool:
        if self.learner.iteration >= self.net.max_batches:
            return False
        reason = self.signals.ending or self.settings.stops.reason(self.result.history, time.perf_counter() - began)
        self.result.stopped = reason
        return reason is None

    def _turn(self) -> None:
        """One iteration: size, batch, training, evaluation, checkpoints."""
        began = time.perf_counter()
        self._choose_size()
        with self.signals.interruptible():
            batches = self.feed.batches()
        loaded = time.perf_counter()
        turn, loss = self._train(batches)
        self.feed.turns += 1
        trained = time.perf_counter()
        if turn is None:
            return
        self.avg_loss = loss if self.avg_loss < 0 or self.avg_loss != self.avg_loss else self.avg_loss
        self.avg_loss = SMOOTHING * self.avg_loss + (1 - SMOOTHING) * loss
        iteration = self.learner.iteration
        self.curve.append((iteration, loss, self.avg_loss, turn.rate))
        next_map = self.evaluations.next if self.measurement else None
        if self.measurement and self.evaluations.due(iteration):
            self._evaluate(iteration)
        self.events.emit(self._turn_done(turn, loss, trained - loaded, loaded - began, next_map))
        self.left.update(time.perf_counter() - began, self.net.max_batches - iteration)
        self._save_what_is_due(iteration)

    def _choose_size(self) -> None:
        """Every tenth turn a new random size, where the last head asks for it."""
        if self.feed.resize(first=self.avg_loss < 0):
            rows = self.feed.rows_at(self.feed.size) if self.net.dynamic_minibatch else None
            self.events.emit(Resized(self.feed.size, self.feed.sizes.factor, batch=rows))
            self.learner.num_boxes = 0

    # --- training ------------------------------------------------------------------------------------------------

    def _train(self, batches: Sequence[Batch]) -> tuple[Turn | None, float]:
        """Forward, backward and update; a turn that comes out non-finite is undone and None (strict keeps it)."""
        done, (loss, gradient) = self.remedies.attempt(lambda: self._accumulate(batches))
        if not self.network.strict and not math.isfinite(loss + gradient):
            self._skip(done, batches)
            return None, loss
        self.skipped = 0
        rate = self.learner.update(sum(mini.rows for mini in done))
        self.transaction.commit()
        return Turn(torch.as_tensor(loss), rate, done), loss

    def _accumulate(self, batches: Sequence[Batch]) -> tuple[list[MiniBatch], list[float]]:
        """Forward and backward of a turn; the one moment where the device is waited for is the read of its loss."""
        self.transaction.begin()
        try:
            with self.signals.interruptible():
                done = self.learner.accumulate_all([self.feed.to_device(batch) for batch in batches])
                return done, health(self.learner, done).tolist()
        except BaseException:
            self.transaction.undo()
            raise

    def _skip(self, done: Sequence[MiniBatch], batches: Sequence[Batch]) -> None:
        """Undo a turn with non-finite numbers and leave its pictures out; after several in a row go back."""
        place = diagnosis(self.learner, done, [batch.paths for batch in batches])
        rate = self.learner.schedule.rate(self.learner.iteration + 1)
        self.transaction.undo()
        self.learner.skip()
        self.skipped += 1
        text = f"non-finite numbers in {place} (rate {rate:.3g}, loss_scale {self.net.loss_scale:g})"
        if self.skipped < MOST_SKIPPED:
            self.events.emit(Recovered(f"{text}: the turn is undone and skipped", self.learner.iteration))
            return
        self._go_back(f"{text}, {MOST_SKIPPED} turns in a row")

    # --- evaluation ----------------------------------------------------------------------------------------------

    def _evaluate(self, iteration: int) -> None:
        """Measure a snapshot of the weights; the training network is only read. A failure is said and skipped."""
        before = self.evaluations.before
        try:
            with self.signals.interruptible():
                result = self.measurement(self.network.state_dict())
        except Interrupted:
            self.evaluations.last = before
            return
        except (DarknetpyError, RuntimeError, OSError, MemoryError) as error:
            self.events.emit(Recovered(f"the evaluation failed and is skipped: {error}", iteration))
            return
        best = self.result.best_map is None or result.map >= self.result.best_map
        self.result.map = result.map
        self.result.history.append((iteration, result.map))
        if best:
            self.result.best_map = result.map
        self.events.emit(Evaluated(iteration, self.net.max_batches, result, best, self.result.best_map))
        if best:
            self.result.best = self.saver.named("best", self.measurement.network)
        if self.network.strict and self.feed.sizes.random:
            self.feed.size = (self.net.width, self.net.height)
            self.events.emit(Resized(self.feed.size, initial=True))

    # --- saving --------------------------------------------------------------------------------------------------

    def _save_what_is_due(self, iteration: int) -> None:
        self.saver.retry()
        if self.saves.numbered(iteration) and self._finite():
            self.saver.named(iteration, self.network)
        if self.saves.last(iteration):
            self._save_last()
            self.saver.average()

    def _save_on_request(self) -> None:
        if self.signals.save:
            self.signals.save = False
            self._save_last()

    def _save_last(self) -> str:
        """`_last.weights` and the state; they are what the run goes back to when it must."""
        if self._finite() and self.saver.last(self.state):
            self.good = None
        return self.checkpoints.path("last")

    def _finite(self) -> bool:
        """Whether the weights may be written; if not, the run goes back (strict writes them, as Darknet does)."""
        if self.network.strict or is_finite(self.network):
            return True
        self._go_back("the weights are not finite")
        return False

    def _end(self) -> None:
        """The last files: `_final` where the run came to its end, `_last` with its state where it may go on."""
        self.result.stopped = self.result.stopped or self.signals.ending
        if self.result.stopped not in (*ENDING, "time"):
            self.result.final = self.saver.named("final", self.network)
        if self.result.stopped:
            path = self._save_last()
            warn(f"stopped at iteration {self.learner.iteration} ({self.result.stopped}); go on with {path}")
        self.saver.finish()

    def _rescue(self) -> None:
        """Keep what was learned when the run ends by an error, as far as the device still answers."""
        if not self.feed.turns or self.learner.iteration >= self.net.max_batches:
            return
        try:
            if self.transaction.open:
                self.transaction.undo()
            self._save_last()
        except Exception as error:
            warn(f"the weights since the last checkpoint are lost: {error}")

    # --- state ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that the run goes on from, as plain containers of tensors, numbers and text."""
        result = self.result
        return {
            "learner": self.learner.state(),
            "run": {
                "seed": self.settings.seed,
                "turns": self.feed.turns,
                "avg_loss": self.avg_loss,
                "size": list(self.feed.size),
                "map": [result.map, result.best_map, result.best],
                "history": [list(point) for point in result.history],
                "evaluated": self.evaluations.last,
                "saved": [self.saves.saved, self.saves.saved_last],
                "hours": self.left.shown,
                "curve": torch.tensor(self.curve, dtype=torch.float64).view(-1, 4),
            },
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave. Raises KeyError, ValueError or RuntimeError where it does not fit."""
        self.learner.load_state(state["learner"])
        run, result = state["run"], self.result
        self.feed.turns, self.feed.size, self.avg_loss = run["turns"], tuple(run["size"]), run["avg_loss"]
        result.map, result.best_map, result.best = run["map"]
        result.history = [(iteration, value) for iteration, value in run["history"]]
        self.evaluations.last = run["evaluated"]
        self.saves.saved, self.saves.saved_last = run["saved"]
        self.left = TimeLeft(run["hours"], run["hours"])
        self.curve = [(int(row[0]), *row[1:]) for row in run["curve"].tolist()]

    def _go_back(self, reason: str) -> None:
        """Back to the last good state with half the learning rate."""
        factor = self.learner.schedule.factor / 2
        self.load_state(self.good or read_state(self.checkpoints.path("last")))
        self.learner.schedule.factor, self.skipped = factor, 0
        remedy = f"back to iteration {self.learner.iteration}, going on with {factor:g} times the learning rate"
        self.events.emit(Recovered(f"{reason}: {remedy}", self.learner.iteration))

    # --- saying --------------------------------------------------------------------------------------------------

    def _started(self) -> Started:
        return Started(
            base=self.checkpoints.base,
            cfg=self.network.structure.cfg.path,
            iteration=self.learner.iteration,
            max_batches=self.net.max_batches,
            batch=self.learner.images,
            images=len(self.loader.data.paths),
            device=str(self.device),
            learning_rate=self.net.learning_rate,
            momentum=self.net.momentum,
            decay=self.net.decay,
            heads=tuple((head.index, head.type) for head in self.network.structure.heads),
            save_every=self.saves.every,
            save_last=self.saves.every_last,
            max_chart_loss=self.net.max_chart_loss,
            evaluating=self.measurement is not None,
        )

    def _rows(self) -> list[dict[str, float]]:
        """What sinks need to draw the past of a resumed run."""
        accuracy = dict(self.result.history)
        rows = [dict(zip(("iteration", "loss", "avg_loss", "rate"), row, strict=True)) for row in self.curve]
        for row in rows:
            if row["iteration"] in accuracy:
                row["map"] = accuracy[row["iteration"]]
        return rows

    def _turn_done(self, turn: Turn, loss: float, seconds: float, load: float, next_map: int | None) -> TurnDone:
        iteration = self.learner.iteration
        return TurnDone(
            iteration=iteration,
            max_batches=self.net.max_batches,
            loss=loss,
            avg_loss=self.avg_loss,
            rate=turn.rate,
            seconds=seconds,
            load_seconds=load,
            images=iteration * self.learner.images,
            hours_left=self.left.shown,
            size=self.feed.size,
            next_map=next_map,
            map=self.result.map,
            best_map=self.result.best_map,
            iou_thresh=self.settings.iou_thresh,
            details=self._details(turn) if self.settings.show_details else (),
            losses=_losses_by_kind(turn),
        )

    def _details(self, turn: Turn) -> tuple[str, ...]:
        lines: list[str] = []
        for mini in turn.mini_batches:
            lines += losses.printed(self.network.structure.heads, mini.heads)
        return tuple(lines)


def _losses_by_kind(turn: Turn) -> dict[str, float]:
    """Class, box and total loss summed over heads, mean over mini-batches; one read from the device for all."""
    sums: dict[str, list[Tensor]] = {}
    for mini in turn.mini_batches:
        for loss in mini.heads.values():
            for name in ("class_loss", "iou_loss", "total_loss"):
                if name in loss.stats:
                    sums.setdefault(name, []).append(loss.stats[name])
    if not sums:
        return {}
    values = torch.stack([torch.stack(parts).sum() for parts in sums.values()]) / max(1, len(turn.mini_batches))
    return dict(zip(sums, values.tolist(), strict=True))
