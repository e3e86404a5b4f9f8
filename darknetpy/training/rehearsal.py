"""A dress rehearsal before the first turn: what would fail hours later fails now, and leaves no trace."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from darknetpy.errors import warn
from darknetpy.network import Network
from darknetpy.parallel.replicas import ReplicaFailed
from darknetpy.runtime import peak_memory, total_memory
from darknetpy.training.checkpoint import Checkpoints, read_state
from darknetpy.training.tensors import untouched_random

if TYPE_CHECKING:
    from darknetpy.training.trainer import Trainer

LIMIT = 20.0
"""Seconds; a step that would end later is left out, and said."""
PICTURES = 8
"""Of the evaluation that is tried."""
ROWS_ON_CPU = 2
"""Of a mini-batch on a CPU, whose memory is not what runs short."""


@dataclass(frozen=True)
class Step:
    """`work` is `times` as long as the step named `like`, which comes before it."""

    name: str
    work: Callable[[], None]
    like: str = ""
    times: float = 0.0


def rehearse(trainer: Trainer) -> None:
    """Try everything that a run will do, from the cheap to the dear: a save and a load, a chart, an evaluation, and
    training at both ends of the random sizes.

    Afterwards network, counters and random numbers are as before. Raises what a step raises.
    """
    began = time.perf_counter()
    took: dict[str, float] = {}
    left_out = []
    for step in _steps(trainer):
        start = time.perf_counter()
        if trainer.replicas.share(start - began + step.times * took.get(step.like, 0.0) > LIMIT):
            left_out.append(step.name)
            continue
        step.work()
        took[step.name] = time.perf_counter() - start
    device = str(trainer.device)
    if peak := peak_memory(device):
        sizes = sorted({trainer.feed.sizes.largest, (trainer.net.width, trainer.net.height)})
        shown = " and ".join(f"{w}x{h}" for w, h in sizes)
        warn(f"memory: {peak / 2**30:.2f} of {total_memory(device) / 2**30:.1f} GiB at sizes {shown}")
    if left_out:
        seconds = time.perf_counter() - began
        warn(f"the rehearsal took {seconds:.0f} s and, to stay below {LIMIT:.0f} s, left out: {', '.join(left_out)}")


def _steps(trainer: Trainer) -> list[Step]:
    steps = [
        Step("a save and a load", lambda: _save_and_load(trainer)),
        Step("a chart", trainer.events.rehearse),
    ]
    if trainer.measurement is not None:
        steps.append(Step("an evaluation of one picture", lambda: _evaluate(trainer, 1)))
        steps.append(Step("an evaluation", lambda: _evaluate(trainer, PICTURES), steps[-1].name, PICTURES))
    first: tuple[str, int] = ("", 1)
    for w, h in reversed(trainer.feed.sizes.ends()):
        name = f"training at {w}x{h}"
        steps.append(Step(name, lambda w=w, h=h: _train(trainer, w, h), first[0], w * h / first[1]))
        first = name, w * h
    return steps


def _train(trainer: Trainer, width: int, height: int) -> None:
    """One mini-batch forward and backward, with real pictures and room for the momentum, then as if it had not been."""
    rows = trainer.feed.rows_at((width, height))
    if trainer.device.type == "cpu" and trainer.net.time_steps == 1:
        rows = min(rows, ROWS_ON_CPU)
    batch = trainer.feed.one((width, height), rows)

    def accumulate() -> None:
        trainer.transaction.begin()
        room = trainer.learner.optimizer.room_to_come()
        try:
            trainer.learner.accumulate_all([batch])
        finally:
            trainer.transaction.undo()
            del room

    trainer.remedies.attempt(accumulate, trainer.transaction.undo)


def _evaluate(trainer: Trainer, pictures: int) -> None:
    """A few pictures; what fails here would only be skipped later, so it is said and the run begins all the same."""
    try:
        trainer.measurement(trainer.network.state_dict, pictures)
    except ReplicaFailed as error:
        warn(f"evaluations will fail: {error}")


def _save_and_load(trainer: Trainer) -> None:
    """The folder takes files as large as a checkpoint, and they give the same network and state back."""
    state = trainer.state()
    if not trainer.replicas.main:
        return
    with tempfile.TemporaryDirectory(prefix=".rehearsal", dir=trainer.checkpoints.folder) as folder:
        place = Checkpoints(folder, trainer.checkpoints.cfg)
        path = place.save_last(trainer.network, trainer.learner.iteration, state)
        with untouched_random(trainer.device):
            Network.from_structure(trainer.network.structure).load_weights(path)
        read_state(os.fspath(path))
