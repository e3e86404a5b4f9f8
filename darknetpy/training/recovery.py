"""The last good state of a run, and the way back to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from darknetpy.errors import DarknetpyError, warn
from darknetpy.training.checkpoint import read_state, state_path
from darknetpy.training.events import Recovered
from darknetpy.training.tensors import copy_tensors

if TYPE_CHECKING:
    from darknetpy.training.trainer import Trainer

MOST_RETURNS = 5
"""To the same state, after which a lower rate is no remedy any more."""
SLOWER = "look at the pictures that were named, lower learning_rate=, or lengthen burn_in="


class Recovery:
    """Keeps a state in memory, or knows that it lies in the file of the last checkpoint."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.kept: dict[str, Any] | None = None
        self.returns, self.returned_to = 0, -1

    def keep(self, on_disk: bool = False) -> None:
        """Remember the state of now; one process can read it from its file."""
        remembers = not (on_disk or self.trainer.network.strict)
        self.kept = copy_tensors(self.trainer.own_state(), torch.device("cpu")) if remembers else None

    def go_back(self, reason: str) -> None:
        """Back to the kept state with half the learning rate. Raises DarknetpyError where that does not help."""
        trainer = self.trainer
        factor = trainer.learner.schedule.factor / 2
        good = self.kept or self._stored(reason)
        trainer.load_state(good["replica"], good["run"])
        trainer.skipped = 0
        iteration = trainer.learner.iteration
        self.returns = self.returns + 1 if iteration == self.returned_to else 1
        self.returned_to = iteration
        if self.returns > MOST_RETURNS:
            what = f"{reason}, again after {MOST_RETURNS} returns to iteration {iteration}"
            what += f", at last with {2 * factor:g} times the learning rate"
            raise DarknetpyError(what, remedy=SLOWER)
        trainer.learner.schedule.factor = factor
        remedy = f"back to iteration {iteration}, going on with {factor:g} times the learning rate"
        trainer.events.emit(Recovered(f"{reason}: {remedy}", iteration))

    def _stored(self, reason: str) -> dict[str, Any]:
        path = self.trainer.checkpoints.path("last")
        if (stored := read_state(path)) is not None:
            return {"replica": stored["replicas"][0], "run": stored["run"]}
        if not os.path.exists(path):
            raise DarknetpyError(f"{reason}, and what to go back to is gone", file=path, remedy=SLOWER)
        warn(f"{state_path(path)} is gone: the run goes on from {path} alone, without its momentum")
        return self._of_weights(path)

    def _of_weights(self, path: str) -> dict[str, Any]:
        """The state that a weights file alone gives, with the past of the run up to there."""
        trainer, learner = self.trainer, self.trainer.learner
        learner.network.load_weights(path)
        learner.begin()
        trainer.feed.turns = iteration = learner.iteration
        trainer.curve = [row for row in trainer.curve if row[0] <= iteration]
        trainer.result.history = [point for point in trainer.result.history if point[0] <= iteration]
        trainer.evaluations.last = max([trainer.evaluations.start, *(at for at, _ in trainer.result.history)])
        trainer.saves.saved = min(trainer.saves.saved, iteration)
        trainer.saves.saved_last = min(trainer.saves.saved_last, iteration)
        return trainer.own_state()
