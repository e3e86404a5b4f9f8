"""What happens during a run. Everything a person sees is a sink of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from darknetpy.errors import DataError, warn
from darknetpy.evaluation import EvaluationResult


@dataclass(frozen=True)
class Started:
    """The run begins (or goes on): names, sizes and what the sinks need to draw their frames. `advice` explains the
    arithmetic of several replicas."""

    base: str
    cfg: str
    iteration: int
    max_batches: int
    batch: int
    images: int
    device: str
    learning_rate: float
    momentum: float
    decay: float
    heads: tuple[tuple[int, str], ...]
    save_every: int
    save_last: int
    max_chart_loss: float
    evaluating: bool
    folder: str = "."
    task: str = "detector"
    metric: str = "mAP%"
    replicas: int = 1
    advice: tuple[str, ...] = ()


@dataclass(frozen=True)
class TurnDone:
    """One iteration is finished; an evaluation comes after it.

    `images` counts as Darknet prints it, `trained` those seen. `load_seconds` were spent waiting for pictures,
    `seconds` training, of which `sync_seconds` waiting for other replicas. `averaged`: so were their weights, after it.
    `memory`: MiB of the first GPU that the program holds, 0 on a CPU.
    """

    iteration: int
    max_batches: int
    loss: float
    avg_loss: float
    rate: float
    seconds: float
    load_seconds: float
    images: int
    hours_left: float
    size: tuple[int, int]
    next_map: int | None = None
    map: float | None = None
    best_map: float | None = None
    iou_thresh: float = 0.5
    details: tuple[str, ...] = ()
    losses: dict[str, float] = field(default_factory=dict)
    trained: int = 0
    sync_seconds: float = 0.0
    averaged: bool = False
    memory: int = 0


@dataclass(frozen=True)
class Resized:
    """The network's size changes; `factor` is the range of random sizes, `initial` a return for an evaluation,
    `batch` the mini-batch where that changes too."""

    size: tuple[int, int]
    factor: float = 1.0
    initial: bool = False
    batch: int | None = None


@dataclass(frozen=True)
class Evaluated:
    """mAP was measured; `best` says whether it is at least as good as any before."""

    iteration: int
    max_batches: int
    result: EvaluationResult
    best: bool
    best_map: float


@dataclass(frozen=True)
class Saved:
    """A weights file was written."""

    path: str
    iteration: int


@dataclass(frozen=True)
class Recovered:
    """Something failed and the run goes on."""

    message: str
    iteration: int


@dataclass(frozen=True)
class Finished:
    """The run is over."""

    iteration: int
    stopped: bool
    seconds: float


Event = Started | TurnDone | Resized | Evaluated | Saved | Recovered | Finished
Sink = Callable[[Event], None]


_FACTORIES: list[Callable[[], list[Sink]]] = []


def use_by_default(factory: Callable[[], list[Sink]]) -> None:
    """Name who makes the sinks of a run that was given none; the reporting room does when it is loaded."""
    _FACTORIES[:] = [factory]


def default_sinks() -> list[Sink]:
    """Fresh sinks for a run that was given none."""
    return [sink for factory in _FACTORIES for sink in factory()]


class Events:
    """Hands events to sinks; training never stops for one. A sink that the disk or a network refuses something is kept,
    and named once until it works again; any other failure is a fault of its own, and it is dropped."""

    def __init__(self, sinks: Iterable[Sink]):
        self.sinks = list(sinks)
        self.refused: set[int] = set()

    def emit(self, event: Event) -> None:
        for sink in list(self.sinks):
            self._guarded(sink, lambda sink=sink: sink(event))

    def rehearse(self) -> None:
        """Let sinks that have a `rehearse` try what they will do later."""
        for sink in list(self.sinks):
            if hasattr(sink, "rehearse"):
                self._guarded(sink, sink.rehearse)

    def _guarded(self, sink: Sink, call: Callable[[], None]) -> None:
        name = type(sink).__name__ if not hasattr(sink, "__name__") else sink.__name__
        try:
            call()
            self.refused.discard(id(sink))
        except (OSError, DataError) as error:
            if id(sink) not in self.refused:
                self.refused.add(id(sink))
                warn(f"{name}: {error}; it is tried again")
        except Exception as error:  # whatever a sink does wrong, the run matters more
            self.sinks.remove(sink)
            warn(f"{name} failed and is switched off: {type(error).__name__}: {error}")

    def resume(self, rows: list[dict[str, float]]) -> None:
        """Tell sinks that have a `resume` what happened before: a row for each iteration with its `iteration`, `loss`,
        `avg_loss`, `rate`, and `map` where it was evaluated."""
        if not rows:
            return
        for sink in list(self.sinks):
            if hasattr(sink, "resume"):
                self._guarded(sink, lambda sink=sink: sink.resume(rows))
