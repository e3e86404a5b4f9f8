"""The training loop (Darknet: `train_detector`)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from darknetpy.data import notes
from darknetpy.data.batches import Batch
from darknetpy.data.loader import Loader
from darknetpy.errors import warn
from darknetpy.network import Network
from darknetpy.parallel.launch import ENDING
from darknetpy.parallel.replicas import ReplicaFailed
from darknetpy.training import narrate
from darknetpy.training.checkpoint import Checkpoints, is_finite, replica_state
from darknetpy.training.events import Evaluated, Events, Finished, Recovered, Resized
from darknetpy.training.feed import Feed
from darknetpy.training.guard import Health, Transaction, diagnosis, health
from darknetpy.training.learner import AVERAGED_EVERY, Learner, MiniBatch, Turn
from darknetpy.training.measure import Measurement
from darknetpy.training.plan import LEAST_BETWEEN, EvaluationPlan, SavePlan, Stops, TimeLeft
from darknetpy.training.profile import profiled
from darknetpy.training.recovery import Recovery
from darknetpy.training.rehearsal import rehearse
from darknetpy.training.remedies import Remedies
from darknetpy.training.saving import Saver
from darknetpy.training.signals import Interrupted, Signals
from darknetpy.training.tensors import copy_tensors

SMOOTHING = 0.9
"""avg loss = .9 avg loss + .1 loss."""
MOST_SKIPPED = 3
"""Turns with non-finite numbers in a row, after which the run goes back to its last good state."""
GOING_ON = (*ENDING, "time", "iteration")
"""Reasons to stop after which a run is meant to go on later: it leaves no `_final`."""


@dataclass
class Settings:
    """What a run was asked for besides its cfg.

    Attributes:
        map_every: iterations between evaluations (None: by epochs, of which map_epochs).
        seed: of all draws; save_every: iterations between numbered checkpoints (None: as the `.data` file says).
        save_last: iterations between `_last` checkpoints. show_details: keep Darknet's line of each head.
        task: `detector`, `classifier` or `rnn`; metric: what evaluations measure, as the chart calls it.
        least_between, first_evaluation: of the evaluations' plan. keep_best: save `_best`.
        iou_thresh: of the evaluation, as printed. rehearse: try everything once before the first turn.
        stops: reasons to end before `max_batches`. profile: turns that the profiler watches;
        check_replicas: compare them after each synchronisation.
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
    task: str = "detector"
    metric: str = "mAP%"
    least_between: int = LEAST_BETWEEN
    first_evaluation: int = 0
    keep_best: bool = True
    profile: int = 0
    check_replicas: bool = False


@dataclass
class TrainResult:
    """How a run ended.

    Attributes:
        iteration: iterations done in all; avg_loss: smoothed loss; map, best_map: last and best mAP, or None.
        final, best: weights files written; history: (iteration, mAP) of each evaluation.
        stopped: why it ended before `max_batches` (`SIGINT`, `SIGTERM`, `SIGHUP`, `time`, `patience`, `map`), or None.
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
        self.network, self.net, self.replicas = learner.network, learner.net, learner.replicas
        self.device = self.network.device
        head = self.network.structure.leading_head.options
        self.feed = Feed(loader, learner, settings.seed)
        learner.num_boxes = getattr(head, "max", 0)
        self.saver, self.remedies = Saver(checkpoints, learner, events), Remedies(learner, events)
        self.skipped, self.avg_loss = 0, -1.0
        self.result, self.left, self.curve = TrainResult(learner.iteration, -1.0), TimeLeft(), []
        self.evaluations = EvaluationPlan(
            learner.iteration, self.net.burn_in, self.net.max_batches, len(loader.data), learner.images,
            settings.map_epochs, settings.map_every, settings.least_between, settings.first_evaluation, learner.strict,
        )  # fmt: skip
        self.saves = SavePlan(learner.iteration, max(1, settings.save_every), max(1, settings.save_last))
        self.signals, self.transaction = Signals(immediate=self.replicas.size == 1), Transaction(learner)
        self.ending, self.seconds, self.saving = None, 0.0, False
        if state is not None:
            self.load_state(replica_state(state["replicas"], self.replicas), state["run"])
        self.recovery, self.first = Recovery(self), learner.iteration

    def run(self) -> TrainResult:
        """Train to `max_batches`, or until something ends it; either way the weights are saved."""
        self.began = began = time.perf_counter()
        self.events.emit(narrate.started(self))
        self.events.resume(narrate.past(self))
        with self.signals, profiled(self.settings.profile, f"{self.checkpoints.base}_{self.replicas.rank}") as step:
            try:
                if self.settings.rehearse:
                    with self.signals.interruptible():
                        rehearse(self)
                self.recovery.keep()
                while self._goes_on(began) or not self._finite():
                    self._turn()
                    self._save_on_request()
                    step()
            except Interrupted:
                pass
            except Exception:
                self._rescue()
                raise
            self._end()
        self.result.iteration, self.result.avg_loss = self.learner.iteration, self.avg_loss
        self.replicas.close()
        stopped = self.result.stopped is not None
        self.events.emit(Finished(self.learner.iteration, stopped, time.perf_counter() - began))
        return self.result

    def _goes_on(self, began: float) -> bool:
        if self.learner.iteration >= self.net.max_batches:
            return False
        if self.replicas.size == 1:
            self.ending, self.seconds = self.signals.ending, time.perf_counter() - began
        self.result.stopped = self.ending or self.settings.stops.reason(
            self.result.history, self.seconds, self.learner.iteration
        )
        return self.result.stopped is None

    def _turn(self) -> None:
        """One iteration: size, batch, training, evaluation, checkpoints."""
        began, before = time.perf_counter(), self.learner.iteration
        self._choose_size()
        with self.signals.interruptible():
            batches = self.feed.batches()
        loaded = time.perf_counter()
        turn, loss = self._train(batches)
        iteration = self.learner.iteration
        if iteration <= before:
            return  # it went back
        self.feed.turns += 1
        averaged = turn is not None and self.learner.averaging_due(self.feed.turns)
        if averaged:
            self.learner.synchronise(AVERAGED_EVERY)
        trained = time.perf_counter()
        if turn is not None:
            self.avg_loss = loss if self.avg_loss < 0 or self.avg_loss != self.avg_loss else self.avg_loss
            self.avg_loss = SMOOTHING * self.avg_loss + (1 - SMOOTHING) * loss
            self.curve.append((iteration, loss, self.avg_loss, turn.rate))
            self.events.emit(narrate.turn_done(self, turn, loss, trained - loaded, loaded - began, averaged))
        if self.measurement and self.evaluations.due(iteration):
            if not self._finite():
                return
            self._evaluate(iteration)
            self.replicas.waited()
        self.left.update(time.perf_counter() - began, (self.net.max_batches - iteration) // self.replicas.size)
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
        done, told = self.remedies.attempt(lambda: self._accumulate(batches), self.transaction.undo)
        finite = self.network.strict or math.isfinite(told.loss + told.gradient)
        mean, sound = self._agree(told.loss, finite, sum(mini.rows for mini in done))
        if not sound and math.isfinite(mean) and self.remedies.lower_scale():
            self.transaction.undo()
            return self._train(batches)
        if not sound:
            self._skip(done, batches, finite)
            return None, mean
        self.skipped = 0
        rate = self.learner.update(sum(mini.rows for mini in done))
        self.transaction.commit()
        return Turn(torch.as_tensor(mean), rate, done, told.kinds), mean

    def _agree(self, loss: float, finite: bool, images: int) -> tuple[float, bool]:
        """The mean loss over all images, and whether all came out finite; what signals and the clock say and what there
        is to tell of pictures is shared, too."""
        replicas, signals, told = self.replicas, self.signals, notes.take()
        asked = [float(signals.ending == name) for name in ENDING]
        seconds = time.perf_counter() - self.began if replicas.main else 0.0
        total, images, bad, save, seconds, news, *ending = replicas.total(
            loss * images, images, float(not finite), float(signals.save), seconds, float(bool(told)), *asked
        )
        for others in replicas.gather(told) if news else ():
            notes.tell(others)
        if replicas.size > 1:
            self.ending = next((name for name, count in zip(ENDING, ending, strict=True) if count), None)
            self.seconds, self.saving = seconds, save > 0
        return total / images, not bad

    def _accumulate(self, batches: Sequence[Batch]) -> tuple[list[MiniBatch], Health]:
        """Forward and backward of a turn; the one moment where the device is waited for is the read of its loss."""
        self.transaction.begin()
        try:
            with self.signals.interruptible():
                done = self.learner.accumulate_all([self.feed.to_device(batch) for batch in batches])
                return done, health(self.learner, done)
        except BaseException:
            self.transaction.undo()
            raise

    def _skip(self, done: Sequence[MiniBatch], batches: Sequence[Batch], finite: bool) -> None:
        """Undo a turn with non-finite numbers and leave its pictures out; after several in a row go back."""
        place = "" if finite else diagnosis(self.learner, done, [batch.paths for batch in batches])
        several = self.replicas.size > 1
        places = [
            f"{text} of replica {rank}" if several else text
            for rank, text in enumerate(self.replicas.gather(place))
            if text
        ]
        rate = self.learner.schedule.rate(self.learner.iteration + self.replicas.size)
        self.transaction.undo()
        self.learner.skip()
        self.skipped += 1
        text = f"non-finite numbers in {' and '.join(places)} (rate {rate:.3g}, loss_scale {self.net.loss_scale:g})"
        if self.skipped < MOST_SKIPPED:
            self.events.emit(Recovered(f"{text}: the turn is undone and skipped", self.learner.iteration))
            return
        self.recovery.go_back(f"{text}, {MOST_SKIPPED} turns in a row")

    # --- evaluation ----------------------------------------------------------------------------------------------

    def _evaluate(self, iteration: int) -> None:
        """Measure a snapshot of the weights; the training network is only read. A failure is said and skipped."""
        before = self.evaluations.before
        try:
            with self.signals.interruptible():
                result = self.measurement(self.learner.snapshot)
        except Interrupted:
            self.evaluations.last = before
            return
        except ReplicaFailed as error:
            self.events.emit(Recovered(f"the evaluation failed and is skipped: {error}", iteration))
            return
        best = self.result.best_map is None or result.map >= self.result.best_map
        self.result.map = result.map
        self.result.history.append((iteration, result.map))
        if best:
            self.result.best_map = result.map
        self.events.emit(Evaluated(iteration, self.net.max_batches, result, best, self.result.best_map))
        if best and self.settings.keep_best:
            self.result.best = self.saver.named("best", self.measurement.network)
        if self.network.strict and self.feed.sizes.random:
            self.feed.size = (self.net.width, self.net.height)
            self.events.emit(Resized(self.feed.size, initial=True))

    # --- saving --------------------------------------------------------------------------------------------------

    def _save_what_is_due(self, iteration: int) -> None:
        self.saver.retry()
        numbered, last = self.saves.numbered(iteration), self.saves.last(iteration)
        if numbered or last:
            self.learner.synchronise()
        if numbered and self._finite():
            self.saver.named(iteration, self.network)
        if last:
            self._save_last(self.network)
            self.saver.average()

    def _save_on_request(self) -> None:
        if self.saving if self.replicas.size > 1 else self.signals.save:
            self.saving = self.signals.save = False
            self._save_last(self._averaged())

    def _save_last(self, network: Network, at_the_end: bool = False) -> str:
        """`_last.weights` and the state, what the run goes back to when it must; asked for again where it fails."""
        if self._finite():
            written = self.saver.last(network, self.state(), owe=at_the_end)
            self.signals.save = self.signals.save or not (written or at_the_end)
            self.recovery.keep(on_disk=written and self.replicas.size == 1)
        return self.checkpoints.path("last")

    def _averaged(self) -> Network:
        """The network as it is saved out of turn, while the replicas go on with their own weights."""
        if self.replicas.size == 1:
            return self.network
        return self.saver.copy(self.network, self.learner.snapshot())

    def _finite(self) -> bool:
        """Whether the weights may be written; if not, the run goes back (strict writes them, as Darknet does)."""
        if self.network.strict or not self.replicas.total(float(not is_finite(self.network)))[0]:
            return True
        self.recovery.go_back("the weights are not finite")
        return False

    def _end(self) -> None:
        """The last files: `_final` where the run came to its end, `_last` with its state where it may go on."""
        if self.replicas.size == 1:
            self.result.stopped = self.result.stopped or self.signals.ending
        self._finite()  # a signal in the middle of a turn comes before this was asked
        if self.result.stopped not in GOING_ON:
            self.learner.synchronise()
            self.result.final = self.saver.named("final", self.network)
        if self.result.stopped and self.learner.iteration == self.first:
            warn(f"stopped before its first iteration ({self.result.stopped}): nothing is written")
        elif self.result.stopped:
            path = self._save_last(self._averaged(), at_the_end=True)
            warn(f"stopped at iteration {self.learner.iteration} ({self.result.stopped}); go on with {path}")
        self.saver.finish()

    def _rescue(self) -> None:
        """Keep what was learned when the run ends by an error, as far as the device still answers."""
        if not self.feed.turns or self.learner.iteration >= self.net.max_batches or self.replicas.size > 1:
            return
        try:
            if self.transaction.open:
                self.transaction.undo()
            self._save_last(self.network)
        except Exception as error:
            warn(f"the weights since the last checkpoint are lost: {error}")

    # --- state ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that the run goes on from, as plain containers of tensors, numbers and text; complete at the main one."""
        own = self.own_state()
        mine = own["replica"] if self.replicas.size == 1 else copy_tensors(own["replica"], torch.device("cpu"))
        return {"replicas": self.replicas.gather(mine), "run": own["run"]}

    def own_state(self) -> dict[str, Any]:
        result = self.result
        run = {
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
        }
        return {"replica": self.learner.state(), "run": run}

    def load_state(self, replica: dict[str, Any], run: dict[str, Any]) -> None:
        """Go on from a replica's state and the run's. Raises KeyError, ValueError or RuntimeError if they don't fit."""
        self.learner.load_state(replica)
        result = self.result
        self.feed.turns, self.feed.size, self.avg_loss = run["turns"], tuple(run["size"]), run["avg_loss"]
        result.map, result.best_map, result.best = run["map"]
        result.history = [(iteration, value) for iteration, value in run["history"]]
        self.evaluations.last = run["evaluated"]
        self.saves.saved, self.saves.saved_last = run["saved"]
        self.left = TimeLeft(run["hours"], run["hours"])
        self.curve = [(int(row[0]), *row[1:]) for row in run["curve"].tolist()]
