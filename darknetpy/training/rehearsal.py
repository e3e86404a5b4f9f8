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
BACKWARD = 3.0
"""A turn takes about so much of the time of its forward pass."""


@dataclass(frozen=True)
class Step:
    """`work` takes `times` as long as the step named `like`, which comes before it; left out where that was."""

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
        unknown = bool(step.like) and step.like not in took
        estimate = step.times * took.get(step.like, 0.0)
        if trainer.replicas.share(unknown or start - began + estimate > LIMIT):
            left_out.append(step.name)
            continue
        step.work()
        took[step.name] = time.perf_counter() - start
    device = str(trainer.device)
    if (peak := peak_memory(device)) and not any(name.startswith("training") for name in left_out):
        sizes = sorted({trainer.feed.sizes.largest, (trainer.net.width, trainer.net.height)})
        shown = " and ".join(f"{w}x{h}" for w, h in sizes)
        warn(f"memory: {peak / 2**30:.2f} of {total_memory(device) / 2**30:.1f} GiB at sizes {shown}")
    if left_out:
        seconds = time.perf_counter() - began
        warn(f"the rehearsal took {seconds:.0f} s and, to stay below {LIMIT:.0f} s, left out: {', '.join(left_out)}")


def _steps(trainer: Trainer) -> list[Step]:
    """A CPU begins with one picture, from which follows what more of them take; a GPU takes them at once."""
    sizes = trainer.feed.sizes.ends()[::-1]
    area, measures, slow = _area(sizes[0]), trainer.measurement is not None, trainer.device.type == "cpu"
    steps = [
        Step("a save and a load", lambda: _save_and_load(trainer)),
        Step("a chart", trainer.events.rehearse),
    ]
    said: set[str] = set()
    one = "an evaluation of one picture" if measures and slow else ""
    if one:
        steps.append(Step(one, lambda: _evaluate(trainer, 1, said)))
    like, pictures = "", 1
    if slow and trainer.net.time_steps == 1 and not trainer.net.contrastive:
        like = "training on one picture"
        share = BACKWARD * area / _area((trainer.net.width, trainer.net.height))
        steps.append(Step(like, lambda: _train(trainer, sizes[0], 1), one, share))
    if measures:
        steps.append(Step("an evaluation", lambda: _evaluate(trainer, PICTURES, said), one, PICTURES))
    for size in sizes:
        rows, name = _rows(trainer, size), f"training at {size[0]}x{size[1]}"
        times = rows / pictures * _area(size) / area if slow else 0.0  # a GPU's first pass has its start in it
        steps.append(Step(name, lambda size=size, rows=rows: _train(trainer, size, rows), like, times))
        like, pictures, area = name, rows, _area(size)
    return steps


def _area(size: tuple[int, int]) -> int:
    """Pixels; a text has none, and counts as one."""
    return max(1, size[0] * size[1])


def _rows(trainer: Trainer, size: tuple[int, int]) -> int:
    rows = trainer.feed.rows_at(size)
    return min(rows, ROWS_ON_CPU) if trainer.device.type == "cpu" and trainer.net.time_steps == 1 else rows


def _train(trainer: Trainer, size: tuple[int, int], rows: int) -> None:
    """One mini-batch forward and backward, with real pictures and room for the momentum, then as if it had not been."""
    batch = trainer.feed.one(size, rows)

    def accumulate() -> None:
        trainer.transaction.begin()
        room = trainer.learner.optimizer.room_to_come()
        try:
            trainer.learner.accumulate_all([batch])
        finally:
            trainer.transaction.undo()
            del room

    trainer.remedies.attempt(accumulate, trainer.transaction.undo)


def _evaluate(trainer: Trainer, pictures: int, said: set[str]) -> None:
    """A few pictures; what fails here would only be skipped later, so it is said and the run begins all the same."""
    try:
        trainer.measurement(trainer.network.state_dict, pictures)
    except ReplicaFailed as error:
        if str(error) not in said:
            said.add(str(error))
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
