"""A dress rehearsal before the first turn: what would fail hours later fails now, and leaves no trace."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from darknetpy.errors import warn
from darknetpy.network import Network
from darknetpy.parallel.replicas import ReplicaFailed
from darknetpy.runtime import peak_memory, total_memory
from darknetpy.training.tensors import untouched_random

if TYPE_CHECKING:
    from darknetpy.training.trainer import Trainer

LIMIT = 20.0
"""Seconds; what has not begun by then is left out and said."""
PICTURES = 8
"""Of the evaluation that is tried."""
ROWS_ON_CPU = 2
"""Of a mini-batch on a CPU, whose memory is not what runs short."""


def rehearse(trainer: Trainer) -> None:
    """Try everything that a run will do: both ends of the random sizes, an evaluation, a save and a load.

    Afterwards network, counters and random numbers are as before. Raises what a step raises.
    """
    began = time.perf_counter()
    left_out = []
    for name, step in _steps(trainer):
        if trainer.replicas.share(time.perf_counter() - began > LIMIT):
            left_out.append(name)
            continue
        step()
    device = str(trainer.device)
    if peak := peak_memory(device):
        sizes = sorted({trainer.feed.sizes.largest, (trainer.net.width, trainer.net.height)})
        shown = " and ".join(f"{w}x{h}" for w, h in sizes)
        warn(f"memory: {peak / 2**30:.2f} of {total_memory(device) / 2**30:.1f} GiB at sizes {shown}")
    if left_out:
        warn(f"the rehearsal took {time.perf_counter() - began:.0f} s and left out: {', '.join(left_out)}")


def _steps(trainer: Trainer) -> list[tuple[str, Callable[[], None]]]:
    steps: list[tuple[str, Callable[[], None]]] = [
        (f"training at {w}x{h}", lambda w=w, h=h: _train(trainer, w, h)) for w, h in trainer.feed.sizes.ends()
    ]
    if trainer.measurement is not None:
        steps.append(("an evaluation", lambda: _evaluate(trainer)))
    steps.append(("a save and a load", lambda: _save_and_load(trainer)))
    return steps


def _train(trainer: Trainer, width: int, height: int) -> None:
    """One mini-batch forward and backward, with real pictures, then as if it had not been."""
    rows = trainer.feed.rows_at((width, height))
    if trainer.device.type == "cpu" and trainer.net.time_steps == 1:
        rows = min(rows, ROWS_ON_CPU)
    batch = trainer.feed.one((width, height), rows)

    def accumulate() -> None:
        trainer.transaction.begin()
        try:
            trainer.learner.accumulate_all([batch])
        finally:
            trainer.transaction.undo()

    trainer.remedies.attempt(accumulate, trainer.transaction.undo)


def _evaluate(trainer: Trainer) -> None:
    """A few pictures; what fails here would only be skipped later, so it is said and the run begins all the same."""
    try:
        trainer.measurement(trainer.network.state_dict, PICTURES)
    except ReplicaFailed as error:
        warn(f"evaluations will fail: {error}")


def _save_and_load(trainer: Trainer) -> None:
    """The folder takes a file as large as a checkpoint, and the file gives the same network back."""
    if not trainer.replicas.main:
        return
    with tempfile.TemporaryDirectory(prefix=".rehearsal", dir=trainer.checkpoints.folder) as folder:
        path = os.path.join(folder, "rehearsal.weights")
        trainer.network.save_weights(path)
        with untouched_random(trainer.device):
            Network.from_structure(trainer.network.structure).load_weights(path)
