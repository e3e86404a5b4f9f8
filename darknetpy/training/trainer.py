"""The training loop (Darknet: `train_detector`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from darknetpy import losses
from darknetpy.config.datafile import DataConfig
from darknetpy.data.detection import Batch, Request
from darknetpy.data.loader import Loader
from darknetpy.data.resize import EVERY, Sizes
from darknetpy.errors import DarknetpyError, warn
from darknetpy.evaluation import EvaluationResult, evaluation_images, run_evaluation
from darknetpy.inference import Detector
from darknetpy.network import Network
from darknetpy.training.checkpoint import Checkpoints
from darknetpy.training.events import (
    Evaluated,
    Events,
    Finished,
    Recovered,
    Resized,
    Saved,
    Started,
    TurnDone,
)
from darknetpy.training.learner import Learner, Turn
from darknetpy.training.plan import EvaluationPlan, SavePlan, TimeLeft

SMOOTHING = 0.9
"""avg loss = .9 avg loss + .1 loss."""


@dataclass
class Settings:
    """What a run was asked for besides its cfg.

    Attributes:
        evaluate: measure mAP during the run; map_every: iterations between evaluations (None: by epochs).
        thresh, iou_thresh: of the evaluation's counts; seed: of all draws.
        save_every: iterations between numbered checkpoints (None: as the `.data` file says).
        show_details: keep Darknet's line of each head.
    """

    evaluate: bool = False
    map_every: int | None = None
    map_epochs: int = 4
    thresh: float = 0.25
    iou_thresh: float = 0.5
    seed: int = 0
    save_every: int | None = None
    show_details: bool = False
    batch: int = 0


@dataclass
class TrainResult:
    """How a run ended.

    Attributes:
        iteration: iterations done in all; avg_loss: smoothed loss; map, best_map: last and best mAP, or None.
        final, best: weights files written; history: (iteration, mAP) of each evaluation.
    """

    iteration: int
    avg_loss: float
    map: float | None = None
    best_map: float | None = None
    final: str | None = None
    best: str | None = None
    history: list[tuple[int, float]] = field(default_factory=list)


class Trainer:
    """One run: a learner, its data, and everyone who wants to know."""

    def __init__(
        self, learner: Learner, loader: Loader, data: DataConfig, names: Sequence[str], checkpoints: Checkpoints,
        events: Events, settings: Settings,
    ):  # fmt: skip
        self.learner, self.loader, self.data, self.names = learner, loader, data, list(names)
        self.checkpoints, self.events, self.settings = checkpoints, events, settings
        self.network, self.net = learner.network, learner.net
        self.device = self.network.device
        head = self.network.structure.heads[-1].options
        self.sizes = Sizes(self.net.width, self.net.height, head.random, int(self.net.resize_step) or 32)
        self.size = (self.net.width, self.net.height)
        learner.num_boxes = getattr(head, "max", 0)
        self.turns, self.first_iteration = 0, learner.iteration
        self.avg_loss = -1.0
        self.result = TrainResult(learner.iteration, -1.0)
        self.left = TimeLeft()
        self.evaluator = self._evaluator() if settings.evaluate else None
        images = len(loader.data.paths)
        self.evaluations = EvaluationPlan(
            learner.iteration, self.net.burn_in, self.net.max_batches, images, learner.images,
            settings.map_epochs, settings.map_every,
        )  # fmt: skip
        self.saves = self._save_plan()

    def run(self) -> TrainResult:
        """Train to `max_batches`, or until interrupted; either way the weights are saved."""
        began, stopped = time.perf_counter(), False
        self.events.emit(self._started())
        try:
            while self.learner.iteration < self.net.max_batches:
                self._turn()
        except KeyboardInterrupt:
            stopped = True
            self._save("last")
            warn(f"stopped at iteration {self.learner.iteration}; go on with {self.checkpoints.path('last')}")
        else:
            self.result.final = self._save("final")
        self.result.iteration, self.result.avg_loss = self.learner.iteration, self.avg_loss
        self.events.emit(Finished(self.learner.iteration, stopped, time.perf_counter() - began))
        return self.result

    def _turn(self) -> None:
        """One iteration: size, batch, training, evaluation, checkpoints."""
        began = time.perf_counter()
        self._choose_size()
        batches = self.loader.turn(self._requests(0), self._following())
        loaded = time.perf_counter()
        turn = self.learner.turn([self._to_device(batch) for batch in batches])
        loss = float(turn.loss)
        self.avg_loss = loss if self.avg_loss < 0 or self.avg_loss != self.avg_loss else self.avg_loss
        self.avg_loss = SMOOTHING * self.avg_loss + (1 - SMOOTHING) * loss
        self.turns += 1
        trained = time.perf_counter()
        next_map = self.evaluations.next if self.evaluator else None
        iteration = self.learner.iteration
        if self.evaluator and self.evaluations.due(iteration):
            self._evaluate(iteration)
        self.events.emit(self._turn_done(turn, loss, trained - loaded, loaded - began, next_map))
        self.left.update(time.perf_counter() - began, self.net.max_batches - iteration)
        if self.saves.numbered(iteration):
            self._save(iteration)
        if self.saves.last(iteration):
            self._save("last")
            self._save_average(iteration)

    # --- size and data -------------------------------------------------------------------------------------------

    def _choose_size(self) -> None:
        """Every tenth turn a new random size, where the last head asks for it."""
        if not self.sizes.random or self.turns % EVERY:
            return
        size = self._size_at(self.turns, self.learner.iteration, self.avg_loss < 0)
        self.events.emit(Resized(size, self.sizes.factor))
        self.size, self.learner.num_boxes = size, 0

    def _size_at(self, turn: int, iteration: int, first: bool) -> tuple[int, int]:
        return self.sizes.size(self.settings.seed, turn, iteration, self.net.max_batches, first)

    def _requests(self, ahead: int) -> list[Request]:
        iteration, turn = self.learner.iteration + ahead, self.turns + ahead
        size = self.size
        if ahead and self.sizes.random:
            boundary = turn - turn % EVERY
            if boundary > self.turns - (self.turns % EVERY):
                size = self._size_at(boundary, iteration - turn % EVERY, False)
        rows = self.net.mini_batch
        return [Request(iteration, k, *size, rows) for k in range(self.learner.subdivisions)]

    def _following(self) -> list[list[Request]]:
        left = self.net.max_batches - self.learner.iteration
        return [self._requests(ahead) for ahead in range(1, min(self.loader.ahead, left - 1) + 1)]

    def _to_device(self, batch: Batch) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(batch.images).to(self.device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = images.to(torch.float32) * (1.0 / 255)
        return images, torch.from_numpy(batch.truth).to(self.device, non_blocking=True)

    # --- evaluation ----------------------------------------------------------------------------------------------

    def _evaluator(self) -> Detector:
        """A network of its own for evaluation; making it must not disturb the training's random numbers."""
        from darknetpy.layers import read_structure

        with torch.random.fork_rng(devices=[]):
            structure = read_structure(self.network.structure.cfg, self.network.strict, batch=1)
            twin = Network.from_structure(structure, self.device)
        return Detector(twin, names=self.names, strict=self.network.strict)

    def _evaluate(self, iteration: int) -> None:
        """Measure a snapshot of the weights; the training network is only read. A failure is said and skipped."""
        try:
            result = self._measure()
        except (DarknetpyError, RuntimeError, OSError) as error:
            self.events.emit(Recovered(f"the evaluation failed and is skipped: {error}", iteration))
            return
        best = self.result.best_map is None or result.map >= self.result.best_map
        self.result.map = result.map
        self.result.history.append((iteration, result.map))
        if best:
            self.result.best_map = result.map
        self.events.emit(Evaluated(iteration, self.net.max_batches, result, best, self.result.best_map))
        if best:
            self.result.best = self._save("best")
        if self.network.strict and self.sizes.random:
            self.size = (self.net.width, self.net.height)
            self.events.emit(Resized(self.size, initial=True))

    def _measure(self) -> EvaluationResult:
        with torch.random.fork_rng(devices=[]):
            twin = self.evaluator.network
            twin.load_state_dict(self.network.state_dict())
            twin.train(False)
            twin.reset_state()
            images = evaluation_images(self.data, self.evaluator)
            return run_evaluation(
                self.evaluator, images, self.settings.iou_thresh, self.settings.thresh, 0, self.settings.batch
            )

    # --- saying and saving ---------------------------------------------------------------------------------------

    def _save_plan(self) -> SavePlan:
        default = 10_000 if self.net.max_batches >= 10_000 else 1000
        every = self.settings.save_every or self.data.number("saveweights", default)
        return SavePlan(self.learner.iteration, max(1, every), max(1, self.data.number("savelast", 100)))

    def _save(self, suffix: str | int) -> str:
        path = self.checkpoints.save(self.network, suffix, self.learner.iteration)
        self.events.emit(Saved(path, self.learner.iteration))
        return path

    def _save_average(self, iteration: int) -> None:
        """`_ema.weights`: the moving average in place of the live weights, everything else as it is."""
        average = self.learner.average.average
        if not average:
            return
        with torch.random.fork_rng(devices=[]):
            twin = Network.from_structure(self.network.structure)
        twin.load_state_dict(self.network.state_dict())
        with torch.no_grad():
            for layer, spec, tensor in twin.named_tensors():
                if (layer.index, spec.name) in average:
                    tensor.copy_(average[layer.index, spec.name])
        self.events.emit(Saved(self.checkpoints.save(twin, "ema", iteration), iteration))

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
            evaluating=self.evaluator is not None,
        )

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
            size=self.size,
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
    """Class, box and total loss summed over heads, mean over mini-batches; one read from the device for each."""
    sums: dict[str, list[Tensor]] = {}
    for mini in turn.mini_batches:
        for loss in mini.heads.values():
            for name in ("class_loss", "iou_loss", "total_loss"):
                if name in loss.stats:
                    sums.setdefault(name, []).append(loss.stats[name])
    count = max(1, len(turn.mini_batches))
    return {name: float(torch.stack(values).sum()) / count for name, values in sums.items()}
