"""When things are due: evaluations, checkpoints, and when the run will be over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

LEAST_BETWEEN = 100
"""Darknet evaluates at most every so many iterations."""


@dataclass
class EvaluationPlan:
    """Iterations of mAP evaluations.

    Args:
        start: iteration at which the run begins; burn_in: none before it; max_batches: always one at the end.
        images: pictures in the training list; per_iteration: pictures of an iteration; epochs: between evaluations.
        every: replaces max(least, epochs) where given; least: iterations between two; first: none before it.
        strict: none at the end where several replicas jump over `max_batches`, as in Darknet.
    """

    start: int
    burn_in: int
    max_batches: int
    images: int
    per_iteration: int
    epochs: int = 4
    every: int | None = None
    least: int = LEAST_BETWEEN
    first: int = 0
    strict: bool = False

    def __post_init__(self):
        self.last = self.before = self.start

    @property
    def next(self) -> int:
        """Iteration of the next evaluation."""
        if self.every:
            return max(self.last + self.every, self.burn_in)
        each = max(self.least, self.epochs * self.images // max(1, self.per_iteration))
        return max(self.last + each, self.burn_in, self.first)

    def due(self, iteration: int) -> bool:
        """Whether to evaluate now; asks once for each iteration."""
        over = iteration == self.max_batches if self.strict else iteration >= self.max_batches
        if iteration >= self.next or over:
            self.before, self.last = self.last, iteration
            return True
        return False


@dataclass
class Stops:
    """Reasons to end a run before `max_batches`.

    Attributes:
        hours: of this run; accuracy: mAP (0..1) that is enough; patience: evaluations without a better one.
        iteration: to stop at.
    """

    hours: float | None = None
    accuracy: float | None = None
    patience: int | None = None
    iteration: int | None = None

    def reason(self, history: Sequence[tuple[int, float]], seconds: float, iteration: int) -> str | None:
        """`iteration`, `time`, `map`, `patience`, or None to go on.

        Args:
            history: (iteration, mAP) of each evaluation; seconds: since the start; iteration: done so far.
        """
        if self.iteration is not None and iteration >= self.iteration:
            return "iteration"
        if self.hours is not None and seconds >= 3600 * self.hours:
            return "time"
        values = [value for _, value in history]
        if self.accuracy is not None and values and values[-1] >= self.accuracy:
            return "map"
        if self.patience and values and len(values) - 1 - values.index(max(values)) >= self.patience:
            return "patience"
        return None


@dataclass
class SavePlan:
    """Iterations of numbered and `_last` checkpoints (Darknet: `saveweights`, `savelast`)."""

    start: int
    every: int
    every_last: int

    def __post_init__(self):
        self.saved = self.saved_last = self.start

    def numbered(self, iteration: int) -> bool:
        if iteration >= self.saved + self.every or iteration % self.every == 0:
            self.saved = iteration
            return True
        return False

    def last(self, iteration: int) -> bool:
        if self.every <= self.every_last:
            return False
        if iteration >= self.saved_last + self.every_last or (iteration % self.every_last == 0 and iteration > 1):
            self.saved_last = iteration
            return True
        return False


@dataclass
class TimeLeft:
    """Hours to the end, smoothed as Darknet does; the value shown is that before this turn, -1 at first."""

    shown: float = -1.0
    _smooth: float = field(default=-1.0, repr=False)

    def update(self, seconds: float, left: int) -> None:
        hours = left * seconds / 3600
        self._smooth = hours if self._smooth < 0 else 0.01 * hours + 0.99 * self._smooth
        self.shown = self._smooth
